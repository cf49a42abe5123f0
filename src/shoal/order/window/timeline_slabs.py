"""The time lines of a window: the time of each sample of each chunk, and the number of samples before any time.

Every canonical node has a time line with its ``n`` chunks (parts, see `shoal.order.window.canonical_nodes`) at slots
0, 1, 2, ... one unit of time apart, in a new random order for each epoch. The chunk at slot ``j`` is alive from
``birth`` to ``death``::

    birth = 0 if j < width else j - width / 2        death = n if j >= n - width else j + width / 2

and delivers the ``r``-th of its ``m`` samples at::

    time(j, r) = birth + (death - birth) * (r + phase) / m

with one random phase in [0, 1) for each chunk. So each *lane*, the slots that are equal modulo ``width``, holds exactly
one chunk at any time from 0 to ``n``: the first chunks begin together and end one after another, the last ones begin
one after another and end together. Even spacing makes every span of time a fair sample of the live chunks; without
the phases all chunks would deliver in step. A random permutation inside each chunk turns ranks into samples.

Time is cut into *slabs* that hold about ``width / 4`` samples; inside a slab the samples come in random order. Slabs of
a whole chunk raise the variance of batches by three quarters. Slabs of a fixed 16 samples raise it by a third for
narrow windows, and leave a visible echo at the period of the window for wide windows. A *block* of time, of about
``width / 4`` units, has slabs of equal length; the live chunks around the block predict the number of slabs. So slabs
stay small even near a chunk with most of the samples.

All times are int64 in fixed point with ``bits`` fractional bits, so that results are equal on every machine. Nearly
every method takes one node, one time or one slab per row and works on all rows at once, since a call for a single row
costs as much as a call for hundreds of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute, permute_each, unpermute_each
from shoal.order.arrays.vectorized import expand, order_by, segment_sums
from shoal.order.protocol import chunk_starts
from shoal.order.seeds import draws, key
from shoal.order.window.canonical_nodes import CanonicalNodes

_TILE = 1 << 16
_TOGETHER = 1 << 12  # slots of several nodes; larger nodes are a tenth faster one by one
_RANDOM_BITS = 24  # for the order inside a slab; chunk slot and rank break ties
_DENSITY_BITS = 8
_PHASE, _INSIDE, _RANKS = 0, 1, 2  # uses of the draws of a chunk's key; from _RANKS on, one draw per rank


def slab_samples(width: int) -> int:
    """Return the approximate number of samples of a slab, for a window of ``width`` chunks in a node.

    Small slabs make chunks return with a visible period; large slabs make batches vary more. design/order.md lists the
    trials.

    >>> slab_samples(64), slab_samples(4)
    (16, 2)
    """
    return max(2, width // 4)


@dataclass(frozen=True, slots=True)
class Emission:
    """The samples of some slabs in their final order, row by row; ``ids`` and ``chunks`` have shape (num_samples,)."""

    ids: NDArray[np.int64]
    chunks: NDArray[np.int64]
    row_first: NDArray[np.int64]  # shape (num_rows + 1,): row i has the samples [row_first[i], row_first[i + 1])


class Timeline:
    """The time lines of all nodes for one epoch; 1 to 8 bytes per chunk and mostly 12 per block, about 40 ns per chunk.

    Attributes
    ----------
    width
        Number of live chunks of a node at any time.
    num_slabs
        Slabs of each node; shape (num_nodes,).
    """

    def __init__(self, nodes: CanonicalNodes, *, width: int, seed: int, epoch: int) -> None:
        self._nodes = nodes
        self.width = width
        numbers = range(nodes.num_nodes)
        self._first = nodes.node_first_part
        self._count = nodes.node_end_part - nodes.node_first_part
        self._slot_key = np.array([key(seed, epoch, "place", node) for node in numbers], dtype=np.uint64)
        self._chunk_key = np.array([key(seed, epoch, "chunk", node) for node in numbers], dtype=np.uint64)
        largest = int(nodes.part_samples.max(initial=1))
        if largest >= 2**32:
            msg = f"a chunk of {largest} samples is too large for a permutation; at most 2**32 - 1 are possible"
            raise UsageError(msg, hint="smaller chunks")
        self._node_samples = np.diff(nodes.node_first_sample)
        self._units = 1 << (slab_samples(width) - 1).bit_length()  # units of time in a block
        self._first_block = chunk_starts(-(-self._count // self._units))
        self._slot_samples = self._lay_out()
        before, self._first_slab = self._lay_slabs()
        self._before = _narrowed(before)
        self.num_slabs = np.diff(self._first_slab[self._first_block])
        most_slabs = int(np.diff(self._first_slab).max(initial=1))
        num_units = int(self._first_block[-1]) * self._units
        self._bits = _fixed_point_bits(width, max(largest, most_slabs), num_units)
        self._half = width << (self._bits - 1)
        self._end = self._count << self._bits
        self._block_bits = self._bits + self._units.bit_length() - 1

    def _lay_out(self) -> NDArray[Any]:
        """Return the number of samples at each slot, over all nodes; shape (num_slots,)."""
        slot_samples = np.empty_like(self._nodes.part_samples)
        for first, slots, parts in self._tiles(0, self._nodes.num_nodes):
            slot_samples[first : first + len(slots)] = self._nodes.part_samples[parts]
        return slot_samples

    def _tiles(self, node: int, end_node: int) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield tiles of consecutive slots: the number of slots before the tile, its slots, and the part at each.

        Slots are counted within their node, and slots before the tile over all nodes. Covers the nodes
        ``[node, end_node)``.
        """
        ends = self._nodes.node_end_part[:end_node]
        while node < len(ends):
            first, count = int(self._first[node]), int(self._count[node])
            end = int(np.searchsorted(ends, first + _TOGETHER, side="right"))
            if end > node + 1:  # small nodes together: one by one, 32 small nodes would take 5 ms
                counts = self._count[node:end]
                slots = expand(np.zeros_like(counts), counts)[0]
                parts = permute_each(slots, counts, self._slot_key[node:end], counts) + np.repeat(
                    self._first[node:end], counts
                )
                yield first, slots, parts
            else:
                for begin in range(0, count, _TILE):
                    slots = np.arange(begin, min(begin + _TILE, count))
                    yield first + begin, slots, permute(slots, count, int(self._slot_key[node])) + first
            node = max(end, node + 1)

    def _lay_slabs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the samples before each block within its node, and the slabs before each block over all nodes.

        The samples of a block are spread evenly over all blocks that may deliver these samples. No chunk delivers more
        than four times this density, so no slab becomes much too large.
        """
        units, reach = self._units, -(-self.width // (2 * self._units))  # half the life of a chunk, in blocks
        before_block = np.zeros(int(self._first_block[-1]), dtype=np.int64)
        first_slab = np.zeros(len(before_block) + 1, dtype=np.int64)
        nodes = zip(self._first_block[:-1].tolist(), self._first.tolist(), self._count.tolist(), strict=True)
        for block, first, count in nodes:
            slabs = np.ones(-(-count // units), dtype=np.int64)
            if count > self.width:
                at_slots = self._slot_samples[first : first + count]
                samples = np.add.reduceat(at_slots, np.arange(0, count, units), dtype=np.int64)
                np.cumsum(samples[:-1], out=before_block[block + 1 : block + len(samples)])
                samples <<= _DENSITY_BITS
                # Like a chunk, a block is alive in the blocks around; at both ends a window of blocks is alive.
                born, ends = -(-self.width // units), (count - self.width) // units
                # Between the edges all lives are equal: slices and one divisor take a third of the time.
                high = max(born, min(ends, count // units - reach))
                edges = np.concatenate([np.arange(born), np.arange(high, len(samples))])
                life = np.where(edges < ends, np.minimum((edges + reach + 1) * units, count), count)
                life -= np.where(edges < born, 0, np.maximum(edges - reach, 0)) * units
                density = samples // ((2 * reach + 1) * units) * units
                density[edges] = samples[edges] // life * units
                before = chunk_starts(density)
                alive = np.empty_like(density)
                alive[born:high] = before[born + reach + 1 : high + reach + 1] - before[born - reach : high - reach]
                begin, end = np.clip(edges - reach, 0, ends), np.clip(edges + reach + 1, born, len(samples))
                alive[edges] = before[end] - before[begin]
                wanted = chunk_starts(alive) // (slab_samples(self.width) << _DENSITY_BITS)
                slabs = np.maximum(1, np.diff(wanted))
            first_slab[block + 1 : block + 1 + len(slabs)] = np.cumsum(slabs) + first_slab[block]
        return before_block, first_slab

    def fill_lanes(self, lanes: NDArray[np.uint16], node: int) -> None:
        """Write the lane of each chunk that ends in a node, as a fraction of 2**16; ``lanes`` has all chunks.

        Lanes are the slots modulo the window. The numbering makes the lower half about as full as the upper half, also
        at the ends of an epoch, when chunks that end sooner deliver faster. At any time a node's window has exactly one
        chunk in each lane. A chunk on several nodes has the lane of the last one. 0.05 us per chunk of the node.
        """
        stride = max(1, 21 * self.width // 34)
        while math.gcd(stride, self.width) > 1:
            stride += 1
        end = int(self._nodes.node_end_part[node])
        for _, slots, parts in self._tiles(node, node + 1):
            whole = parts < end - self._nodes.ends_inside(node)
            lanes[self._nodes.part_chunk[parts[whole]]] = ((slots[whole] * stride % self.width) << 16) // self.width

    # ---- counts of samples before a time

    def delivered(self, rows: NDArray[np.int64], slabs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the samples of node ``rows[i]`` before slab ``slabs[i]``; O(width) per row."""
        time = self._slab_time(rows, slabs)
        begin, end = self._alive(rows, time, time)
        block = begin // self._units  # earlier blocks are fully delivered
        done: NDArray[np.int64] = self._before[self._first_block[rows] + block].astype(np.int64)
        slots, lengths = expand(block * self._units, end)
        nodes, times = np.repeat(rows, lengths), np.repeat(time, lengths)
        samples, phases = self._samples(nodes, slots), self._phases(self._chunk_keys(nodes, slots))
        done += segment_sums(self._ranks_before(times, *self._lives(nodes, slots), samples, phases), lengths)
        return done

    def _slab_time(self, rows: NDArray[np.int64], slabs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the start time of slab ``slabs[i]`` of node ``rows[i]``."""
        first = self._first_block[rows]
        slab = self._first_slab[first] + slabs
        block = np.searchsorted(self._first_slab[:-1], slab, side="right") - 1
        inside = slab - self._first_slab[block]
        share = -((-inside << self._block_bits) // (self._first_slab[block + 1] - self._first_slab[block]))
        time: NDArray[np.int64] = np.minimum(((block - first) << self._block_bits) + share, self._end[rows])
        return time

    def _slab_at(self, time: NDArray[np.int64]) -> NDArray[np.int64]:
        """Turn times into slabs, in place; both are counted over all nodes, block by block."""
        block = time >> self._block_bits
        first = self._first_slab.take(block)
        block += 1
        time &= (1 << self._block_bits) - 1
        time *= self._first_slab.take(block) - first
        time >>= self._block_bits
        time += first
        return time

    def _alive(
        self, rows: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the slots ``[begin, end)`` of chunks that may have samples in times ``[start, stop)``."""
        count = self._count[rows]
        begin = ((start - self._half) >> self._bits) + 1
        end = -(-(stop + self._half) >> self._bits)
        return (
            np.minimum(np.maximum(begin, 0), np.maximum(count - self.width, 0)),
            np.minimum(np.maximum(end, self.width), count),
        )

    def _lives(self, rows: NDArray[np.int64], slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the time of birth of the chunk at each slot, and the length of its life in half units."""
        count = self._count[rows]
        born = np.where(slots < self.width, 0, 2 * slots - self.width)
        died = np.where(slots >= count - self.width, 2 * count, 2 * slots + self.width)
        return born << (self._bits - 1), died - born

    def _ranks_before(
        self,
        time: NDArray[np.int64],
        born: NDArray[np.int64],
        lives: NDArray[np.int64],
        samples: NDArray[np.int64],
        phases: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Count the samples of each chunk before ``time``."""
        # rank r comes before time  <=>  life * (r + phase) // m < age  <=>  r + phase < age * m / life, rounded up
        age = np.minimum(np.maximum(time - born, 0), lives << (self._bits - 1))
        reached = -(-2 * age * samples // lives) - 1 - phases
        ranks: NDArray[np.int64] = np.minimum(np.maximum((reached >> self._bits) + 1, 0), samples)
        return ranks

    def _slab_beside(
        self, rows: NDArray[np.int64], offsets: NDArray[np.int64], *, after: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find a slab that begins close to each offset, before or ``after`` the offset, and the samples before it.

        Starts from an estimate, steps by the surplus or deficit, and bisects at every fourth step: O(log num_slabs)
        steps for any chunks, mostly one or two steps for even chunks. A slab is close if delivering the samples between
        slab and offset costs no more than another step, or if no slab is closer.
        """
        sign = 1 if after else -1
        low, high = np.zeros_like(rows), self.num_slabs[rows]
        delivered = self._node_samples[rows] if after else np.zeros_like(rows)  # samples before the end of this side
        # The samples of a block determine its slabs, and chunks come half a unit before the middle of their slot.
        mean, half_chunk = slab_samples(self.width), self._node_samples[rows] // np.maximum(1, 2 * self._count[rows])
        probe = np.minimum(np.maximum((offsets - half_chunk) // mean + sign, low), high)
        searched = np.arange(len(rows))
        number_of_steps = 0
        while searched.size:
            slabs = probe[searched]
            samples_before = self.delivered(rows[searched], slabs)
            too_much = samples_before - offsets[searched]
            fits = too_much * sign >= 0
            delivered[searched[fits]] = samples_before[fits]
            low[searched] = np.where(fits == after, low[searched], slabs)
            high[searched] = np.where(fits == after, slabs, high[searched])
            aimed, middle = slabs - too_much // mean + sign, (low[searched] + high[searched]) // 2
            inside = (aimed > low[searched]) & (aimed < high[searched]) & (number_of_steps % 4 < 3)
            probe[searched] = np.where(inside, aimed, middle)
            close = fits & (np.abs(too_much) <= 2 * (self.width + mean))
            searched = searched[~close & (high[searched] - low[searched] > 1)]
            number_of_steps += 1
        return (high if after else low), delivered

    def span(self, rows: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]) -> Emission:
        """Return the samples at offsets ``[begin[i], end[i])`` of node ``rows[i]``; no range may be empty."""
        first_slab, before = self._slab_beside(rows, begin, after=False)
        end_slab, _ = self._slab_beside(rows, end, after=True)
        return self.emit(rows, first_slab, end_slab, begin - before, end - before)

    # ---- samples of slabs

    def emit(
        self,
        rows: NDArray[np.int64],
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
        skip: NDArray[np.int64] | None = None,
        upto: NDArray[np.int64] | None = None,
    ) -> Emission:
        """Return the samples of slabs ``[begin[i], end[i])`` of node ``rows[i]``, in their final order.

        With ``skip`` and ``upto``, returns only samples ``[skip[i], upto[i])`` of each row. O(width) per row and about
        60 ns per sample.
        """
        start, stop = self._slab_time(rows, begin), self._slab_time(rows, end)
        slots, row_lengths = expand(*self._alive(rows, start, stop))
        nodes = np.repeat(rows, row_lengths)
        samples, keys = self._samples(nodes, slots), self._chunk_keys(nodes, slots)
        phases = self._phases(keys)
        born, lives = self._lives(nodes, slots)
        first_rank = self._ranks_before(np.repeat(start, row_lengths), born, lives, samples, phases)
        end_rank = self._ranks_before(np.repeat(stop, row_lengths), born, lives, samples, phases)
        ranks, lengths = expand(first_rank, end_rank)

        time = ranks << self._bits
        time += np.repeat(phases, lengths)
        time *= np.repeat(lives, lengths) if (lives != 2 * self.width).any() else 2 * self.width
        time //= np.repeat(2 * samples, lengths)
        time += np.repeat(born + (self._first_block[nodes] << self._block_bits), lengths)
        slabs = self._slab_at(time)
        # Slabs are numbered over all rows.
        shift = np.cumsum(end - begin) - end - self._first_slab[self._first_block[rows]]
        slabs += np.repeat(np.repeat(shift, row_lengths), lengths)

        parts = self._parts(nodes, slots)
        inside_keys = draws(keys, np.full_like(slots, _INSIDE))
        ids = np.repeat(self._nodes.part_first_id(nodes, parts), lengths)
        ids += permute_each(ranks, samples, inside_keys, lengths)
        chunks = np.repeat(self._nodes.part_chunk[parts].astype(np.int64), lengths)
        ranks += _RANKS
        random = draws(np.repeat(keys, lengths), ranks)
        random >>= np.uint64(64 - _RANDOM_BITS)
        order = order_by((slabs, int((end - begin).sum()).bit_length()), (random, _RANDOM_BITS))
        row_samples = segment_sums(lengths, row_lengths)
        if skip is not None and upto is not None:
            row_first = np.cumsum(row_samples) - row_samples
            at, row_samples = expand(row_first + skip, row_first + upto)
            order = order[at]
        return Emission(ids[order], chunks[order], chunk_starts(row_samples))

    def slab_of_ids(
        self, rows: NDArray[np.int64], parts: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the slab of each sample, given its node and part; O(1) per sample."""
        slots = unpermute_each(parts - self._first[rows], self._count[rows], self._slot_key[rows]).astype(np.int64)
        samples, keys = self._samples(rows, slots), self._chunk_keys(rows, slots)
        inside = ids - self._nodes.part_first_id(rows, parts)
        ranks = unpermute_each(inside, samples, draws(keys, np.full_like(slots, _INSIDE))).astype(np.int64)
        born, lives = self._lives(rows, slots)
        first = self._first_block[rows]
        time: NDArray[np.int64] = lives * ((ranks << self._bits) + self._phases(keys)) // (2 * samples)
        time += born + (first << self._block_bits)
        return self._slab_at(time) - self._first_slab[first]

    # ---- properties of the chunk at a slot of a node

    def _samples(self, rows: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
        samples: NDArray[np.int64] = self._slot_samples[self._first[rows] + slots].astype(np.int64)
        return samples

    def _parts(self, rows: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
        inside = permute_each(slots, self._count[rows], self._slot_key[rows])
        parts: NDArray[np.int64] = self._first[rows] + inside
        return parts

    def _chunk_keys(self, rows: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.uint64]:
        return draws(self._chunk_key[rows], slots)

    def _phases(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        phases = draws(keys, np.full(len(keys), _PHASE)) >> np.uint64(64 - self._bits)
        return phases.astype(np.int64)


def _narrowed(values: NDArray[np.int64]) -> NDArray[Any]:
    """Return the values in 32 bits if they fit."""
    return values.astype(np.uint32) if int(values.max(initial=0)) < 2**32 else values


def _fixed_point_bits(width: int, largest: int, num_units: int) -> int:
    """Return the largest number of fractional bits with all products of this module below 2**62; at most 20."""
    bits = min(20, 62 - max(4 * width * largest, num_units).bit_length())
    if bits < 1:
        msg = f"a window of {width} chunks over {num_units} slots of up to {largest} samples exceeds 64-bit times"
        raise UsageError(msg, hint="use fewer chunks in the window, or smaller chunks")
    return bits
