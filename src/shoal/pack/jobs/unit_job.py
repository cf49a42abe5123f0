"""The interface of jobs for engines: units run anywhere, in any order, any number of times, and one call finishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

_Result_co = TypeVar("_Result_co", covariant=True)

UnitProgress = Callable[[int, int], None]
"""Progress callback of an engine: the number of units done, and the total."""


class UnitJob(Protocol[_Result_co]):
    """A job of units, as engines see it; `PackJob` is one."""

    @property
    def num_units(self) -> int:
        """Number of units."""

    def missing(self) -> Sequence[int]:
        """Return the numbers of units that must still run."""

    def task(self, number: int) -> Callable[[], Any]:
        """Return a unit as a callable that can be pickled, is small, and returns a small result."""

    def finish(self) -> _Result_co:
        """Check that all units have run, and make their result visible; an error names missing units."""
