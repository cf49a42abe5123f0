"""The shuffles of Grain: of a whole dataset, and inside windows of consecutive samples.

Both shuffles permute positions by a cipher of four rounds on blocks of an even number of bits, at least 16. The cipher
is applied until the result is in range, so any position is found in O(1), as in Grain itself.

Two traits of Grain are kept only with ``parity=True``. Grain's blocks are too small for a dataset of
``2**(2 * k) + 1`` samples (k from 8): one sample appears twice, and another sample never. And Grain's windows cross the
borders of epochs, unless the window size divides the dataset size: then an epoch has samples of the next epoch, and
some samples of the epoch come later or never. Without parity, windows end with the epoch, and the next epoch continues
with other seeds.

References
----------
``grain/_src/python/dataset/transformations/shuffle.py`` and ``experimental/index_shuffle/index_shuffle.cc`` of Grain
0.2.18. R. Beaulieu et al., "The SIMON and SPECK families of lightweight block ciphers", 2013, for the cipher;
``std::seed_seq`` of C++ for its keys.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.protocol import (
    Moved,
    check_chunk_samples,
    check_counts,
    check_flags,
    check_streams,
)
from shoal.order.seeds import check_epoch, check_seed
from shoal.peers.peer_epoch import PeerEpoch, first_positions

_SPAN = 1 << 16
_ROUNDS = 4
_FEW = 1 << 11
_LEAST_BLOCK_BITS = 16
_MASK32 = np.uint64(0xFFFFFFFF)
_MOST_SEED = 2**32 - 1


@dataclass(frozen=True, slots=True)
class GrainShuffle:
    """``MapDataset.shuffle(seed)``: a permutation of the whole dataset, different in each epoch.

    Parameters
    ----------
    world_size
        Number of ranks in the run, each with ``ds[rank::world_size]``; at another world size the global batches are the
        same.
    parity
        True to repeat the samples that Grain repeats.

    Examples
    --------
    >>> shoal.orders.GrainShuffle().bind([5, 5], seed=3).ids(0, 10).tolist()
    [4, 7, 0, 8, 2, 5, 3, 6, 1, 9]
    """

    name: ClassVar[str] = "grain-shuffle"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "samples"

    world_size: int = 1
    parity: bool = False

    def __post_init__(self) -> None:
        check_counts(self, world_size=1)
        check_flags(self)
        check_streams(world_size=self.world_size)

    @property
    def parameters(self) -> dict[str, int | bool]:
        """Parameters of this order that a state keeps."""
        return asdict(self)

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> GrainEpoch:
        """Return the order of one epoch; O(num_chunks) time and memory."""
        samples = check_chunk_samples(chunk_samples)
        number = (_grain_seed(seed) + check_epoch(epoch)) % 2**32
        total = int(samples.sum())
        return GrainEpoch(samples, self, _Windows(max(1, total), number, parity=self.parity), first=0)


@dataclass(frozen=True, slots=True)
class GrainWindowShuffle:
    """``WindowShuffleMapDataset(window_size, seed)``, or its version for iterators: windows in storage order.

    Parameters
    ----------
    window_size
        Samples of a window.
    dataset
        "map" or "iter": an iterator of Grain delivers the permuted window from its end.
    world_size, parity
        See `GrainShuffle`.

    Examples
    --------
    >>> shoal.orders.GrainWindowShuffle(window_size=4).bind([10], seed=3).ids(0, 10).tolist()
    [2, 3, 0, 1, 5, 4, 6, 7, 9, 8]
    """

    name: ClassVar[str] = "grain-window-shuffle"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "nothing"

    window_size: int = 1000
    dataset: str = "map"
    world_size: int = 1
    parity: bool = False

    def __post_init__(self) -> None:
        check_counts(self, window_size=1, world_size=1)
        check_flags(self)
        check_streams(world_size=self.world_size)
        if self.dataset not in ("map", "iter"):
            raise UsageError(f"Grain shuffles windows of a dataset of kind 'map' or 'iter'; got {self.dataset!r}")

    @property
    def parameters(self) -> dict[str, int | str | bool]:
        """Parameters of this order that a state keeps."""
        return asdict(self)

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> GrainEpoch:
        """Return the order of one epoch; O(num_chunks) time and memory."""
        samples = check_chunk_samples(chunk_samples)
        number, total = _grain_seed(seed), int(samples.sum())
        first = check_epoch(epoch) * total if self.parity else 0
        number += 0 if self.parity else epoch * -(-total // self.window_size)
        windows = _Windows(self.window_size, number % 2**32, parity=self.parity, reverses=self.dataset == "iter")
        return GrainEpoch(samples, self, windows, first=first)


class GrainEpoch(PeerEpoch):
    """The order of one epoch: positions from ``first`` on, of an endless line of windows."""

    span = _SPAN

    def __init__(
        self,
        chunk_samples: NDArray[np.int64],
        order: GrainShuffle | GrainWindowShuffle,
        windows: _Windows,
        *,
        first: int,
    ) -> None:
        super().__init__(order, chunk_samples, int(chunk_samples.sum()), num_ranks=order.world_size)
        self._windows, self._first = windows, first
        self._end = first + self.num_samples if isinstance(order, GrainShuffle) or not order.parity else None

    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        line = np.arange(start + self._first, stop + self._first)
        tiles = [line[at : at + _SPAN] for at in range(0, len(line), _SPAN)]
        moved = [self._windows.permuted(tile, self._end) for tile in tiles]
        return np.concatenate([np.zeros(0, dtype=np.int64), *moved]) % max(1, self.num_samples)

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first position of each id: O(1), but O(num_samples) in the first call if Grain repeats samples."""
        if self._end is not None and not self._windows.has_collisions:
            return self._windows.unpermuted(ids + self._first, self._end) - self._first
        return first_positions(self, self.num_samples)[ids].astype(np.int64)


class _Windows:
    """Windows of ``size`` points of a line; each window is permuted with the seed ``seed`` plus its number."""

    def __init__(self, size: int, seed: int, *, parity: bool, reverses: bool = False) -> None:
        self._size, self._seed, self._parity, self._reverses = size, seed, parity, reverses

    @property
    def has_collisions(self) -> bool:
        """True if the blocks of the cipher are too small for a whole window."""
        return self._parity and (1 << _block_bits(self._size - 1, parity=True)) < self._size

    def permuted(self, points: NDArray[np.int64], end: int | None) -> NDArray[np.int64]:
        """Return the new places of ascending points; windows are cut at ``end``, if not None."""
        return self._moved(points, end, _encrypted)

    def unpermuted(self, points: NDArray[np.int64], end: int | None) -> NDArray[np.int64]:
        """Return the points that move to these places, the inverse of `permuted`."""
        return self._moved(points, end, _decrypted)

    def _moved(self, points: NDArray[np.int64], end: int | None, cipher: Any) -> NDArray[np.int64]:
        windows, inside = np.divmod(points, self._size)
        if len(points) <= _FEW and self._size <= _FEW and len(points) and windows[0] != windows[-1]:
            parts = np.split(points, np.flatnonzero(np.diff(windows)) + 1)
            return np.concatenate([self._moved(part, end, cipher) for part in parts])
        numbers, which = np.unique(windows, return_inverse=True)
        sizes = np.full(len(numbers), self._size)
        if end is not None:
            sizes = np.minimum(sizes, end - numbers * self._size)
        keys = _round_keys((self._seed + numbers) % 2**32)
        places = np.empty_like(points)
        for size in np.unique(sizes).tolist():
            rows = sizes[which] == size
            backwards = self._reverses and cipher is _encrypted
            numbers_in = size - 1 - inside[rows] if backwards else inside[rows]
            row_keys = keys if len(numbers) == 1 else keys[:, which[rows]]
            moved = _walked(cipher, numbers_in, size, row_keys, _block_bits(size - 1, parity=self._parity))
            places[rows] = size - 1 - moved if self._reverses and not backwards else moved
        places += windows * self._size
        return places


def _grain_seed(seed: int) -> int:
    number = check_seed(seed)
    if number > _MOST_SEED:
        raise UsageError(f"Grain's seeds go up to {_MOST_SEED}; got {number}")
    return number


def _block_bits(largest: int, *, parity: bool) -> int:
    """Return the bits of a block for numbers up to ``largest``; Grain takes the logarithm, rounded up."""
    bits = (largest - 1).bit_length() if parity and largest > 0 else largest.bit_length()
    return max(_LEAST_BLOCK_BITS, bits + bits % 2)


def _round_keys(seeds: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the keys of the four rounds for each seed, by ``std::seed_seq``; shape (4, len(seeds))."""
    size, middle, after = _ROUNDS, 1, 2
    words = np.full((size, len(seeds)), 0x8B8B8B8B, dtype=np.uint64)

    def mixed(values: NDArray[np.uint64], factor: int) -> NDArray[np.uint64]:
        product: NDArray[np.uint64] = (values ^ values >> np.uint64(27)) * np.uint64(factor) & _MASK32
        return product

    for k in range(size):
        added = mixed(words[k] ^ words[(k + middle) % size] ^ words[(k - 1) % size], 1664525)
        more = np.full(len(seeds), 1) if k == 0 else seeds + 1 if k == 1 else np.full(len(seeds), k)
        other = added + more.astype(np.uint64) & _MASK32
        words[(k + middle) % size] = words[(k + middle) % size] + added & _MASK32
        words[(k + after) % size] = words[(k + after) % size] + other & _MASK32
        words[k] = other
    for k in range(size):
        added = mixed(words[k] + words[(k + middle) % size] + words[(k - 1) % size] & _MASK32, 1566083941)
        other = added - np.uint64(k) & _MASK32
        words[(k + middle) % size] ^= added
        words[(k + after) % size] ^= other
        words[k] = other
    return words


def _walked(
    cipher: Any, values: NDArray[np.int64], size: int, keys: NDArray[np.uint64], block_bits: int
) -> NDArray[np.int64]:
    """Return the values after the cipher, applied until they are below ``size``."""
    if size <= 1:
        return values.copy()
    word = np.uint16 if block_bits // 2 <= 16 else np.uint32
    keys = keys.astype(word)
    if size <= _FEW and keys.shape[1] == 1:
        return _table(cipher, size, keys, block_bits, word)[values]
    moved = cipher(values.astype(np.uint64), keys, block_bits // 2, word)
    outside = np.flatnonzero(moved >= size)
    while outside.size:
        row_keys = keys if keys.shape[1] == 1 else keys[:, outside]
        again = cipher(moved[outside], row_keys, block_bits // 2, word)
        moved[outside] = again
        outside = outside[again >= size]
    walked: NDArray[np.int64] = moved.astype(np.int64)
    return walked


def _table(cipher: Any, size: int, keys: NDArray[Any], block_bits: int, word: Any) -> NDArray[np.int64]:
    """Walk all values below ``size``; in a large block with few such values, single walks would be long.

    Every value of the block jumps along its walk, with doubling distance.
    """
    after: NDArray[np.int64] = cipher(np.arange(1 << block_bits, dtype=np.uint64), keys, block_bits // 2, word).view(
        "i8"
    )
    leads = after.copy()
    leads[:size] = np.arange(size)
    while (leads[after[:size]] >= size).any():
        leads = leads[leads]
    walked: NDArray[np.int64] = leads[after[:size]]
    return walked


def _mixed_half(half: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return the round function of Simon: rotations by 1, 8 and 2 of a half of ``bits`` bits."""
    mask = half.dtype.type((1 << bits) - 1)

    def rotated(by: int) -> NDArray[Any]:
        turned: NDArray[Any] = (half << half.dtype.type(by) | half >> half.dtype.type(bits - by)) & mask
        return turned

    mixed: NDArray[Any] = rotated(1) & rotated(8) ^ rotated(2)
    return mixed


def _halves(values: NDArray[np.uint64], bits: int, word: Any) -> tuple[NDArray[Any], NDArray[Any], Any]:
    mask = np.uint64((1 << bits) - 1)
    return (values >> np.uint64(bits) & mask).astype(word), (values & mask).astype(word), word((1 << bits) - 1)


def _encrypted(values: NDArray[np.uint64], keys: NDArray[Any], bits: int, word: Any) -> NDArray[np.uint64]:
    left, right, mask = _halves(values, bits, word)
    for number in range(0, _ROUNDS, 2):
        left = left ^ _mixed_half(right, bits) ^ keys[number] & mask
        right = right ^ _mixed_half(left, bits) ^ keys[number + 1] & mask
    joined: NDArray[np.uint64] = left.astype(np.uint64) << np.uint64(bits) | right
    return joined


def _decrypted(values: NDArray[np.uint64], keys: NDArray[Any], bits: int, word: Any) -> NDArray[np.uint64]:
    left, right, mask = _halves(values, bits, word)
    for number in reversed(range(0, _ROUNDS, 2)):
        right = right ^ _mixed_half(left, bits) ^ keys[number + 1] & mask
        left = left ^ _mixed_half(right, bits) ^ keys[number] & mask
    joined: NDArray[np.uint64] = left.astype(np.uint64) << np.uint64(bits) | right
    return joined
