"""The interface of a live source, and waiting for what is not there yet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from shoal.errors import UsageError
from shoal.live.live_counters import LiveCounters


class Taken(NamedTuple):
    """A sample from a source, and its place there: a number, or the name of a file and a number in it."""

    sample: Any
    place: Any


class EndOfSourceError(Exception):
    """No further sample will come."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The share of this process: every ``world_size``-th sample of the source."""

    rank: int = 0
    world_size: int = 1


class LiveSource(Protocol):
    """Samples one after the other, at a position that a state can keep."""

    kind: str

    def take(self) -> Taken:
        """Return the next sample, after waiting for it if need be; raises `EndOfSourceError`."""

    def state(self, places: Sequence[Any]) -> Any:
        """Return the position as JSON types; ``places`` are those of samples that were taken and not delivered."""

    @property
    def recalls(self) -> bool:
        """True if `resume` can give back samples that were taken before, by their places."""

    def resume(self, state: Any, places: Sequence[Any]) -> list[Any] | None:
        """Go on at a position, and return the samples at these places; None if they are gone.

        Raises `StateError`: the source cannot go on there.
        """

    def number_of(self, place: Any) -> int:
        """Return a number that belongs to the sample at a place, and to no other of the stream."""

    def told(self, place: Any) -> str:
        """Return a place in words, for a message."""

    def deal(self, states: Sequence[Any], places: Sequence[Sequence[Any]], sharing: Sharing) -> tuple[Any, list[Any]]:
        """Return the share of what all ranks of a run have left: a position, and places before it.

        ``states`` and ``places``, taken and not delivered, are those of each rank of the run; ``sharing`` is the share
        now. Raises `StateError`: the source cannot be dealt to another number of ranks.
        """


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wait for data: look every ``poll_seconds``; give up after ``idle_seconds`` without any, or on ``stop``."""

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
            msg = f"stop is a function that returns True when no more should be awaited; got {stop!r}"
            raise UsageError(msg, hint="stop=event.is_set")

    def until(self, look: Callable[[], bool]) -> bool:
        """Return True as soon as ``look`` does, or False where waiting ends."""
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
