"""Memory of a rank's process while it streams, predicted part by part.

Beside the bytes of chunks there are the arrays of the order, the lists of upcoming samples, and the batches
themselves, which dominate with small windows or large batches. Each part is counted as the code allocates it, and
`tests/memory/test_plan_pss.py` compares the sum with what the system reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from shoal.order.orders_without_window import Block
from shoal.order.window.order import Window
from shoal.reading.schedule.lifetimes import span_positions

BYTES_OF_A_CHUNK = 80
"""Bytes per chunk of the dataset, in columns of eight bytes: seven of the chunk table, three of the order."""
# In the current span and the next, each sample has an id and a unit in a list (an integer and a pointer to it: 40
# bytes), a flag for the last of its unit, its hash, and numbers in arrays.
_BYTES_OF_A_COMING_SAMPLE = 200
# While a span is dealt there are six more arrays of its samples, and those of the samples of other ranks.
_BYTES_OF_A_CHOSEN_SAMPLE = 100
_BYTES_OF_A_DEALT_SAMPLE = 66
# Start of each sample of a chunk in use: an integer in a list.
_BYTES_OF_A_START = 40
# A thread that waits for a response: the touched part of its stack, and on its heap a response too small for a mapping
# of its own. The number of threads adapts at run time: 8 to 40 in measurements, however many requests have room.
_BYTES_OF_A_STACK = 32 << 10
_MOST_IN_A_HEAP_BYTES = 128 << 10
_MOST_THREADS = 32
# Reads are planned for the current span and the next.
_SPANS_AHEAD = 2
# The user still holds the last batch while the next one is made.
_BATCHES = 2
# Modules loaded when a stream first runs, and their data.
_CODE_BYTES = 1 << 19


class SpannedOrder(Protocol):
    """An order whose ids are made span by span."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters that decide how far ahead reads are planned."""
        ...

    def kept_bytes(self, num_samples: int) -> int:
        """Return the bytes a bound order keeps beside its chunk tables."""
        ...

    def span_bytes(self, num_samples: int) -> int:
        """Return the peak bytes while a span after the first is made; 0 if one span holds all samples."""
        ...


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of a rank's process beyond the interpreter, its modules and the index.

    ``in_use`` are decoded chunks with samples still to be delivered; ``ahead`` the read-ahead with its threads, 0 if
    the system reads ahead for the process; ``batches`` the last batch delivered and the next; ``order`` the table of
    all chunks, and spans of the order; ``coming`` the lists of upcoming samples, and the starts of those in chunks in
    use; ``spare`` the modules loaded when a stream first runs, and heap space of a released chunk in which smaller
    objects have settled. Bytes from a remote store have mappings of their own, and leave no such space.
    """

    in_use: float
    ahead: float
    batches: float
    order: float
    coming: float
    spare: float

    @property
    def total(self) -> float:
        """Total of all parts."""
        return sum(float(getattr(self, part.name)) for part in fields(self))

    def to_dict(self) -> dict[str, float]:
        """Return the parts by name, each with its unit."""
        return {f"{part.name}_bytes": float(getattr(self, part.name)) for part in fields(self)}


def planned_ahead_bytes(
    order: SpannedOrder, limit: float, *, num_samples: int, sample_bytes: float, world_size: int
) -> float:
    """Return the part of the read-ahead limit that is used: reads are planned one span ahead of the current one."""
    span = min(num_samples, span_positions(order.parameters, world_size))
    return min(limit, _SPANS_AHEAD * span / world_size * sample_bytes)


def rank_memory(
    order: SpannedOrder,
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

    With ``computes_ids`` while ids of the order are computed, else while they are dealt: the two do not coincide, and
    the window is not always fullest in the former. ``chunk_bytes`` is the mean over all chunks of the dataset, and
    ``sample_bytes`` that over the samples of a batch.

    >>> from shoal.order.window.order import Window
    >>> found = rank_memory(
    ...     Window(256), num_samples=10**6, sample_bytes=1049, num_chunks=1000, chunk_bytes=2**20, in_use=2**28,
    ...     ahead=2**25, global_batch=64, world_size=1, computes_ids=True, is_remote=True,
    ... )
    >>> round(found.total / 2**20)
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


@dataclass(frozen=True, slots=True)
class MixedWindows:
    """The orders of the sources, the samples of a round of each, and the ``parameters`` of the mixture's own order.

    Every source keeps spans of its own, and one source at a time makes another span.
    """

    orders: Sequence[Window | Block]
    num_samples_of: Sequence[int]
    num_chunks_of: Sequence[int]
    parameters: Mapping[str, Any]

    @property
    def chunks(self) -> int:
        """Chunks in the windows of all sources."""
        return sum(min(order.chunks, most) for order, most in zip(self.orders, self.num_chunks_of, strict=True))

    def kept_bytes(self, num_samples: int) -> int:
        """Return the bytes of the spans of all sources, and of one that is made; the epoch has ``num_samples``."""
        sizes = [min(each, num_samples) for each in self.num_samples_of]
        kept = [order.kept_bytes(size) for order, size in zip(self.orders, sizes, strict=True)]
        made = [order.span_bytes(size) for order, size in zip(self.orders, sizes, strict=True)]
        return sum(kept) + max((max(0, most - least) for most, least in zip(made, kept, strict=True)), default=0)

    def span_bytes(self, num_samples: int) -> int:
        """Return the same as `kept_bytes`, which includes a span that is made."""
        return self.kept_bytes(num_samples)

    def span_starts(self, num_samples: int) -> range:  # noqa: ARG002
        """Return no positions: spans of some source are made all the time."""
        return range(0)
