"""Decoders to arrays that write into memory of the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

AllocateNth = Callable[[int, tuple[int, ...], Any], NDArray[Any]]
"""A function that returns memory for the value of a number, given the shape and the type of its array."""


@dataclass(frozen=True, slots=True)
class ArrayDecoder:
    """A decoder of bytes to arrays or tensors.

    ``into`` decodes several values. Each value is in the memory of the last call of its second argument for the value.
    """

    into: Callable[[Sequence[bytes], AllocateNth], list[Any]]

    def __call__(self, data: bytes) -> Any:
        """Return one value, in memory of its own."""
        return self.into([data], _new_memory)[0]


def _new_memory(_: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    return np.empty(shape, dtype)
