"""The five shuffles of MosaicML Streaming 0.13, id for id.

All shuffles draw from two generators: a generator of the seed, for everything that stays the same in the whole run, and
a generator of seed plus epoch. A shuffle of a list, a shuffle of an array of any width, and `permutation` draw the same
numbers. So arrays replace lists of objects, and ids take 4 bytes if possible.

* *naive*: all samples permuted.
* *py1s*: shards in random order, cut into equal parts for the canonical nodes; the pieces of each part in random order,
  and the samples of each piece.
* *py2s*: as py1s, with the samples of each shard permuted before the cuts, once for the whole run.
* *py1br*: the pieces as in py1s; then blocks of 0.75 to 1.25 ``block_size`` samples of a part, each permuted.
* *py1e*: as py1s; then each sample moves by a random amount, so that the samples of a piece spread over a block.

References
----------
``streaming/base/shuffle/`` of mosaicml-streaming 0.13.0: ``naive.py``, ``py1s.py``, ``py2s.py``, ``py1br.py``,
``py1e.py``. The numbers come from numpy's PCG64 and `numpy.random.Generator`. By NEP 19, the stream of values may
change between versions of numpy; the stream of these methods has not changed since 1.17.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.protocol import chunk_starts
from shoal.peers.streaming.canonical_rows import part_starts

ALGORITHMS = ("naive", "py1br", "py1e", "py1s", "py2s")

Ids = NDArray[Any]
"""Sample ids, int32 if wide enough, else int64."""

_DRAWN_AT_ONCE = 1 << 20
_SORTED_AT_ONCE = 1 << 19
_LOOKED_AT_ONCE = 1 << 16


def shuffled_ids(
    algorithm: str,
    shard_samples: NDArray[np.int64],
    num_canonical_nodes: int,
    *,
    seed: int,
    epoch: int,
    block_size: int,
    mends_tails: bool,
) -> Ids:
    """Return the ids of an epoch, canonical node after canonical node; shape (num_samples,).

    Takes 4 bytes and 10 to 100 ns per sample, and 2 to 8 us per shard; py1e takes up to 15 additional bytes per sample
    of one and a half blocks. With ``mends_tails``, py1br permutes the tails of canonical nodes, too.

    Raises `UsageError` if the block size is too small for the algorithm.
    """
    num_samples = int(shard_samples.sum())
    width = np.int32 if num_samples < 2**31 else np.int64
    rng = np.random.default_rng(seed + epoch)
    if algorithm == "naive":
        ids: Ids = np.arange(num_samples, dtype=width)
        rng.shuffle(ids)
        return ids
    ids = np.empty(num_samples, dtype=width)
    if algorithm == "py2s":
        return _twice_shuffled(ids, shard_samples, num_canonical_nodes, seed, rng)
    order = np.random.default_rng(seed).permutation(len(shard_samples))
    pieces = cut_shards(shard_samples, order, num_canonical_nodes).shuffled_in_parts(rng)
    if algorithm == "py1s":
        _fill(ids, pieces.begins, pieces.sizes, rng)
    elif algorithm == "py1br":
        _blocks(ids, pieces, block_size, rng, mends_tails=mends_tails)
    else:
        _expanded(ids, pieces, block_size, rng)
    return ids


def _fill(
    ids: Ids, begins: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator | None = None
) -> None:
    """Write the samples of pieces one after another; a generator permutes the samples of each piece."""
    at = 0
    for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True):
        samples = np.arange(begin, begin + size)  # numpy shuffles 64-bit integers faster than 32-bit integers
        if rng is not None:
            rng.shuffle(samples)
        ids[at : at + size] = samples
        at += size


def _twice_shuffled(
    ids: Ids, shard_samples: NDArray[np.int64], num_parts: int, seed: int, rng: np.random.Generator
) -> Ids:
    run = np.random.default_rng(seed)
    order = run.permutation(len(shard_samples))
    pieces = cut_shards(shard_samples, order, num_parts)
    begins = np.cumsum(shard_samples) - shard_samples
    _fill(ids, begins[order], shard_samples[order], run)
    starts = np.cumsum(pieces.sizes) - pieces.sizes
    for first, stop in zip(pieces.part_first[:-1].tolist(), pieces.part_first[1:].tolist(), strict=True):
        if first == stop:
            continue
        at = begin = int(starts[first])
        size = int(pieces.sizes[first:stop].sum())
        part = ids[begin : begin + size].copy()
        order = np.arange(first, stop)
        rng.shuffle(order)
        for start, length in zip((starts[order] - begin).tolist(), pieces.sizes[order].tolist(), strict=True):
            samples = part[start : start + length].astype(np.int64)
            rng.shuffle(samples)
            ids[at : at + length] = samples
            at += length
    return ids


def _blocks(ids: Ids, pieces: Pieces, block_size: int, rng: np.random.Generator, *, mends_tails: bool) -> None:
    """Permute blocks of each part; borders of blocks begin at a random place in the first block.

    The original ignores the part of the first block before the canonical node, and so stops early: the tail of the
    node, up to 0.75 blocks, often stays in the order of shards. Mended tails are permuted last, so that all other
    drawn numbers stay the same.
    """
    _fill(ids, pieces.begins, pieces.sizes)
    low, high = _block_range(block_size)
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(pieces.sizes)])[pieces.part_first].tolist()
    tails = []
    staggers = _drawn(rng, 0, low, (len(ends) - 1,)).tolist()
    for start, stop, stagger in zip(ends[:-1], ends[1:], staggers, strict=True):
        blocks, end, last = [], start, start
        while end < stop:
            size = int(rng.integers(low, high))
            first, last = max(end - stagger, start), min(end + size - stagger, stop)
            blocks.append((first, last))
            end += last - first
        for first, last in blocks:
            rng.shuffle(ids[first:last])
        tails.append((last, stop))
    for last, stop in tails if mends_tails else ():
        rng.shuffle(ids[last:stop])


def _expanded(ids: Ids, pieces: Pieces, block_size: int, rng: np.random.Generator) -> None:
    at = 0
    for first, stop in zip(pieces.part_first[:-1].tolist(), pieces.part_first[1:].tolist(), strict=True):
        begins, sizes = pieces.begins[first:stop], pieces.sizes[first:stop]
        size = int(sizes.sum())
        _fill(ids[at : at + size], begins, sizes, rng)
        _spread(ids[at : at + size], sizes, block_size, rng)
        at += size


def _spread(ids: Ids, sizes: NDArray[np.int64], block_size: int, rng: np.random.Generator) -> None:
    """Move each sample of a canonical node to a random place around its old place; changes the array in place.

    No sample moves by more than half a block, so places are drawn and sorted for about a block at a time, instead of
    the whole node. The order of two samples at exactly the same place is undefined; the original has numpy's order,
    and numpy's order differs between machines.
    """
    if not len(ids):
        return
    low, high = _block_range(block_size)
    num_samples, reach = len(ids), max(0.0, (high - int(sizes.min())) / 2)
    at_once = max(1, int(min(2 * reach, _DRAWN_AT_ONCE + reach / 4)))
    starts = np.cumsum(sizes) - sizes
    groups = np.flatnonzero(np.diff(starts // at_once, prepend=-1)).tolist()
    # After drawing the samples before `end`, only the last `2 * reach` samples may still be waiting.
    room = min(num_samples, int(2 * reach) + at_once + int(sizes.max()) + 1)
    places, waiting = np.empty(room), np.empty(room, dtype=ids.dtype)
    done = count = 0
    for first, stop in zip(groups, [*groups[1:], len(sizes)], strict=True):
        at = begin = int(starts[first])
        end = int(starts[stop]) if stop < len(sizes) else num_samples
        drawn = places[count : count + end - begin]
        drawn[:] = np.arange(begin, end)
        for size in sizes[first:stop].tolist():
            cutoff = max(0.0, (int(_drawn(rng, low, high)) - size) / 2)
            lowest, highest = max(-cutoff, -at), min(cutoff, num_samples - at - size)
            drawn[at - begin : at - begin + size] += rng.uniform(lowest, highest, size)
            at += size
        waiting[count : count + end - begin] = ids[begin:end]
        count += end - begin
        bound = np.inf if end == num_samples else end - reach  # no later sample lies before the bound
        limit = float(done)
        while limit < bound and count:
            limit = min(bound, limit + max(_SORTED_AT_ONCE, count // 3))
            ready, count = _taken_below(places[:count], waiting[:count], limit)
            ids[done : done + len(ready)] = ready
            done += len(ready)


def _taken_below(places: NDArray[np.float64], waiting: Ids, limit: float) -> tuple[Ids, int]:
    """Take the samples at places below a limit out of both arrays; return these in order, and the number remaining."""
    taken_places, taken, left = [], [], 0
    for first in range(0, len(places), _LOOKED_AT_ONCE):
        some_places, some = places[first : first + _LOOKED_AT_ONCE], waiting[first : first + _LOOKED_AT_ONCE]
        below = some_places < limit
        taken_places.append(some_places[below])
        taken.append(some[below])
        below = ~below
        stays = some_places[below]
        places[left : left + len(stays)], waiting[left : left + len(stays)] = stays, some[below]
        left += len(stays)
    return np.concatenate(taken)[np.argsort(np.concatenate(taken_places))], left


def _block_range(block_size: int) -> tuple[int, int]:
    return int(0.75 * block_size), int(1.25 * block_size)


def _drawn(rng: np.random.Generator, low: int, high: int, shape: tuple[int, ...] | None = None) -> Any:
    try:
        return rng.integers(low, high, shape)
    except ValueError:
        msg = "a shuffle block needs at least 2 samples"
        raise UsageError(
            msg, hint="a larger shuffle_block_size, or a larger proportion of the smallest stream"
        ) from None


class Pieces(NamedTuple):
    """Pieces of shards by part: part ``k`` has the pieces from ``part_first[k]`` to ``part_first[k + 1]``.

    Piece ``i`` holds the samples ``[begins[i], begins[i] + sizes[i])``.
    """

    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    part_first: NDArray[np.int64]

    def shuffled_in_parts(self, rng: np.random.Generator) -> Pieces:
        """Return the pieces of each part in random order, drawn part after part."""
        order = np.arange(len(self.begins))
        for first, stop in zip(self.part_first[:-1].tolist(), self.part_first[1:].tolist(), strict=True):
            rng.shuffle(order[first:stop])
        return Pieces(self.begins[order], self.sizes[order], self.part_first)


def cut_shards(shard_samples: NDArray[np.int64], order: NDArray[np.int64], num_parts: int) -> Pieces:
    """Return the shards in this order, cut where part ``k`` of ``num_parts`` ends: after ``N * (k + 1) // num_parts``.

    The samples of a shard are numbered in storage order. O(num_shards + num_parts).

    >>> cut_shards(np.array([4, 2]), np.array([1, 0]), 2)
    Pieces(begins=array([4, 0, 1]), sizes=array([2, 1, 3]), part_first=array([0, 2, 3]))
    """
    starts = chunk_starts(shard_samples[order])
    num_samples = int(starts[-1])
    ends = part_starts(num_samples, num_parts)[1:]
    # A part that ends inside a shard cuts the shard. Starts of shards are not cuts, so empty shards keep their places.
    cuts = np.unique(ends[~np.isin(ends, starts)])
    shard = np.searchsorted(starts, cuts, side="right") - 1
    piece_shards = np.insert(np.arange(len(order)), shard + 1, shard)
    piece_starts = np.insert(starts[:-1], shard + 1, cuts)
    sizes = np.diff(piece_starts, append=num_samples)
    begins = chunk_starts(shard_samples)[:-1][order][piece_shards] + piece_starts - starts[piece_shards]
    # An empty piece at the border of two parts belongs to the first part.
    parts = np.where(
        sizes > 0, np.searchsorted(ends, piece_starts, side="right"), np.searchsorted(ends, piece_starts, side="left")
    )
    return Pieces(begins, sizes, np.searchsorted(parts, np.arange(num_parts + 1)))
