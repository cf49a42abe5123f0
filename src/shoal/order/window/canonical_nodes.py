"""Canonical nodes: a fixed share of the chunks for each of C nodes, independent of the machines.

All chunks are permuted once for all epochs (so that the cache of a machine stays useful in every epoch), their samples
are laid out in one line, and the line is cut into C nodes; sizes of nodes differ by at most one. The sample at global
position ``p`` is the sample at offset ``p // C`` of node ``p % C``.

A cut inside a chunk splits the chunk into *parts*; an uncut chunk is one part. Parts are numbered along the line, so
the parts of a node are consecutive.

Memory holds only the chunk and samples of each part (5 bytes per chunk of fewer than 256 samples, else 6 or 8) and one
running sum per tile of the line: at ten million chunks, touching fresh memory takes most of the time.

The idea of nodes independent of the machines is from MosaicML Streaming; in Streaming, nodes must divide the machines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.permutation import permute, unpermute
from shoal.order.protocol import chunk_starts
from shoal.order.seeds import key

_TILE = 1 << 16


class CanonicalNodes:
    """The parts of each canonical node, for one dataset and seed; takes about 0.1 us per chunk.

    Attributes
    ----------
    node_first_sample
        Start of each node on the line of all samples; shape (num_nodes + 1,).
    node_first_part, node_end_part
        Range ``[first, end)`` of each node's parts; shape (num_nodes,). A node without samples has no parts.
    node_first_offset
        Start of each node's first part inside its chunk; shape (num_nodes,).
    part_chunk, part_samples
        Chunk and number of samples of each part; shape (num_parts,), in the smallest sufficient unsigned type.
    """

    def __init__(self, chunk_first_id: NDArray[np.int64], *, seed: int, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self.chunk_first_id = chunk_first_id
        self.num_samples = int(chunk_first_id[-1])
        counts = np.full(num_nodes, self.num_samples // num_nodes, dtype=np.int64)
        counts[: self.num_samples % num_nodes] += 1
        self.node_first_sample = chunk_starts(counts)
        self._num_chunks = len(chunk_first_id) - 1
        chunk_samples = _sizes(chunk_first_id)
        self._key = key(seed, 0, "assign")
        empty = np.flatnonzero(chunk_samples == 0)
        self._empty_slots = np.sort(unpermute(empty, self._num_chunks, self._key)) if empty.size else empty
        self._cut(*self._line(chunk_samples))

    def _line(self, chunk_samples: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return chunk and samples at each slot, without empty chunks, and with room for a part at each cut."""
        num_slots = self._num_chunks - len(self._empty_slots) + self.num_nodes
        chunk_at = np.empty(num_slots, dtype=np.min_scalar_type(self._num_chunks))
        samples_at = np.zeros(num_slots, dtype=chunk_samples.dtype)
        filled = 0
        for begin in range(0, self._num_chunks, _TILE):
            numbers = np.arange(begin, min(begin + _TILE, self._num_chunks))
            chunks = permute(numbers, self._num_chunks, self._key)
            samples = chunk_samples[chunks]
            if self._empty_slots.size:
                chunks, samples = chunks[samples > 0], samples[samples > 0]
            chunk_at[filled : filled + len(chunks)] = chunks
            samples_at[filled : filled + len(chunks)] = samples
            filled += len(chunks)
        return chunk_at, samples_at

    def _cut(self, chunk_at: NDArray[Any], samples_at: NDArray[Any]) -> None:
        """Cut the line at every node's first sample; each cut inside a chunk adds a part."""
        num_slots = len(samples_at) - self.num_nodes
        tiles = [int(samples_at[i : i + _TILE].sum(dtype=np.int64)) for i in range(0, num_slots, _TILE)]
        tile_first = chunk_starts(np.array(tiles, dtype=np.int64))
        points = [_point(int(sample), samples_at[:num_slots], tile_first) for sample in self.node_first_sample]
        slots, offsets = np.array(points, dtype=np.int64).T
        inner = np.stack([slots, offsets])[:, offsets > 0]
        inner = inner[:, np.concatenate([[True], (np.diff(inner) != 0).any(axis=0)])[: inner.shape[1]]]  # each once
        self._cut_slots, self._cut_offsets = inner[0], inner[1]
        self.part_chunk, self.part_samples = (
            _doubled(values, inner[0], num_slots) for values in (chunk_at, samples_at)
        )
        self._shorten_cut_parts()
        border = slots + self._cuts_up_to(slots, offsets)
        self.node_first_part, self.node_first_offset = border[:-1], offsets[:-1]
        self.node_end_part = border[1:]

    def _shorten_cut_parts(self) -> None:
        """Move the samples after each cut to the next part."""
        for number, (slot, offset) in enumerate(zip(self._cut_slots, self._cut_offsets, strict=True)):
            part = slot + number
            again = number > 0 and self._cut_slots[number - 1] == slot
            begin = self._cut_offsets[number - 1] if again else 0
            whole = int(self.part_samples[part])
            self.part_samples[part] = offset - begin
            self.part_samples[part + 1] = whole - (offset - begin)

    def _cuts_up_to(self, slots: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the cuts at or before each point of the line; a point is a slot and an offset in its chunk."""
        count = np.zeros(len(slots), dtype=np.int64)
        for slot, offset in zip(self._cut_slots, self._cut_offsets, strict=True):
            count += (slots > slot) | ((slots == slot) & (offsets >= offset))
        return count

    def ends_inside(self, node: int) -> bool:
        """Return True if the last chunk of a node continues in the next node."""
        return node + 1 < self.num_nodes and int(self.node_first_offset[node + 1]) > 0

    def part_first_id(self, nodes: NDArray[np.int64], parts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first sample id of each part of these nodes; the ids of a part are consecutive."""
        offsets = np.where(parts == self.node_first_part[nodes], self.node_first_offset[nodes], 0)
        first: NDArray[np.int64] = self.chunk_first_id[self.part_chunk[parts]] + offsets
        return first

    def parts_of(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the node and the part of each sample id; O(log num_chunks + num_nodes) per id."""
        chunks = np.searchsorted(self.chunk_first_id, ids, side="right") - 1
        slots = unpermute(chunks, self._num_chunks, self._key)
        slots -= np.searchsorted(self._empty_slots, slots)
        parts = slots + self._cuts_up_to(slots, ids - self.chunk_first_id[chunks])
        # Nodes without samples are at the end, and begin past the last sample.
        used = self.node_first_part[: min(self.num_nodes, self.num_samples)]
        return np.searchsorted(used, parts, side="right") - 1, parts


def _sizes(borders: NDArray[np.int64]) -> NDArray[Any]:
    """Return the sizes between borders in the smallest unsigned dtype that fits; shape (num_sizes,).

    Random access to 10^7 sizes of one byte (10 MB) takes a third of the time for int64 sizes (80 MB).
    """
    tiles = (np.diff(borders[begin : begin + _TILE + 1]) for begin in range(0, max(1, len(borders) - 1), _TILE))
    return np.concatenate([tile.astype(np.min_scalar_type(int(tile.max(initial=0)))) for tile in tiles])


def _point(sample: int, samples_at: NDArray[Any], tile_first: NDArray[np.int64]) -> tuple[int, int]:
    """Return the slot of a sample on the line, and its offset in the slot."""
    tile = int(np.searchsorted(tile_first, sample, side="right")) - 1
    tile = max(min(tile, len(tile_first) - 2), 0)  # the end of the line is the end of its last tile
    inside = samples_at[tile * _TILE : (tile + 1) * _TILE]
    line = tile_first[tile] + chunk_starts(inside)
    slot = int(np.searchsorted(line, sample, side="right")) - 1
    return tile * _TILE + slot, sample - int(line[slot])


def _doubled(values: NDArray[Any], at: NDArray[np.int64], num_values: int) -> NDArray[Any]:
    """Return the first ``num_values``, with each value at ``at`` repeated, in place: copying 10^7 takes 0.2 s."""
    end = num_values
    for number in range(len(at), 0, -1):  # from the last slice to the first, each into the room behind
        begin = int(at[number - 1])
        values[begin + number : end + number] = values[begin:end]
        end = begin + 1
    return values[: num_values + len(at)]
