"""Accounting of memory that views keep alive after the budget has released it.

A view of a few bytes keeps its whole chunk alive. The budget does not see that: it releases a chunk once the last of
its samples has been delivered.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Pins:
    """Bytes of released chunks that views keep alive; views may be freed in any thread."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._refs: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self._numbers = itertools.count()

    @property
    def num_bytes(self) -> int:
        """Bytes kept alive now."""
        return sum(list(self._sizes.values()))

    def keep(
        self, array: weakref.ref[NDArray[np.uint8]], *, refer: Any = weakref.ref, bind: Callable[..., Any] = partial
    ) -> None:
        """Count released bytes for as long as something keeps them alive.

        Its dependencies are arguments, because records may outlive the names of this module when Python exits.
        """
        number = next(self._numbers)
        kept = array()
        if kept is None:
            return
        self._sizes[number] = kept.nbytes
        self._refs[number] = refer(kept, bind(self._freed, number))
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)

    def _freed(self, number: int, _: weakref.ref[NDArray[np.uint8]]) -> None:
        self._sizes.pop(number, None)
        self._refs.pop(number, None)
