"""The length that a loader has said, and epochs that have another one."""

from __future__ import annotations

import logging

from shoal.stream.dataset_stream import Stream

_log = logging.getLogger("shoal")


class SaidLength:
    """The number of batches in an epoch that a loader has last said.

    Some epochs have another one: of mixtures with ``choice=``, of `without`, and where documents are packed anew.
    """

    def __init__(self) -> None:
        self._said: int | None = None
        self._has_warned = False

    def of(self, stream: Stream) -> int:
        """Return the length of the current epoch, and keep it; see `Stream.length`."""
        self._said = stream.length(exactly=True)
        return self._said

    def compare(self, stream: Stream, held: int | None = None) -> None:
        """Warn, once, if the epoch that begins has another length than was said, or than a framework has ``held``."""
        said = self._said if held is None else held
        if said is None or self._has_warned:
            return
        number = stream.length()
        if number != said:
            self._has_warned = True
            text = (
                "epoch %d has %d batches on each rank, and len(loader) was %d. Code that asked only once ends a longer "
                "epoch early, and its schedules end early or late: ask in each epoch, as Lightning does with "
                "reload_dataloaders_every_n_epochs=1"
            )
            _log.warning(text, stream.cursor.epoch, number, said)
