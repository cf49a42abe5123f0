"""Samples from an iterable, or from a function that returns an iterable or a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from shoal.errors import StateError, UsageError
from shoal.live.live_source import EndOfSourceError, LiveSource, Sharing, Taken
from shoal.order.states.checked_states import changed_hint
from shoal.order.states.state_fields import LIVE

_RESUME_HINT = (
    "give the source state_dict() and load_state_dict(); or from_iterable(replay=True), if it gives the same samples "
    "again, to read up to there; or replay=False, if it continues by itself, like a socket"
)


class IterableSource(LiveSource):
    """Samples of an iterable; the place of a sample is its number, from 0.

    ``replay`` says how to resume if the iterable has no state: True reads a new iterator up to the position, and False
    continues the source. A sequence resumes at any number without reading.
    """

    kind = "iterable"

    def __init__(self, source: Any, replay: bool | None, sharing: Sharing) -> None:  # noqa: FBT001
        self._source, self._sharing = source, sharing
        self._is_sequence = isinstance(source, Sequence)
        self._has_state = has_state(source)
        self._replay = replay
        self._iterator: Iterator[Any] | None = None
        self._next = 0

    def again(self) -> IterableSource | None:
        """Return another source over a sequence, or over an iterable that gives the same samples again."""
        can_restart = self._replay and not self._has_state and not isinstance(self._source, Iterator)
        return IterableSource(self._source, self._replay, self._sharing) if self._is_sequence or can_restart else None

    def take(self) -> Taken:
        """Return the next sample of this share."""
        while True:
            sample = self._advance()
            number = self._next - 1
            if number % self._sharing.world_size == self._sharing.rank:
                return Taken(sample, number)

    def _advance(self) -> Any:
        if self._is_sequence:
            if self._next >= len(self._source):
                raise EndOfSourceError
            sample = self._source[self._next]
        else:
            if self._iterator is None:
                self._iterator = iter(self._iterable())
            try:
                sample = next(self._iterator)
            except StopIteration:
                raise EndOfSourceError from None
        self._next += 1
        return sample

    def _iterable(self) -> Iterable[Any]:
        if isinstance(self._source, Iterable):
            return self._source
        result: Any = self._source()
        if not isinstance(result, Iterable):
            msg = f"from_iterable() was given a function that returned {type(result).__name__}, not an iterable"
            raise UsageError(msg, hint="shoal.from_callable(function) calls a function for each sample")
        return result

    def state(self, places: Sequence[Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return the number of the next sample, and the source's own state if it has one."""
        return {"next": self._next} | ({"own": self._source.state_dict()} if self._has_state else {})

    def resume(self, state: Any, places: Sequence[Any]) -> list[Any] | None:
        """Continue at a number; O(samples before it) with ``replay``."""
        number = state["next"]
        if beyond := [place for place in places if place >= number]:
            msg = f"the state is at sample {number}, but names sample {beyond[0]} as taken before"
            raise StateError(msg, hint=changed_hint(LIVE))
        if self._has_state != ("own" in state):
            sides = ("has", "lacks") if self._has_state else ("lacks", "has")
            msg = f"this source {sides[0]} state_dict() and load_state_dict(), but the state {sides[1]} its position"
            raise StateError(msg, hint="resume with the source of the run that saved the state")
        if self._has_state:
            self._source.load_state_dict(state["own"])
        elif self._is_sequence:
            if number > len(self._source):
                msg = f"the state is at sample {number} of a sequence, but this sequence has {len(self._source)}"
                raise StateError(msg, hint="give the sequence that the state was saved with")
        elif self._replay is None and number:
            msg = f"the state is at sample {number}, but shoal does not know how to reach it in this source"
            raise StateError(msg, hint=_RESUME_HINT)
        self._iterator, self._next = None, number
        if self._is_sequence:
            return [self._source[place] for place in places]
        if self._replay and not self._has_state:
            return self._replayed(number, places)
        return [] if not places else None

    def _replayed(self, number: int, places: Sequence[int]) -> list[Any]:
        distinct, samples = set(places), {}
        self._next = 0
        if isinstance(self._source, Iterator):
            msg = f"replay=True needs a source that can restart; this is an iterator ({type(self._source).__name__})"
            raise StateError(msg, hint="give a function of the iterator: from_iterable(lambda: ..., replay=True)")
        for _ in range(number):
            try:
                sample = self._advance()
            except EndOfSourceError:
                msg = f"the state is at sample {number}, but the source ends after {self._next} when it is replayed"
                raise StateError(msg, hint="replay=True needs a source that gives the same samples again") from None
            if self._next - 1 in distinct:
                samples[self._next - 1] = sample
        return [samples[place] for place in places]


class CallableSource(LiveSource):
    """Samples that a function returns, one for each call; places are their numbers, from 0.

    An exception in ``ends``, or a value that is or equals ``sentinel``, ends the stream. An exception in ``empty``
    means that there is no sample yet.
    """

    kind = "callable"

    def __init__(
        self,
        function: Callable[[], Any],
        until: Callable[[Callable[[], bool]], bool],
        *,
        ends: tuple[type[BaseException], ...],
        empty: tuple[type[BaseException], ...],
        sentinel: Any,
        sharing: Sharing,
    ) -> None:
        self._function, self._until = function, until
        self._ends, self._empty, self._sentinel = ends, empty, sentinel
        self._sharing = sharing
        self._has_state = has_state(function)
        self._next = 0
        self._results: list[Any] = []

    def take(self) -> Taken:
        """Call the function until it returns a sample of this share."""
        while True:
            if not self._results and not self._until(self._call):
                raise EndOfSourceError
            sample = self._results.pop()
            self._next += 1
            if (self._next - 1) % self._sharing.world_size == self._sharing.rank:
                return Taken(sample, self._next - 1)

    def _call(self) -> bool:
        """Call the function once; return False if there is no sample yet."""
        try:
            sample = self._function()
        except self._empty:
            return False
        except self._ends:
            raise EndOfSourceError from None
        if sample is self._sentinel or (type(sample) is type(self._sentinel) and sample == self._sentinel):
            raise EndOfSourceError
        self._results.append(sample)
        return True

    def state(self, places: Sequence[Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return the number of the next sample, and the function's own state if it has one."""
        own: Any = self._function
        return {"next": self._next} | ({"own": own.state_dict()} if self._has_state else {})

    def resume(self, state: Any, places: Sequence[Any]) -> list[Any] | None:
        """Continue with the function in its present state, or in its own saved state."""
        own: Any = self._function
        if self._has_state and "own" in state:
            own.load_state_dict(state["own"])
        self._next = state["next"]
        return [] if not places else None


def has_state(source: Any) -> bool:
    """Return True for an object that can save and load its position; a class does not count, only its instances."""
    return (
        not isinstance(source, type)
        and callable(getattr(source, "state_dict", None))
        and callable(getattr(source, "load_state_dict", None))
    )
