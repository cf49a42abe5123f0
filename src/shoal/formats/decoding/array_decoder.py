"""Decoders to arrays that write into memory of the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Memory(Protocol):
    """Memory for the arrays of several values, which are counted from 0."""

    @property
    def likely_shape(self) -> tuple[int, ...] | None:
        """The shape of earlier values of the batch; None if there are none."""
        ...

    def __call__(self, number: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return memory for the array of one value."""
        ...

    def all(self, shape: tuple[int, ...], dtype: Any) -> list[NDArray[Any]]:
        """Return memory for the arrays of all values, if they are alike."""
        ...


@dataclass(frozen=True, slots=True)
class ArrayDecoder:
    """A decoder of bytes to arrays or tensors.

    ``into`` decodes several values. Each value is in the memory that its second argument returned last for the value.
    """

    into: Callable[[Sequence[bytes], Memory], list[Any]]

    def __call__(self, data: bytes) -> Any:
        """Return one value, in memory of its own."""
        return self.into([data], _OWN)[0]


class _OwnMemory:
    """New memory for one value."""

    likely_shape = None

    def __call__(self, number: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:  # noqa: ARG002
        return np.empty(shape, dtype)

    def all(self, shape: tuple[int, ...], dtype: Any) -> list[NDArray[Any]]:
        return [np.empty(shape, dtype)]


_OWN = _OwnMemory()
