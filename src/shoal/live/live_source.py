"""The interface of a live source, its counters, and the wait for new samples."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from shoal.errors import StateError, UsageError


@dataclass(slots=True)
class LiveCounters:
    """Counts since the dataset object was made.

    ``num_taken`` samples came from the source: ``num_samples`` were delivered, in ``num_batches``; a filter dropped
    ``num_filtered``, and functions raised errors for ``num_failed``. After a resume, ``num_recalled`` samples were
    read again or came from the contents of a state; ``num_lost`` could not be restored to the buffer. The stream waited
    ``num_waits`` times, ``wait_seconds`` in all. It began ``num_files`` files of a followed directory, and
    ``num_late_files`` came late: a file that sorts later had been read. The buffer now holds ``num_buffered``
    samples, of ``buffer_bytes`` if its size is in bytes. The consumer was ``inside_seconds`` inside of ``next()``, and
    ``take_seconds`` of them the source took to give samples, its waits included.
    """

    num_taken: int = 0
    num_samples: int = 0
    num_batches: int = 0
    num_filtered: int = 0
    num_failed: int = 0
    num_recalled: int = 0
    num_lost: int = 0
    num_waits: int = 0
    wait_seconds: float = 0.0
    num_files: int = 0
    num_late_files: int = 0
    num_buffered: int = 0
    buffer_bytes: int = 0
    inside_seconds: float = 0.0
    take_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the counts by name."""
        return asdict(self)


class Taken(NamedTuple):
    """A sample from a source, and its place there: a number, or a file's name and a number in the file."""

    sample: Any
    place: Any


class EndOfSourceError(Exception):
    """No further sample will come."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The share of this process: every ``world_size``-th sample of the source."""

    rank: int = 0
    world_size: int = 1


class LiveSource(ABC):
    """Samples one after another, at a position that a state can keep; the defaults are for places that are numbers.

    Below, ``places`` are the places of samples that were taken and not delivered.
    """

    kind: str

    @abstractmethod
    def take(self) -> Taken:
        """Return the next sample, and wait for it if necessary; raises `EndOfSourceError`."""

    @abstractmethod
    def state(self, places: Sequence[Any]) -> Any:
        """Return the position as JSON types."""

    @abstractmethod
    def resume(self, state: Any, places: Sequence[Any]) -> list[Any] | None:
        """Continue at a position, and return the samples at these places; None if they are gone.

        Raises `StateError` if the source cannot continue at that position.
        """

    def again(self) -> LiveSource | None:
        """Return another source of the same samples, at the start; None if this source gives each sample once.

        The other source moves nothing that this source uses, and ends instead of waiting for samples.
        """
        return None

    def number_of(self, place: Any) -> int:
        """Return a number that identifies the sample at a place in the stream."""
        return int(place)

    def label(self, place: Any) -> str:
        """Return a place in words, for a message."""
        return f"sample {place} of the source"

    def deal(self, states: Sequence[Any], places: Sequence[Sequence[Any]], sharing: Sharing) -> tuple[Any, list[Any]]:  # noqa: ARG002
        """Return this rank's share of the undelivered samples of all ranks: a position, and places before it.

        ``states`` and ``places`` are the states and places of each rank of the saved run. Raises `StateError` if the
        source cannot be dealt to another number of ranks.
        """
        msg = f"the state is of a run on {len(states)} ranks, but this run has {sharing.world_size}: the places of an "
        msg += "iterable or a function are numbers within a rank's own stream, which cannot be dealt again"
        hint = f"resume on {len(states)} ranks; only shoal.follow() can resume on another number of ranks"
        raise StateError(msg, hint=hint)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wait for data: look every ``poll_seconds``; give up after ``idle_seconds`` without data, or on ``stop``."""

    counters: LiveCounters
    poll_seconds: float = 1.0
    idle_seconds: float | None = None
    stop: Callable[[], bool] | None = None
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def __post_init__(self) -> None:
        for name in ("poll_seconds", "idle_seconds"):
            value = getattr(self, name)
            if value is None and name == "idle_seconds":
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not is_number or value < 0:
                raise UsageError(f"{name} is a number of seconds of at least 0; got {value!r}", hint=f"{name}=1.0")
        stop: object = self.stop
        if stop is not None and not callable(stop):
            msg = f"stop must be a function that returns True to end the wait for samples; got {stop!r}"
            raise UsageError(msg, hint="stop=event.is_set")

    def until(self, look: Callable[[], bool]) -> bool:
        """Return True as soon as ``look`` returns True, or False when the wait ends."""
        if look():
            return True
        began = self.clock()
        self.counters.num_waits += 1
        try:
            while not (self.stop is not None and self.stop()):
                if self.idle_seconds is not None and self.clock() - began >= self.idle_seconds:
                    return look()
                self.sleep(self.poll_seconds)
                if look():
                    return True
            return look()
        finally:
            self.counters.wait_seconds += self.clock() - began
