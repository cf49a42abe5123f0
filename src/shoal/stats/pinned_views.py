"""What views keep in memory after the budget let it go.

A view of a few bytes keeps all of its chunk. The budget knows nothing of that: it lets go of a chunk when the last of
its samples was delivered.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pins"]


class Pins:
    """The bytes of chunks that were let go and that views keep; views may be freed in any thread."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._refs: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self._numbers = itertools.count()

    @property
    def num_bytes(self) -> int:
        """So many now."""
        return sum(list(self._sizes.values()))

    def keep(
        self, array: weakref.ref[NDArray[np.uint8]], *, refer: Any = weakref.ref, bind: Callable[..., Any] = partial
    ) -> None:
        """These bytes were let go; count them for as long as something keeps them.

        What it needs comes with it: where Python ends, records may outlive the names of this module.
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
