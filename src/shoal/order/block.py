"""Tumbling blocks: groups of permuted chunks, each group permuted as a whole (annbatch, Marin; for comparison)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute_each, unpermute_each
from shoal.order.permuted_chunks import ChunkLine
from shoal.order.protocol import as_ids, as_span, as_whole, check_chunk_samples
from shoal.order.seeds import check_epoch, check_seed, key, keys

_STRETCH = 1 << 16


@dataclass(frozen=True, slots=True)
class Block:
    """Groups of ``chunks`` random chunks, one after the other, all samples of a group permuted.

    With the memory of a window of as many chunks it mixes half as well, and while one block is in use the next has to
    be read beside it.

    >>> sorted(Block(chunks=2).bind([2, 3, 4]).ids(0, 9).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    name: ClassVar[str] = "block"
    version: ClassVar[int] = 1

    chunks: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunks", as_whole("chunks", self.chunks))
        if self.chunks < 1:
            msg = f"a block needs at least 1 chunk; got chunks={self.chunks}"
            raise UsageError(msg)

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters of this order that a state keeps."""
        return {"chunks": self.chunks}

    def kept_bytes(self, num_samples: int) -> int:  # noqa: ARG002
        """Return the bytes a bound order keeps beside its chunk tables: none; ids are computed on request."""
        return 0

    def making_bytes(self, num_samples: int) -> int:  # noqa: ARG002
        """Return the bytes needed beside them to make a span: none, since there are no spans."""
        return 0

    def makings(self, num_samples: int) -> range:  # noqa: ARG002
        """Return the positions of spans that are made while samples are delivered: none."""
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
    span = _STRETCH

    def __init__(self, order: Block, line: ChunkLine, epoch_key: int) -> None:
        self._line = line
        self.parameters = order.parameters
        chunks = order.chunks
        self.num_samples = line.num_samples
        places = np.arange(0, len(line.starts) - 1 + chunks, chunks)
        self._starts = line.starts[np.minimum(places, len(line.starts) - 1)]
        self._keys = keys(epoch_key, np.arange(len(self._starts)))
        largest = int(np.diff(self._starts).max(initial=0))
        if largest >= 2**32:
            msg = f"a block of {chunks} chunks holds up to {largest} samples; at most 2**32 - 1 can be permuted at once"
            raise UsageError(msg, hint="fewer chunks in a block, or smaller chunks")

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at positions ``[start, stop)``; O(log num_chunks) each."""
        return self.locate(start, stop)[0]

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at positions ``[start, stop)`` and the chunk of each."""
        positions = np.arange(*as_span(start, stop, self.num_samples))
        begin, size, block_keys = self._block(positions)
        return self._line.locate(begin + permute_each(positions - begin, size, block_keys))

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each id; O(log num_chunks) each."""
        line = self._line.line_of(as_ids(ids, self.num_samples))
        begin, size, block_keys = self._block(line)
        return begin + unpermute_each(line - begin, size, block_keys)

    def _block(self, points: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """Return the first point, size and key of each point's block (a block's line points are its positions)."""
        blocks = np.searchsorted(self._starts, points, side="right") - 1
        begin = self._starts[blocks]
        return begin, self._starts[blocks + 1] - begin, self._keys[blocks]
