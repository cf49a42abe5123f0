"""What a rank's process holds while it streams, part by part, known before it begins.

Beside the bytes of chunks there are the arrays of the order, the lists of the samples that come next, and the batches
themselves; with small windows or large batches they are what counts. Each part is counted as the code makes it, and
`tests/memory/test_plan_pss.py` compares the sum with what the system counts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from shoal.order.block import Block
from shoal.order.window.order import Window
from shoal.reading.schedule.lifetimes import stretch_positions

__all__ = ["BYTES_OF_A_CHUNK", "RankMemory", "planned_ahead_bytes", "rank_memory"]

BYTES_OF_A_CHUNK = 80
"""Of each chunk of the dataset, eight bytes each: seven columns of the table of chunks, three of the order."""
# Of the stretch whose samples come and of the one after, each sample has an id and a unit in a list (an integer and
# where it is: 40 bytes), whether it is the last of its unit, its hash, and numbers in arrays.
_BYTES_OF_A_COMING_SAMPLE = 200
# While a stretch is dealt there are six arrays more of its samples, and those of the samples of other ranks.
_BYTES_OF_A_CHOSEN_SAMPLE = 100
_BYTES_OF_A_DEALT_SAMPLE = 66
# Where each sample of a chunk in use begins: an integer in a list.
_BYTES_OF_A_START = 40
# A thread that waits for an answer: of its stack what it has touched, and in its heap an answer that has no room of its
# own. How many there are is found as it goes: 8 to 40 in what was measured, however many requests there is room for.
_BYTES_OF_A_STACK = 32 << 10
_MOST_IN_A_HEAP_BYTES = 128 << 10
_MOST_THREADS = 32
# Reads are planned of the stretch whose samples come and of the one after.
_STRETCHES_AHEAD = 2
# The batch that was handed out is still in the hands of its user while the next one is made.
_BATCHES = 2
# Modules that are loaded when a stream first runs, and what they keep.
_CODE_BYTES = 1 << 19


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one rank's process beyond the interpreter, its modules and the index.

    Parameters
    ----------
    in_use
        Chunks with samples to come, as they are decoded.
    ahead
        Read ahead, with the threads that do it; nothing where the system reads ahead for the process.
    batches
        The batch that was handed out last, and the one that is made.
    order
        What makes ids: the table of all chunks, and stretches of the order.
    coming
        Which samples come next, and where those of the chunks in use begin.
    spare
        Modules that are loaded when a stream first runs; and the place in the heap of a chunk that was let go, in
        which smaller objects have settled. What comes from a remote store lies in memory of its own, and leaves no
        such places.
    """

    in_use: float
    ahead: float
    batches: float
    order: float
    coming: float
    spare: float

    @property
    def total(self) -> float:
        """All parts together."""
        return sum(float(getattr(self, part.name)) for part in fields(self))

    def to_dict(self) -> dict[str, float]:
        """The parts by name, each with its unit."""
        return {f"{part.name}_bytes": float(getattr(self, part.name)) for part in fields(self)}


def planned_ahead_bytes(
    order: Window | Block, limit: float, *, num_samples: int, dataset_bytes: float, world_size: int
) -> float:
    """How much of what may be read ahead is: reads are planned a stretch ahead of the one whose samples come."""
    stretch = min(num_samples, stretch_positions(order.parameters, world_size))
    return min(limit, _STRETCHES_AHEAD * stretch / world_size * dataset_bytes / num_samples)


def rank_memory(
    order: Window | Block,
    *,
    num_samples: int,
    num_chunks: int,
    chunk_bytes: float,
    in_use: float,
    ahead: float,
    global_batch: int,
    world_size: int,
    is_making: bool,
    is_far: bool,
) -> RankMemory:
    """What a rank holds at a moment at which it has ``in_use`` bytes of chunks in use, and reads ``ahead`` more ahead.

    That is the moment at which ids of the order are made, if so; else that at which those that were made are dealt.
    Both do not come together, and the window is not always fullest when ids are made. ``chunk_bytes`` is the mean of
    the dataset, which has ``num_chunks`` chunks.

    >>> found = rank_memory(
    ...     Window(256), num_samples=10**6, num_chunks=1000, chunk_bytes=2**20, in_use=2**28, ahead=2**25,
    ...     global_batch=64, world_size=1, is_making=True, is_far=True,
    ... )
    >>> round(found.total / 2**20)
    314
    """
    sample_bytes = chunk_bytes * num_chunks / num_samples
    stretch = min(num_samples, max(global_batch, stretch_positions(order.parameters, world_size)))
    coming = stretch * _BYTES_OF_A_COMING_SAMPLE / world_size
    if not is_making:
        coming += stretch * (_BYTES_OF_A_DEALT_SAMPLE + _BYTES_OF_A_CHOSEN_SAMPLE / world_size)
    num_threads = min(_MOST_THREADS, ahead / chunk_bytes) if is_far else 0.0
    in_a_heap = chunk_bytes if chunk_bytes <= _MOST_IN_A_HEAP_BYTES else 0.0
    return RankMemory(
        in_use=in_use,
        ahead=ahead + num_threads * (_BYTES_OF_A_STACK + in_a_heap) if is_far else 0.0,
        batches=_BATCHES * -(-global_batch // world_size) * sample_bytes,
        order=num_chunks * BYTES_OF_A_CHUNK
        + (order.making_bytes(num_samples) if is_making else order.kept_bytes(num_samples)),
        coming=coming + in_use / sample_bytes * _BYTES_OF_A_START,
        spare=_CODE_BYTES + (0.0 if is_far else min(chunk_bytes, in_use)),
    )
