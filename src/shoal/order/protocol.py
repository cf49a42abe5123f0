"""Protocols of orders: an order, and the order bound to a dataset's chunks, a seed and an epoch.

An order object (``Window(chunks=256)``) holds integers only. `Order.bind` ties it to the array of samples per chunk.
The bound order is a pure function between positions and sample ids; its only state is caches.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_flag, with_type
from shoal.errors import UsageError
from shoal.order.seeds import draws, key

LANE_BITS = 16
AXIS_BITS = 24
MOST_RANKS = 1 << 20
"""Maximum number of ranks of a run, and of canonical nodes of an order: below 2^AXIS_BITS, to limit memory."""
_MOST_STREAMS = MOST_RANKS  # in the orders of other libraries

Moved = Literal["chunks", "shards", "samples", "nothing"]
"""Unit that an order moves as a whole; determines the chunks of the order, and the reads."""

_DEAL_KEY = key(0, 0, "deal")


class BoundOrder(Protocol):
    """The order of one epoch of one dataset under one seed.

    Consecutive calls of `locate` for multiples of `span` positions cost the least per sample.

    Examples
    --------
    >>> bound = shoal.orders.Full().bind([1000], seed=0, epoch=0)
    >>> bound.num_samples, bound.ids(0, 4), bound.positions(bound.ids(0, 4))
    (1000, array([457,  12, 140, 666]), array([0, 1, 2, 3]))
    """

    @property
    def num_samples(self) -> int:
        """Number of positions in the epoch."""

    @property
    def span(self) -> int:
        """Number of positions that are cheap to request at once."""

    @property
    def num_canonical_nodes(self) -> int:
        """Number of shares of the dataset over which positions alternate; 1 without shares."""

    @property
    def version(self) -> int:
        """Version number; changes with every change of ids for the same arguments."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Resolved parameters of the order."""

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``[start, stop)``, shape (stop - start,)."""

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample ids at positions ``[start, stop)`` and the chunk that holds each."""

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each sample id, the inverse of `ids`; shape (len(ids),)."""


@runtime_checkable
class Laned(Protocol):
    """A bound order whose chunks run side by side in lanes; a lane holds one chunk at any time."""

    def lanes(self, chunks: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Return the lane of each chunk, spread over all 16 bits; chunks that mix have different lanes."""


@runtime_checkable
class ByNode(Protocol):
    """A bound order that makes the samples of some canonical nodes without the samples of the others."""

    def locate_in(self, start: int, stop: int, nodes: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return `BoundOrder.locate` for the positions of consecutive canonical nodes only, in the same order."""


@runtime_checkable
class Narrowing(Protocol):
    """A bound order that keeps spans, and can keep shorter spans."""

    def narrow(self, positions: int) -> None:
        """Limit spans to about this many positions, for a caller that uses few positions at a time."""


@runtime_checkable
class Dealing(Protocol):
    """A bound order with its own division of a batch among ranks; positions do not alternate over nodes."""

    def axis(
        self, positions: NDArray[np.int64], chunks: NDArray[np.int64], batches: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        """Return a sort key below 2^`AXIS_BITS` for each sample; ranks get consecutive parts of the sorted batch.

        Positions ascend within a batch; ``batches`` are numbered from 0.
        """


@runtime_checkable
class Weighing(Protocol):
    """A bound order that knows the amount of computation for each sample."""

    def weights(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the weight of the sample at each position, same shape."""


@runtime_checkable
class Changing(Protocol):
    """A bound order with changing frequencies of kinds of samples, such as the weights of a mixture's sources."""

    @property
    def changes(self) -> Sequence[int]:
        """Ascending positions after 0 where frequencies change; samples before and after a change are kept apart."""


@runtime_checkable
class Repeating(Protocol):
    """A bound order in which a sample may have several positions; `positions` returns the first position."""

    def first_between(self, sample_id: int, start: int, stop: int) -> int:
        """Return the first position in ``[start, stop)`` with this sample; -1 without such a position."""


class Renumbered(ABC):
    """A bound order that maps the ids of another bound order, position by position."""

    def __init__(self, numbered: BoundOrder) -> None:
        self.numbered = numbered
        self.num_samples = numbered.num_samples
        self.span = numbered.span
        self.version = numbered.version
        self.parameters = numbered.parameters
        self.num_canonical_nodes = numbered.num_canonical_nodes

    @abstractmethod
    def renumbered(
        self, numbers: NDArray[np.int64], chunks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample id and the chunk for each id and chunk of the numbered order."""

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample ids at positions ``[start, stop)`` and the chunk of each."""
        return self.renumbered(*self.numbered.locate(start, stop))

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``[start, stop)``."""
        return self.locate(start, stop)[0]


def first_between(order: BoundOrder, sample_id: int, start: int, stop: int) -> int:
    """Return the first position in ``[start, stop)`` of an order with this sample; -1 without such a position."""
    if isinstance(order, Repeating):
        return order.first_between(sample_id, start, stop)
    position = int(order.positions(np.array([sample_id]))[0])
    return position if start <= position < stop else -1


def innermost(order: BoundOrder) -> BoundOrder:
    """Return the order below all renumberings."""
    while isinstance(order, Renumbered):
        order = order.numbered
    return order


def locate_in(
    order: BoundOrder, start: int, stop: int, nodes: range
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """`ByNode.locate_in` of an order below renumberings; None for an order that always makes all nodes."""
    if isinstance(order, Renumbered):
        located = locate_in(order.numbered, start, stop, nodes)
        return None if located is None else order.renumbered(*located)
    return order.locate_in(start, stop, nodes) if isinstance(order, ByNode) else None


def narrow(order: BoundOrder, positions: int) -> None:
    """Limit the spans of an order with spans to about this many positions."""
    if isinstance(spanned := innermost(order), Narrowing):
        spanned.narrow(positions)


def lanes_of(order: BoundOrder, chunks: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the lane of each chunk in `LANE_BITS` bits; a fixed hash of the chunk for orders without lanes."""
    order = innermost(order)
    if isinstance(order, Laned):
        return order.lanes(chunks).astype(np.uint64)
    return draws(_DEAL_KEY, chunks) >> np.uint64(64 - LANE_BITS)


def node_and_lane(
    order: BoundOrder, positions: NDArray[np.int64], chunks: NDArray[np.int64], *, bits: int
) -> NDArray[np.uint64]:
    """Return the canonical node of each position and the lane of its chunk, combined in a fraction of ``2**bits``."""
    num_nodes = order.num_canonical_nodes
    nodes = (positions % num_nodes).astype(np.uint64)
    lines = nodes << np.uint64(LANE_BITS) | lanes_of(order, chunks)
    return (lines << np.uint64(bits - LANE_BITS)) // np.uint64(num_nodes)


class Order(Protocol):
    """An order of the samples of an epoch, not yet bound to a dataset.

    Examples
    --------
    >>> order = shoal.orders.Window(chunks=256, num_canonical_nodes=16)
    >>> order.bind([100] * 10_000, seed=0, epoch=0).ids(0, 4)
    array([218076, 978623,   2646, 501666])
    """

    moves: ClassVar[Moved]
    """An order that moves shards is bound to whole shards as chunks."""

    @property
    def name(self) -> str:
        """Name of the order in `Dataset.shuffle` and in states."""

    @property
    def version(self) -> int:
        """Version number; changes with every change of ids for the same arguments."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Arguments, as JSON types, that distinguish orders of this name and fit into a state."""

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> BoundOrder:
        """Return the order of an epoch of a dataset; chunk ``i`` of the dataset holds ``chunk_samples[i]`` samples.

        Chunks and sample ids are numbered in storage order: chunk 0 holds the ids from 0.
        """


@runtime_checkable
class BindsBetween(Protocol):
    """An order that binds to chunk borders; an index stores borders, so chunk sizes need not be computed."""

    def bind_between(self, borders: NDArray[np.int64], *, seed: int = 0, epoch: int = 0) -> BoundOrder:
        """Bind as `Order.bind`, to chunks with the sample ids ``[borders[i], borders[i + 1])``.

        The order keeps the array, of shape (num_chunks + 1,); the array must not change.
        """


@runtime_checkable
class OwnLength(Protocol):
    """An order with epochs that repeat or drop samples, so the length of an epoch differs from the dataset's."""

    def num_positions(self, chunk_samples: NDArray[np.int64]) -> int:
        """Return the number of positions of an epoch, the same for every epoch and seed."""


class Adopted(NamedTuple):
    """The order, seed, epoch and position to continue another library's run."""

    order: Order
    seed: int
    epoch: int
    position: int


@runtime_checkable
class Adopting(Protocol):
    """An order of another library that can read the library's checkpoints."""

    def adopted(self, checkpoint: Mapping[str, Any], chunk_samples: NDArray[np.int64], seed: int) -> Adopted | None:
        """Return the start of the run that saved a checkpoint; None for other values.

        Raises `StateError` if the library saved the checkpoint, but with another seed or order.
        """


def check_chunk_samples(chunk_samples: Any) -> NDArray[np.int64]:
    """Return the samples per chunk as an int64 array, shape (num_chunks,), or raise `UsageError`."""
    array = np.asarray(chunk_samples)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        msg = f"chunk_samples must be a one-dimensional array of integers; got {array.dtype} of shape {array.shape}"
        raise UsageError(msg)
    if array.size and array.min() < 0:
        worst = int(np.argmin(array))
        raise UsageError(f"chunk_samples must not be negative; chunk {worst} has {array[worst]}")
    return array.astype(np.int64, copy=False)


def chunk_starts(chunk_samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first sample id of each chunk, then the number of samples; shape (num_chunks + 1,)."""
    starts = np.zeros(len(chunk_samples) + 1, dtype=np.int64)
    np.cumsum(chunk_samples, out=starts[1:])
    return starts


def as_whole(name: str, value: object) -> int:
    """Convert an integer of Python or numpy to an int of 64 bits, or raise `UsageError`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # raises TypeError if it is not an integer
    except TypeError:
        raise UsageError(f"{name} must be an integer; got {with_type(value)}") from None
    if not -(2**63) <= number < 2**63:
        raise UsageError(f"{name} must be an integer below 2**63; got an integer of {number.bit_length()} bits")
    return number


def as_within(name: str, value: object, least: int, most: int, *, hint: str = "") -> int:
    """Convert an integer of Python or numpy to an int from ``least`` to ``most``, or raise `UsageError`.

    >>> as_within("alike", 8, 1, 100)
    8
    """
    number = as_whole(name, value)
    if not least <= number <= most:
        raise UsageError(f"{name} must be from {least:,} to {most:,}; got {number:,}", hint=hint)
    return number


def check_counts(order: Any, **least: int) -> None:
    """Convert arguments of a dataclass to ints of at least these values, or raise `UsageError`; None stays."""
    for field in fields(order):
        value = getattr(order, field.name)
        if field.name in least and not (value is None and field.default is None):
            number = as_whole(field.name, value)
            if number < least[field.name]:
                raise UsageError(f"{field.name} must be at least {least[field.name]}; got {number}")
            object.__setattr__(order, field.name, number)


def check_flags(order: Any) -> None:
    """Convert the arguments of a dataclass with the default True or False to bools, or raise `UsageError`."""
    for field in fields(order):
        if isinstance(field.default, bool):
            object.__setattr__(order, field.name, as_flag(field.name, getattr(order, field.name)))


def check_streams(**counts: int) -> None:
    """Raise `UsageError` if the product of these numbers of nodes, ranks and workers exceeds 2^20 streams."""
    product = math.prod(max(1, count) for count in counts.values())
    if product > _MOST_STREAMS:
        msg = f"{' * '.join(counts)} must be at most 2**20; got {product}"
        raise UsageError(msg, hint="give the numbers of the original run")


def as_span(start: int, stop: int, num_samples: int) -> tuple[int, int]:
    """Return the half-open span as ints, or raise `UsageError` if it leaves ``[0, num_samples)``."""
    first, end = as_whole("the first position", start), as_whole("the position to stop at", stop)
    if not 0 <= first <= end <= num_samples:
        raise UsageError(f"positions [{first}, {end}) do not exist: an epoch has positions [0, {num_samples})")
    return first, end


def as_ids(ids: Any, num_samples: int) -> NDArray[np.int64]:
    """Return the ids as an int64 array, or raise `UsageError` for an id outside of ``[0, num_samples)``."""
    array = np.atleast_1d(np.asarray(ids))
    if array.size and array.dtype.kind not in "iu":
        raise UsageError(f"sample ids must be integers; got {array.dtype}")
    array = array.astype(np.int64, copy=False)
    if array.size and not (array.min() >= 0 and array.max() < num_samples):
        raise UsageError(f"sample ids must lie in [0, {num_samples}); got {array.min()} to {array.max()}")
    return array
