"""Predict the memory of a rank's process while it streams.

Chunks, arrays of the order, lists of upcoming samples, and batches take memory. Each part is counted as the code
allocates it, and `tests/memory/test_plan_pss.py` compares the sum with the system's figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from shoal.order.orders_without_window import Block
from shoal.order.window.order import Window
from shoal.reading.schedule.lifetimes import span_positions

BYTES_OF_A_CHUNK = 80
"""Bytes per chunk of the dataset, in columns of eight bytes: seven of the chunk table, three of the order."""
# A sample of the current or the next span has an id and a unit in a list (an integer and a pointer: 40 bytes), a flag
# for the last of its unit, a hash, and numbers in arrays.
_BYTES_OF_A_COMING_SAMPLE = 200
# Dealing a span takes six more arrays of its samples, and arrays of the samples of other ranks.
_BYTES_OF_A_CHOSEN_SAMPLE = 100
_BYTES_OF_A_DEALT_SAMPLE = 66
# The start of a sample of a chunk in use is an integer in a list.
_BYTES_OF_A_START = 40
# A thread that waits for a response touches a part of its stack, and has a small response on its heap. The number of
# threads adapts at run time: 8 to 40 were measured, however many requests have room.
_BYTES_OF_A_STACK = 32 << 10
_MOST_IN_A_HEAP_BYTES = 128 << 10
_MOST_THREADS = 32
# Reads are planned for the current span and the next.
_SPANS_AHEAD = 2
# The user holds the last batch while the next batch is made.
_BATCHES = 2
# Modules loaded when a stream first runs, and their data.
_CODE_BYTES = 1 << 19


@dataclass(frozen=True, slots=True)
class MixedWindows:
    """The windows of all sources of a mixture; ``parameters`` belong to the order of the mixture.

    ``num_samples_of`` counts the samples of one round of each source. Every source keeps its own spans, and one source
    at a time makes another span.
    """

    orders: Sequence[Window | Block]
    num_samples_of: Sequence[int]
    num_chunks_of: Sequence[int]
    parameters: Mapping[str, Any]

    @property
    def chunks(self) -> int:
        """Chunks in the windows of all sources."""
        return sum(min(order.chunks, num) for order, num in zip(self.orders, self.num_chunks_of, strict=True))

    def kept_bytes(self, num_samples: int) -> int:
        """Return the bytes of the spans of all sources and of one new span; the epoch has ``num_samples``."""
        sizes = [min(round_samples, num_samples) for round_samples in self.num_samples_of]
        kept = [order.kept_bytes(size) for order, size in zip(self.orders, sizes, strict=True)]
        peaks = [order.span_bytes(size) for order, size in zip(self.orders, sizes, strict=True)]
        return sum(kept) + max((max(0, peak - least) for peak, least in zip(peaks, kept, strict=True)), default=0)

    def span_bytes(self, num_samples: int) -> int:
        """Return `kept_bytes`, which includes the new span."""
        return self.kept_bytes(num_samples)

    def span_starts(self, num_samples: int) -> range:  # noqa: ARG002
        """Return no positions: the spans of different sources start at different positions."""
        return range(0)


PlannedOrder: TypeAlias = Window | Block | MixedWindows
"""An order that uses some chunks at a time and makes its ids span by span."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of a rank's process beyond the interpreter, its modules and the index.

    ``in_use``: decoded chunks that still have samples to deliver. ``ahead``: the read-ahead with its threads; 0 if the
    system reads ahead. ``batches``: the last batch and the next. ``order``: the table of all chunks, and spans of the
    order. ``coming``: the lists of upcoming samples, and the starts of samples in chunks in use. ``spare``: modules
    that a first stream loads, and heap space of a released chunk that smaller objects occupy (never for remote bytes,
    which have their own mappings).
    """

    in_use: float
    ahead: float
    batches: float
    order: float
    coming: float
    spare: float

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(float(getattr(self, part.name)) for part in fields(self))

    def to_dict(self) -> dict[str, float]:
        """Return the bytes of each part by name."""
        return {f"{part.name}_bytes": float(getattr(self, part.name)) for part in fields(self)}


def planned_ahead_bytes(
    order: PlannedOrder, limit: float, *, num_samples: int, sample_bytes: float, world_size: int
) -> float:
    """Return the used part of the read-ahead limit: reads are planned one span ahead of the current span."""
    span = min(num_samples, span_positions(order.parameters, world_size))
    return min(limit, _SPANS_AHEAD * span / world_size * sample_bytes)


def rank_memory(
    order: PlannedOrder,
    *,
    num_samples: int,
    sample_bytes: float,
    num_chunks: int,
    chunk_bytes: float,
    in_use: float,
    ahead: float,
    global_batch: int,
    world_size: int,
    computes_ids: bool,
    is_remote: bool,
) -> RankMemory:
    """Return the memory of a rank with ``in_use`` bytes of chunks in use and ``ahead`` more bytes read ahead.

    ``computes_ids`` is True while the order computes ids, and False while ids are dealt to ranks; the two never
    coincide. ``chunk_bytes`` is the mean of all chunks, ``sample_bytes`` the mean of the samples of a batch.

    >>> from shoal.order.window.order import Window
    >>> memory = rank_memory(
    ...     Window(256), num_samples=10**6, sample_bytes=1049, num_chunks=1000, chunk_bytes=2**20, in_use=2**28,
    ...     ahead=2**25, global_batch=64, world_size=1, computes_ids=True, is_remote=True,
    ... )
    >>> round(memory.total / 2**20)
    313
    """
    span = min(num_samples, max(global_batch, span_positions(order.parameters, world_size)))
    coming = span * _BYTES_OF_A_COMING_SAMPLE / world_size
    if not computes_ids:
        coming += span * (_BYTES_OF_A_DEALT_SAMPLE + _BYTES_OF_A_CHOSEN_SAMPLE / world_size)
    num_threads = min(_MOST_THREADS, ahead / chunk_bytes) if is_remote else 0.0
    in_a_heap = chunk_bytes if chunk_bytes <= _MOST_IN_A_HEAP_BYTES else 0.0
    return RankMemory(
        in_use=in_use,
        ahead=ahead + num_threads * (_BYTES_OF_A_STACK + in_a_heap) if is_remote else 0.0,
        batches=_BATCHES * -(-global_batch // world_size) * sample_bytes,
        order=num_chunks * BYTES_OF_A_CHUNK
        + (order.span_bytes(num_samples) if computes_ids else order.kept_bytes(num_samples)),
        coming=coming + in_use / sample_bytes * _BYTES_OF_A_START,
        spare=_CODE_BYTES + (0.0 if is_remote else min(chunk_bytes, in_use)),
    )
