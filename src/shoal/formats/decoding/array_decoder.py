"""Decoders to arrays that write into memory of the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.formats.decoding.crops import PartOf


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

    Decoders of images can decode a part of each image: ``into`` then takes functions from height and width to the part.
    """

    into: Callable[..., list[Any]]
    can_crop: bool = False

    def cropped(self, parts: Sequence[PartOf]) -> ArrayDecoder:
        """Return the decoder of parts of the next images; decoders of other data stay as they are."""
        return ArrayDecoder(partial(self.into, parts=parts)) if self.can_crop else self

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
