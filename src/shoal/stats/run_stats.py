"""The result of ``stats()``: a dict that notebooks show with the bottleneck first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from shoal.plugins.displays import as_html


class RunStats(dict[str, Any]):
    """Counters and rates by name: a dict for code, and a display for people.

    >>> stats = RunStats(num_samples=3) | {"num_batches": 1}
    >>> stats == {"num_samples": 3, "num_batches": 1}
    True
    """

    def __or__(self, more: Mapping[str, Any]) -> Self:  # type: ignore[override]  # keys are texts
        """Return both, still with a display."""
        return type(self)({**self, **more})

    def _repr_html_(self) -> str:
        return as_html("stats", self)
