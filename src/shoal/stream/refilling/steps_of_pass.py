"""A pass of a fixed number of batches, for ranks that fill their batches and end an epoch at different steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from shoal.errors import UsageError
from shoal.stream.iterating.iterator import Iteration


class StepsOfPass:
    """``num_steps`` batches of a rank, through as many epochs as needed.

    ``first`` is the iteration over the rest of the current epoch, and ``begin`` makes the next iteration. ``stay``
    starts the next pass at the end of this pass, with the rest of the epoch.
    """

    def __init__(
        self, first: Iteration, begin: Callable[[], Iteration], stay: Callable[[], None], num_steps: int
    ) -> None:
        self._iteration, self._begin, self._stay, self._num_left = first, begin, stay, num_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the state after everything this pass has yielded; see `Dataset.state_dict`."""
        return self._iteration.state_dict()

    @property
    def is_at_end(self) -> bool:
        """True after the last batch."""
        return not self._num_left

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self._num_left:
            raise StopIteration
        num_epochs = 0
        while True:
            try:
                batch = next(self._iteration)
                break
            except StopIteration:
                if self._iteration.is_stopped:
                    raise
            if (num_epochs := num_epochs + 1) > 1:  # the first iteration may be the rest of an epoch
                position = self._iteration.position
                msg = f"rank {position.rank} gets no batch in epoch {position.epoch}, so its passes would never end"
                raise UsageError(msg, hint='smaller batches, fewer ranks, or batch(..., remainder="keep")')
            self._iteration = self._begin()
        self._num_left -= 1
        if not self._num_left:  # here, because a loop that counts to len() makes no further request
            self._iteration.close()
            self._stay()
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Stop yielding, also in a signal handler; see `Iteration.stop`."""
        self._iteration.stop()

    def close(self) -> None:
        """Stop reading and yielding."""
        self._num_left = 0
        self._iteration.close()
