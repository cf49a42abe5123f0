"""The time lines of a window: the time of each sample of each chunk, and the number of samples before any time.

Every canonical node has a time line with its chunks (parts, see `shoal.order.window.canonical_nodes`) at slots
0, 1, 2, ... one unit of time apart, in an order drawn anew for each epoch. A chunk of ``m`` samples at slot ``j``
lives for ``width`` units around its slot and delivers its ``r``-th sample at::

    time(j, r) = j - width / 2 + width * (r + phase) / m

with one random phase in [0, 1) for each chunk. Even spacing makes every span of time a fair sample of the live
chunks; without the phases all chunks would deliver in step. The time line is folded back at both ends, so that at most
``width`` chunks are alive there too. A random permutation inside each chunk turns ranks into samples.

Time is cut into *slabs* that hold about ``width / 4`` samples; inside a slab the samples come in random order. Slabs of
a whole chunk raise the variance of batches by three quarters; slabs of a fixed 16 samples raise it by a third for
narrow windows, and leave a visible echo at the period of the window for wide ones.

All times are int64 in fixed point with ``bits`` fractional bits, so that results are equal on every machine. Nearly
every method takes one node, one time or one slab per row and works on all rows at once, since a call for one row costs
as much as for hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute, permute_each, unpermute_each
from shoal.order.arrays.vectorized import expand, order_by, segment_sums
from shoal.order.seeds import draws, key
from shoal.order.window.canonical_nodes import CanonicalNodes

_TILE = 1 << 16
_RANDOM_BITS = 24  # for the order inside a slab; ties are ordered by chunk slot and rank
_PHASE, _INSIDE, _RANKS = 0, 1, 2  # uses of the draws of a chunk's key; from _RANKS on, one per rank


def slab_samples(width: int) -> int:
    """Return about how many samples a slab has, for a window of ``width`` chunks in a node.

    Within a slab samples come in random order. Small slabs show the period with which chunks return, large ones let
    batches vary more; design/order.md has what was tried.

    >>> slab_samples(64), slab_samples(4)
    (16, 2)
    """
    return max(2, width // 4)


@dataclass(frozen=True, slots=True)
class Emission:
    """The samples of some slabs in their final order, row by row; all arrays but the last have shape (total,)."""

    ids: NDArray[np.int64]
    chunks: NDArray[np.int64]
    row_first: NDArray[np.int64]  # shape (num_rows + 1,): row i has the samples [row_first[i], row_first[i + 1])


class Timeline:
    """The time lines of all nodes for one epoch; 8 bytes and about 70 ns per chunk.

    Attributes
    ----------
    width
        Chunks of one node that are alive at a time.
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
        self._line = self._lay_out()
        largest = int(nodes.part_samples.max(initial=1))
        if largest >= 2**32:
            msg = f"a chunk of {largest} samples is too large to be permuted as a whole; at most 2**32 - 1 are"
            raise UsageError(msg, hint="smaller chunks")
        self._bits = _fixed_point_bits(width, largest, int(self._count.max(initial=1)))
        self._half = width << (self._bits - 1)
        self._end = self._count << self._bits
        self._node_samples = np.diff(nodes.node_first_sample)
        wanted = slab_samples(width)
        nodes_of = zip(self._end.tolist(), self._node_samples.tolist(), strict=True)  # Python's ints don't overflow
        self._slab = np.array([max(1, wanted * end // max(1, samples)) for end, samples in nodes_of], dtype=np.int64)
        self.num_slabs = -(-self._end // self._slab)
        # About `wanted`, or more if that few samples take less than the smallest step of time.
        self._slab_samples = -(-self._node_samples // np.maximum(1, self.num_slabs))

    def _lay_out(self) -> NDArray[np.int64]:
        """Return the number of samples before each slot, over all nodes; shape (num_slots + 1,)."""
        line = np.zeros(len(self._nodes.part_samples) + 1, dtype=np.int64)
        for node, (first, count) in enumerate(zip(self._first, self._count, strict=True)):
            for begin in range(0, int(count), _TILE):
                slots = np.arange(begin, min(begin + _TILE, int(count)))
                parts = permute(slots, int(count), int(self._slot_key[node])) + first
                line[first + begin + 1 : first + begin + 1 + len(slots)] = self._nodes.part_samples[parts]
        for begin in range(1, len(line), _TILE):  # by tiles: an in-place sum over the whole array needs a second copy
            line[begin] += line[begin - 1]
            np.cumsum(line[begin : begin + _TILE], out=line[begin : begin + _TILE])
        return line

    def lanes(self) -> NDArray[np.uint16]:
        """Return each chunk's lane, its slot modulo the window, as a fraction of 2**16; shape (num_chunks,).

        At any time a node's window has one chunk in each lane, or one that ends and one that begins. O(num_chunks),
        0.05 us each. A chunk cut by the border of two nodes has the lane of one of the two.
        """
        found = np.empty(len(self._nodes.chunk_first_id) - 1, dtype=np.uint16)
        for node, (first, count) in enumerate(zip(self._first, self._count, strict=True)):
            for begin in range(0, int(count), _TILE):
                slots = np.arange(begin, min(begin + _TILE, int(count)))
                parts = permute(slots, int(count), int(self._slot_key[node])) + first
                found[self._nodes.part_chunk[parts]] = ((slots % self.width) << 16) // self.width
        return found

    # ---- counts of samples before a time

    def delivered(self, rows: NDArray[np.int64], slabs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the samples of node ``rows[i]`` before slab ``slabs[i]``; O(width) each."""
        time = np.minimum(slabs * self._slab[rows], self._end[rows])
        total = self._before(rows, time)
        if (time < self._half).any():  # times before 0 are folded to after it
            total -= self._before(rows, -time)
        late = self._end[rows] - time
        if (late < self._half).any():  # and times after the end to before it
            total += self._node_samples[rows] - self._before(rows, self._end[rows] + late)
        return total

    def _before(self, rows: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the samples with an unfolded time before ``time``."""
        first = self._first[rows]
        begin, end = self._alive(rows, time, time)
        done: NDArray[np.int64] = self._line[first + begin] - self._line[first]  # fully delivered
        slots, lengths = expand(begin, end)
        if len(slots):
            nodes, times = np.repeat(rows, lengths), np.repeat(time, lengths)
            samples, keys = self._samples(nodes, slots), self._chunk_keys(nodes, slots)
            done += segment_sums(self._ranks_before(times, slots, samples, self._phases(keys)), lengths)
        return done

    def _alive(
        self, rows: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the slots ``[begin, end)`` whose chunks may have samples in times ``[start, stop)``."""
        count = self._count[rows]
        begin = ((start - self._half) >> self._bits) + 1
        end = -(-(stop + self._half) >> self._bits)
        return np.minimum(np.maximum(begin, 0), count), np.minimum(np.maximum(end, 0), count)

    def _ranks_before(
        self, time: NDArray[np.int64], slots: NDArray[np.int64], samples: NDArray[np.int64], phases: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Count the samples of each slot's chunk with an unfolded time before ``time``."""
        # rank r comes before time  <=>  width * (r + phase) // m < age  <=>  r + phase < age * m / width, rounded up
        age = time - (slots << self._bits) + self._half
        age = np.minimum(np.maximum(age, 0), self.width << self._bits)
        reached = -(-age * samples // self.width) - 1 - phases
        ranks: NDArray[np.int64] = np.minimum(np.maximum((reached >> self._bits) + 1, 0), samples)
        return ranks

    def _guess(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Estimate the slab of each offset as if chunks came one after the other; O(log num_slots) each."""
        first = self._first[rows]
        line = self._line[first] + offsets
        slot = np.searchsorted(self._line, line, side="right") - 1
        slot = np.minimum(slot, self._nodes.node_end_part[rows] - 1)
        samples = self._line[slot + 1] - self._line[slot]
        time = ((slot - first) << self._bits) + ((line - self._line[slot]) << self._bits) // samples
        slabs: NDArray[np.int64] = time // self._slab[rows]
        return slabs

    def _slab_beside(
        self, rows: NDArray[np.int64], offsets: NDArray[np.int64], *, after: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find a slab that begins close to each offset, at or before it (or ``after`` it), and the samples before it.

        Starts from an estimate, then alternates between stepping by the surplus or deficit and bisecting, so that it
        ends in O(log num_slabs) steps for any chunks; for even ones, mostly in one or two. A slab is close if the
        samples in between cost no more to deliver than another step, or if it is the exact one.
        """
        sign = 1 if after else -1
        low, high = np.zeros_like(rows), self.num_slabs[rows]
        delivered = self._node_samples[rows] if after else np.zeros_like(rows)  # before the end of that side
        probe = np.minimum(np.maximum(self._guess(rows, offsets) + sign, low), high)
        searched = np.arange(len(rows))
        number_of_steps = 0
        while searched.size:
            mine, at, mean = rows[searched], probe[searched], self._slab_samples[rows[searched]]
            found = self.delivered(mine, at)
            too_much = found - offsets[searched]
            fits = too_much * sign >= 0
            delivered[searched[fits]] = found[fits]
            low[searched] = np.where(fits == after, low[searched], at)
            high[searched] = np.where(fits == after, at, high[searched])
            aimed, middle = at - too_much // mean + sign, (low[searched] + high[searched]) // 2
            inside = (aimed > low[searched]) & (aimed < high[searched]) & (number_of_steps % 2 == 0)
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

        If ``skip`` and ``upto`` are given, only samples ``[skip[i], upto[i])`` of each row. O(width) per row and about
        60 ns per sample.
        """
        slab = self._slab[rows]
        start, stop = begin * slab, np.minimum(end * slab, self._end[rows])
        fold = 2 * self._end[rows]
        slab_shift = np.cumsum(end - begin) - end  # slabs are numbered over all rows
        columns = [self._gathered(rows, start, stop, slab_shift)]
        if (start < self._half).any():
            columns.append(self._gathered(rows, -stop, -start, slab_shift, mirror=np.full_like(fold, -1)))
        if (stop > self._end[rows] - self._half).any():
            columns.append(self._gathered(rows, fold - stop, fold - start, slab_shift, mirror=fold - 1))
        lengths = np.sum([column[0] for column in columns], axis=0)
        ids, chunks, slabs, random = (np.concatenate(column) for column in list(zip(*columns, strict=True))[1:])
        order = order_by((slabs, int((end - begin).sum()).bit_length()), (random, _RANDOM_BITS))
        if skip is not None and upto is not None:
            row_first = np.cumsum(lengths) - lengths
            at, lengths = expand(row_first + skip, row_first + upto)
            order = order[at]
        return Emission(ids[order], chunks[order], np.concatenate([[0], np.cumsum(lengths)]))

    def _gathered(
        self,
        rows: NDArray[np.int64],
        start: NDArray[np.int64],
        stop: NDArray[np.int64],
        slab_shift: NDArray[np.int64],
        mirror: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[Any], ...]:
        """Return the samples with an unfolded time in ``[start, stop)``, by row, slot and rank.

        Returns the number of samples of each row, and for each sample its id, its chunk, its slab (numbered over all
        rows) and its draw for the order inside the slab. With a mirror, the folded time is ``mirror - time``.
        """
        slots, row_lengths = expand(*self._alive(rows, start, stop))
        nodes = np.repeat(rows, row_lengths)
        samples, keys = self._samples(nodes, slots), self._chunk_keys(nodes, slots)
        phases = self._phases(keys)
        first_rank = self._ranks_before(np.repeat(start, row_lengths), slots, samples, phases)
        end_rank = self._ranks_before(np.repeat(stop, row_lengths), slots, samples, phases)
        parts = self._parts(nodes, slots)
        ranks, lengths = expand(first_rank, end_rank)

        time = (ranks << self._bits) + np.repeat(phases, lengths)
        time *= self.width
        time //= np.repeat(samples, lengths)
        born = (slots << self._bits) - self._half
        if mirror is None:
            time += np.repeat(born, lengths)
        else:
            time = np.repeat(np.repeat(mirror, row_lengths) - born, lengths) - time
        time //= np.repeat(self._slab[nodes], lengths)
        time += np.repeat(np.repeat(slab_shift, row_lengths), lengths)

        inside_keys = draws(keys, np.full_like(slots, _INSIDE))
        ids = np.repeat(self._nodes.part_first_id(nodes, parts), lengths)
        ids += permute_each(ranks, samples, inside_keys, lengths)
        chunks = np.repeat(self._nodes.part_chunk[parts].astype(np.int64), lengths)
        ranks += _RANKS
        random = draws(np.repeat(keys, lengths), ranks)
        random >>= np.uint64(64 - _RANDOM_BITS)
        return segment_sums(lengths, row_lengths), ids, chunks, time, random

    def slab_of_ids(
        self, rows: NDArray[np.int64], parts: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the slab of each sample, given its node and part; O(1) each."""
        slots = unpermute_each(parts - self._first[rows], self._count[rows], self._slot_key[rows]).astype(np.int64)
        samples, keys = self._samples(rows, slots), self._chunk_keys(rows, slots)
        inside = ids - self._nodes.part_first_id(rows, parts)
        ranks = unpermute_each(inside, samples, draws(keys, np.full_like(slots, _INSIDE))).astype(np.int64)
        time = self.width * ((ranks << self._bits) + self._phases(keys)) // samples
        time += (slots << self._bits) - self._half
        end = self._end[rows]
        time = np.where(time < 0, -1 - time, np.where(time >= end, 2 * end - 1 - time, time))
        slabs: NDArray[np.int64] = time // self._slab[rows]
        return slabs

    # ---- properties of the chunk at a slot of a node

    def _samples(self, rows: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
        at = self._first[rows] + slots
        samples: NDArray[np.int64] = self._line[at + 1] - self._line[at]
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


def _fixed_point_bits(width: int, largest: int, num_slots: int) -> int:
    """Return the most fractional bits that keep all products of this module below 2**62; at most 20."""
    bits = min(20, 62 - width.bit_length() - max(largest, num_slots).bit_length() - 1)
    if bits < 1:
        msg = f"a window of {width} chunks over {num_slots} chunks of up to {largest} samples leaves no room for time"
        raise UsageError(msg, hint="use fewer chunks in the window, or smaller chunks")
    return bits
