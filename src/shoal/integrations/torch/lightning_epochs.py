"""Epochs of Lightning and other frameworks on their way to the order, and the lengths that frameworks remember.

Lightning, Fabric and scripts call ``loader.sampler.set_epoch(epoch)`` before the first batch of an epoch.
`StepSampler.set_epoch` passes the epoch to ``loader.name_epoch``, which sets it in the dataset.
"""

from __future__ import annotations

import itertools
import logging
import sys
import weakref
from collections.abc import Iterator, Sized
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DistributedSampler

from shoal.integrations.torch.lightning_lengths import match_length
from shoal.stream.dataset_stream import Stream

_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
_FRAMES = 5
_log = logging.getLogger("shoal")
_warned: weakref.WeakSet[Sized] = weakref.WeakSet()


class Step(NamedTuple):
    """A batch of this rank: its epoch, and its number in the whole epoch."""

    epoch: int
    number: int


class StepSampler(DistributedSampler, BatchSampler):  # type: ignore[type-arg]
    """The sampler of a loader: the steps of this rank in the current epoch, from its start.

    As a ``DistributedSampler``, it keeps frameworks from adding another sampler; as a ``BatchSampler``, it lets
    ``accelerate.skip_first_batches`` leave out the first batches.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.rank, self.num_replicas = loader.dataset.stream.spec.ranks.resolve()
        self.epoch = loader.dataset.epoch
        self.batch_size: Any = loader.batch_size
        self.drop_last = loader.drop_last

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass.

        Fabric counts epochs from 0 in each process. So the first call after a state was loaded means the epoch of the
        state, and later calls count from there.
        """
        loop, loader = _calling_loop(), self._loader
        limit = None if loop is None else meet_lightning(loop, loader)
        stream = loader.dataset.stream
        loader.name_epoch(epoch, limit)
        if loop is None or stream.num_steps_of_pass is not None or _why_without_length(loader):
            return
        position = stream.iterator_spec().position()
        is_at_start = not position.start and not position.num_yielded
        # A state at the start of an epoch may be that after the last batch: Lightning's own length is right then.
        num_left = None if is_at_start else len(position.global_batches)
        match_length(loop, loader, num_left)

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch on this rank."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the steps of the current epoch."""
        epoch = self._loader.dataset.epoch
        try:
            numbers: Any = range(len(self))
        except TypeError:
            numbers = itertools.count()
        return (Step(epoch, number) for number in numbers)


def meet_lightning(loop: Any, loader: Sized) -> int | None:
    """Let Lightning's fit loop load pending states of loaders; return Lightning's length of an epoch.

    Lightning loads states of a checkpoint when it sets loaders up. But if ``configure_optimizers`` reads
    ``trainer.estimated_stepping_batches``, Lightning sets loaders up before it reads the checkpoint, and never loads
    the states of the loaders. This function runs when Lightning sets the epoch, before the first batch.

    Lightning ends every epoch after as many batches as the first epoch has. If the loader has no length, Lightning
    takes a batch before training on the previous batch, and a warning reports this.
    """
    if getattr(loop, "_combined_loader_states_to_load", None):
        loop._load_combined_loader_states()  # noqa: SLF001  # if it is restarting
    if loader not in _warned and (why := _why_without_length(loader)):
        _warned.add(loader)
        _log.warning(
            "without a length of its loader, Lightning is one batch ahead of the training, and a run that resumes in "
            "the middle of an epoch never trains on that batch (%s)",
            why,
        )
    return _limit_of(loop, loader)


def _calling_loop() -> Any:
    frame = sys._getframe(2)  # noqa: SLF001  # only its own methods know the loop
    for _ in range(_FRAMES):
        if frame.f_globals.get("__name__") in _FIT_LOOPS:
            return frame.f_locals.get("self")
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def _limit_of(loop: Any, loader: Sized) -> int | None:
    """Return Lightning's number of batches for every epoch; None without a limit, or with a limit set by the user."""
    if loop.trainer.limit_train_batches != 1.0:
        return None
    combined = loop._combined_loader  # noqa: SLF001  # it reads lengths again, but keeps the first ones
    limits = zip(combined.flattened, combined.limits, strict=False)
    return next((limit for other, limit in limits if other is loader and isinstance(limit, int)), None)


def _why_without_length(loader: Sized) -> str:
    try:
        len(loader)
    except TypeError as error:
        return str(error)
    return ""


class ReportedLength:
    """The number of batches in an epoch that a loader last reported.

    Epochs may differ in length: in mixtures with ``choice=``, after `without`, and if documents are packed for each
    epoch.
    """

    def __init__(self) -> None:
        self._reported: int | None = None
        self._has_warned = False

    def of(self, stream: Stream) -> int:
        """Return the length of the current epoch, and remember it; see `Stream.length`."""
        self._reported = stream.length(exactly=True)
        return self._reported

    def compare(self, stream: Stream, limit: int | None = None) -> None:
        """Warn once if the new epoch's length differs from the reported length, or from a framework's ``limit``."""
        reported = self._reported if limit is None else limit
        if reported is None or self._has_warned:
            return
        number = stream.length()
        if number != reported:
            self._has_warned = True
            text = (
                "epoch %d has %d batches on each rank, but len(loader) was %d. Code that asks only once ends a longer "
                "epoch early, and its schedules end early or late: ask in each epoch, as Lightning does with "
                "reload_dataloaders_every_n_epochs=1"
            )
            _log.warning(text, stream.cursor.epoch, number, reported)
