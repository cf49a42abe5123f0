"""Orders without a window: storage order, a full permutation, blocks of chunks, and a shuffle buffer.

Blocks and the buffer are the shuffles of other loaders, made exact and seekable, for comparison with the window.

*Tumbling blocks* (annbatch, Marin): groups of permuted chunks, each group permuted as a whole.

*The shuffle buffer*: a reservoir whose every step can be computed in advance. The chunks come in random order, one
after another. The first ``B`` samples fill the slots of a buffer. From then on step ``t`` picks a slot at random,
emits its sample and puts the next sample of the stream, number ``B + t``, there. At the end the slots are emptied in
random order.

The slot of step ``t`` is a pure function of ``t``. So the output is known without holding a buffer: the sample of the
last step before ``t`` with the same slot, or the slot's first sample. A seek goes back until every needed slot was
found: about ``B log B`` steps of arithmetic, without data.

Contrary to common belief, a reservoir may move a sample by more than ``B`` positions: a sample leaves at most ``B``
positions early, but stays for ``B`` steps only on average, with an exponential tail.

References
----------
J. S. Vitter, "Random sampling with a reservoir", 1985, for the name. TensorFlow's ``shuffle(buffer_size)`` and Hugging
Face ``datasets`` up to 5.0 have related buffers, but not identical ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute, permute_each, unpermute, unpermute_each
from shoal.order.arrays.reservoir import Reservoir, found_by_scan
from shoal.order.protocol import Moved, as_ids, as_span, as_whole, check_chunk_samples, chunk_starts
from shoal.order.seeds import check_epoch, check_seed, draws, key, keys

_SPAN = 1 << 16


@dataclass(frozen=True, slots=True)
class Sequential:
    """Samples in storage order, in every epoch.

    Examples
    --------
    >>> shoal.orders.Sequential().bind([2, 3, 4]).ids(4, 9).tolist()
    [4, 5, 6, 7, 8]
    """

    name: ClassVar[str] = "none"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "nothing"

    @property
    def parameters(self) -> dict[str, int]:
        """No parameters."""
        return {}

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> SequentialEpoch:
        """Return the order of one epoch; seed and epoch make no difference."""
        check_seed(seed)
        check_epoch(epoch)
        return SequentialEpoch(check_chunk_samples(chunk_samples))


@dataclass(frozen=True, slots=True)
class Full:
    """A random permutation of the whole dataset: the perfect shuffle, at one read per sample.

    O(1) memory and about 50 ns per sample; the cost is in reading, since neighbours share no chunk.

    Examples
    --------
    >>> shoal.orders.Full().bind([2, 3, 4], seed=1).ids(0, 9).tolist()
    [7, 2, 3, 5, 6, 0, 8, 4, 1]
    """

    name: ClassVar[str] = "full"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "samples"

    @property
    def parameters(self) -> dict[str, int]:
        """No parameters."""
        return {}

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> FullEpoch:
        """Return the order of one epoch."""
        return FullEpoch(check_chunk_samples(chunk_samples), key(check_seed(seed), check_epoch(epoch), "full"))


class _ListedEpoch(ABC):
    """An epoch that computes ids directly, and looks up their chunks."""

    version = 1
    parameters: ClassVar[dict[str, int]] = {}
    num_canonical_nodes = 1
    span = _SPAN

    def __init__(self, chunk_samples: NDArray[np.int64]) -> None:
        self._chunk_first_id = chunk_starts(chunk_samples)
        self.num_samples = int(self._chunk_first_id[-1])

    @abstractmethod
    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``[start, stop)``."""

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at positions ``[start, stop)`` and the chunk of each."""
        ids = self.ids(start, stop)
        return ids, np.searchsorted(self._chunk_first_id, ids, side="right") - 1


class SequentialEpoch(_ListedEpoch):
    """The storage order of one epoch."""

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the positions themselves."""
        return np.arange(*as_span(start, stop, self.num_samples), dtype=np.int64)

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the ids themselves."""
        return as_ids(ids, self.num_samples).copy()


class FullEpoch(_ListedEpoch):
    """The full permutation of one epoch."""

    def __init__(self, chunk_samples: NDArray[np.int64], epoch_key: int) -> None:
        super().__init__(chunk_samples)
        self._key = epoch_key

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at positions ``[start, stop)``; O(1) additional memory."""
        first, end = as_span(start, stop, self.num_samples)
        return permute(np.arange(first, end), self.num_samples, self._key)

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each id; O(1) per id."""
        return unpermute(as_ids(ids, self.num_samples), self.num_samples, self._key)


class ChunkLine:
    """Chunks in random order on a line, with their samples; 24 bytes per chunk.

    ``starts`` has shape (num_chunks + 1,): the number of samples before each chunk of the line.
    """

    def __init__(self, chunk_samples: NDArray[np.int64], line_key: int) -> None:
        self._key = line_key
        self._first_id = chunk_starts(chunk_samples)
        self._chunk_at = permute(np.arange(len(chunk_samples)), len(chunk_samples), line_key)
        self.starts = chunk_starts(chunk_samples[self._chunk_at])
        self.num_samples = int(self.starts[-1])

    def locate(self, line: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample id at each point of the line, and its chunk; O(log num_chunks) per point."""
        at = np.searchsorted(self.starts, line, side="right") - 1
        chunks = self._chunk_at[at]
        return self._first_id[chunks] + line - self.starts[at], chunks

    def line_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the point on the line of each sample id; O(log num_chunks) per id."""
        chunks = np.searchsorted(self._first_id, ids, side="right") - 1
        at = unpermute(chunks, len(self._chunk_at), self._key)
        line: NDArray[np.int64] = self.starts[at] + ids - self._first_id[chunks]
        return line


_SPAN = 1 << 16


@dataclass(frozen=True, slots=True)
class Block:
    """Groups of ``chunks`` random chunks, one after another, all samples of a group permuted.

    With equal memory, blocks mix half as well as a window, because the next block is read while a block is in use.

    Examples
    --------
    >>> shoal.orders.Block(chunks=2).bind([2, 3, 4], seed=1).ids(0, 9).tolist()
    [8, 7, 2, 5, 4, 6, 3, 1, 0]
    """

    name: ClassVar[str] = "block"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "chunks"

    chunks: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunks", as_whole("chunks", self.chunks))
        if self.chunks < 1:
            raise UsageError(f"a block needs at least 1 chunk; got chunks={self.chunks}")

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters of this order that a state keeps."""
        return {"chunks": self.chunks}

    def kept_bytes(self, num_samples: int) -> int:  # noqa: ARG002
        """Return 0: a bound order keeps only its chunk tables."""
        return 0

    def span_bytes(self, num_samples: int) -> int:  # noqa: ARG002
        """Return 0: there are no spans to make."""
        return 0

    def span_starts(self, num_samples: int) -> range:  # noqa: ARG002
        """Return no positions: there are no spans."""
        return range(0)

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> BlockEpoch:
        """Return the order of one epoch; O(num_chunks) time and memory."""
        samples = check_chunk_samples(chunk_samples)
        seed, epoch = check_seed(seed), check_epoch(epoch)
        line = ChunkLine(samples, key(seed, epoch, "block-place"))
        return BlockEpoch(self, line, key(seed, epoch, "block"))


class BlockEpoch:
    """The order of tumbling blocks of one epoch."""

    version = Block.version
    num_canonical_nodes = 1
    span = _SPAN

    def __init__(self, order: Block, line: ChunkLine, epoch_key: int) -> None:
        self._line = line
        self.parameters = order.parameters
        chunks = order.chunks
        self.num_samples = line.num_samples
        num_chunks = len(line.starts) - 1
        step = min(chunks, max(1, num_chunks))  # a block may be much larger than the dataset
        borders = np.arange(0, num_chunks + step, step)
        self._starts = line.starts[np.minimum(borders, num_chunks)]
        self._keys = keys(epoch_key, np.arange(len(self._starts)))
        largest = int(np.diff(self._starts).max(initial=0))
        if largest >= 2**32:
            msg = f"a block of {chunks} chunks holds up to {largest} samples; at most 2**32 - 1 can be permuted at once"
            raise UsageError(msg, hint="fewer chunks in a block, or smaller chunks")

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at positions ``[start, stop)``; O(log num_chunks) per id."""
        return self.locate(start, stop)[0]

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at positions ``[start, stop)`` and the chunk of each."""
        positions = np.arange(*as_span(start, stop, self.num_samples))
        begin, size, block_keys = self._block(positions)
        return self._line.locate(begin + permute_each(positions - begin, size, block_keys))

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each id; O(log num_chunks) per id."""
        line = self._line.line_of(as_ids(ids, self.num_samples))
        begin, size, block_keys = self._block(line)
        return begin + unpermute_each(line - begin, size, block_keys)

    def _block(self, points: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """Return the first position, the size and the key of the block of each position."""
        blocks = np.searchsorted(self._starts, points, side="right") - 1
        begin = self._starts[blocks]
        return begin, self._starts[blocks + 1] - begin, self._keys[blocks]


_MOST_SAMPLES = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Buffer:
    """A reservoir of ``samples`` samples over the chunks in random order.

    With whole shards as chunks, the order is the buffer shuffle of today's loaders.

    Examples
    --------
    >>> shoal.orders.Buffer(samples=3).bind([4, 4, 4], seed=1).ids(0, 12).tolist()
    [6, 4, 7, 9, 5, 11, 8, 1, 2, 3, 10, 0]
    """

    name: ClassVar[str] = "buffer"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "shards"

    samples: int = 1000

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", as_whole("samples", self.samples))
        if not 1 <= self.samples <= _MOST_SAMPLES:
            raise UsageError(f"a buffer holds 1 to 2**32 - 1 samples; got samples={self.samples}")

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters of this order that a state keeps."""
        return {"samples": self.samples}

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> BufferEpoch:
        """Return the order of one epoch; O(num_chunks) time and memory."""
        samples = check_chunk_samples(chunk_samples)
        seed, epoch = check_seed(seed), check_epoch(epoch)
        line = ChunkLine(samples, key(seed, epoch, "buffer-place"))
        return BufferEpoch(self, line, key(seed, epoch, "buffer"), key(seed, epoch, "buffer-end"))


class BufferEpoch:
    """The buffer order of one epoch."""

    version = Buffer.version
    num_canonical_nodes = 1

    def __init__(self, order: Buffer, line: ChunkLine, slot_key: int, end_key: int) -> None:
        self._line = line
        self.parameters = order.parameters
        self.num_samples = line.num_samples
        self._slots = min(order.samples, self.num_samples)
        self._steps = self.num_samples - self._slots
        self._slot_key, self._end_key = slot_key, end_key
        self._reservoir = Reservoir(self._slots, self._picked, np.arange, lambda numbers: numbers)
        # Samples stay long, so only a span of many buffers has all samples of a chunk.
        self.span = min(max(_SPAN, 8 * self._slots), 1 << 22)

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at positions ``[start, stop)``; O(samples) memory, O(samples log samples) time for a seek."""
        return self.locate(start, stop)[0]

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at positions ``[start, stop)`` and the chunk of each."""
        return self._line.locate(self._left(*as_span(start, stop, self.num_samples)))

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each id, by stepping through the epoch from the earliest id on: O(num_samples)."""
        points = self._line.line_of(as_ids(ids, self.num_samples))
        earliest = max(0, int(points.min(initial=self.num_samples)) - self._slots)
        return found_by_scan(self._left, points, earliest, self.num_samples)

    def _left(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the samples at positions ``[first, end)``, as points on the line of chunks."""
        samples = self._reservoir.left(min(first, self._steps), min(end, self._steps))
        if end > self._steps:
            slots = permute(np.arange(max(first, self._steps), end) - self._steps, self._slots, self._end_key)
            samples = np.concatenate([samples, self._reservoir.contents(self._steps)[slots]])
        return samples

    def _picked(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the slots that steps ``[first, end)`` pick."""
        bits = draws(self._slot_key, np.arange(first, end)) >> np.uint64(32)
        bits *= np.uint64(self._slots)
        bits >>= np.uint64(32)
        return bits.astype(np.int64)
