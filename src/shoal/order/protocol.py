"""What an order is: a description that is bound to a dataset's chunks, a seed and an epoch, and then says the ids.

An order object (``Window(chunks=256)``) holds integers only. `Order.bind` ties it to the plain array of samples per
chunk; the bound order is a pure function between positions and sample ids, which keeps nothing but caches.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError

__all__ = ["BoundOrder", "Laned", "Order", "as_ids", "as_stretch", "as_whole", "check_chunk_samples", "chunk_starts"]


class BoundOrder(Protocol):
    """The order of one epoch of one dataset under one seed.

    Consecutive calls of `locate` for multiples of `stretch` positions cost the least per sample.
    """

    @property
    def num_samples(self) -> int:
        """Positions of the epoch."""
        ...

    @property
    def stretch(self) -> int:
        """Positions that are cheap to ask for at once."""
        ...

    @property
    def num_canonical_nodes(self) -> int:
        """Shares of the dataset that positions alternate over; 1 where there are none."""
        ...

    @property
    def version(self) -> int:
        """Changes whenever the same arguments would give other ids."""
        ...

    @property
    def parameters(self) -> Mapping[str, int]:
        """The order's parameters, resolved."""
        ...

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """The sample ids at positions ``[start, stop)``, shape (stop - start,)."""
        ...

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sample ids at positions ``[start, stop)`` and the chunk that holds each."""
        ...

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position of each sample id: the inverse of `ids`, shape (len(ids),)."""
        ...


@runtime_checkable
class Laned(Protocol):
    """A bound order whose chunks run side by side in lanes, each lane equally full at any time."""

    def lanes(self, chunks: NDArray[np.int64]) -> NDArray[np.uint16]:
        """The lane of each chunk, spread over all of 16 bits; chunks that mix with each other have different ones."""
        ...


class Order(Protocol):
    """A way of ordering the samples of an epoch, not yet tied to a dataset."""

    @property
    def name(self) -> str:
        """What the order goes by in `Dataset.shuffle` and in states."""
        ...

    @property
    def version(self) -> int:
        """Changes whenever the same arguments would give other ids."""
        ...

    @property
    def parameters(self) -> Mapping[str, int]:
        """What tells two orders of this name apart, as integers that fit into a state."""
        ...

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> BoundOrder:
        """The order of epoch ``epoch`` of a dataset whose chunk ``i`` holds ``chunk_samples[i]`` samples.

        Chunks are numbered, and sample ids counted, in storage order: chunk 0 holds the ids from 0.
        """
        ...


def check_chunk_samples(chunk_samples: Any) -> NDArray[np.int64]:
    """The samples per chunk as an int64 array, shape (num_chunks,), or an error that says what it must be."""
    array = np.asarray(chunk_samples)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        msg = f"chunk_samples must be a one-dimensional array of integers; got {array.dtype} of shape {array.shape}"
        raise UsageError(msg)
    if array.size and array.min() < 0:
        worst = int(np.argmin(array))
        msg = f"chunk_samples must not be negative; chunk {worst} has {array[worst]}"
        raise UsageError(msg)
    return array.astype(np.int64, copy=False)


def chunk_starts(chunk_samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first sample id of each chunk, and the number of samples at the end; shape (num_chunks + 1,)."""
    starts = np.zeros(len(chunk_samples) + 1, dtype=np.int64)
    np.cumsum(chunk_samples, out=starts[1:])
    return starts


def as_whole(name: str, value: object) -> int:
    """A whole number of Python or numpy as one of Python, which JSON takes and no width bounds; or an error."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # the point is to find out
    except TypeError:
        msg = f"{name} must be an integer; got {value!r} of type {type(value).__name__}"
        raise UsageError(msg) from None


def as_stretch(start: int, stop: int, num_samples: int) -> tuple[int, int]:
    """The half-open stretch as ints, or an error when it leaves ``[0, num_samples)``."""
    first, end = operator.index(start), operator.index(stop)
    if not 0 <= first <= end <= num_samples:
        msg = f"positions [{first}, {end}) were asked for; an epoch has positions [0, {num_samples})"
        raise UsageError(msg)
    return first, end


def as_ids(ids: Any, num_samples: int) -> NDArray[np.int64]:
    """The ids as an int64 array, or an error when one is not in ``[0, num_samples)``."""
    array = np.atleast_1d(np.asarray(ids))
    if array.size and array.dtype.kind not in "iu":
        msg = f"sample ids must be integers; got {array.dtype}"
        raise UsageError(msg)
    array = array.astype(np.int64, copy=False)
    if array.size and not (array.min() >= 0 and array.max() < num_samples):
        msg = f"sample ids must lie in [0, {num_samples}); got {array.min()} to {array.max()}"
        raise UsageError(msg)
    return array
