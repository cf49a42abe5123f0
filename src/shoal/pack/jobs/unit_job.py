"""The job that engines run: units that go anywhere, in any order, any number of times, and one end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

_Result_co = TypeVar("_Result_co", covariant=True)

UnitProgress = Callable[[int, int], None]
"""Progress callback of an engine: the number of units done, and the total."""


class UnitJob(Protocol[_Result_co]):
    """A job of units, of which engines only need to know this; `PackJob` is one."""

    @property
    def num_units(self) -> int:
        """Number of units."""

    def missing(self) -> Sequence[int]:
        """Return the numbers of units that are still to be run."""

    def task(self, number: int) -> Callable[[], Any]:
        """Return a unit as a callable that can be pickled, holds no more than it needs, and returns a small result."""

    def finish(self) -> _Result_co:
        """Check that all units have run, and make their result visible; an error names those that are missing."""
