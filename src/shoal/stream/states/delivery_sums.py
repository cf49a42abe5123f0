"""Sums over the samples that a rank delivered; they add up over any number of ranks, workers and resumed runs.

Each delivered sample is hashed together with its position, and the hashes are added modulo 2^64: so the sum does not
depend on the rank, the worker or the time of a delivery, and it changes if a sample is missing, duplicated, moved or
replaced. design/certificate.md has the reasons. The hashes of a span of batches are computed at once; the position of
the iterator determines the delivered part of the span.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.index.joined_index import JoinedIndex
from shoal.index.table import Index
from shoal.order.partition import Share
from shoal.order.seeds import draws, key, keys
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.reading.resolved_order import Resolved

_MASK = 2**64 - 1
_MOST_NOTED = 2
_MOST_ENTRIES = 1 << 20
_MOST_STEPS = 4


class Proof(NamedTuple):
    """Number of samples, and the sum of their hashes modulo 2^64."""

    num_samples: int = 0
    total: int = 0

    def plus(self, other: Proof) -> Proof:
        """Return the sum of both."""
        return Proof(self.num_samples + other.num_samples, (self.total + other.total) & _MASK)

    def minus(self, other: Proof) -> Proof:
        """Subtract ``other``, a part of this proof."""
        return Proof(self.num_samples - other.num_samples, (self.total - other.total) & _MASK)


NOTHING = Proof()
"""Proof of no delivery."""


@dataclass(frozen=True, slots=True)
class DeliveredPart:
    """The samples delivered from positions ``[start, end)`` of an epoch, summed up.

    ``index`` is the fingerprint of the dataset if the epoch read an earlier dataset than the newest epoch, else "".
    """

    start: int
    end: int
    proof: Proof
    index: str = ""

    def plus(self, other: DeliveredPart) -> DeliveredPart:
        """Return the sum of both parts."""
        proof = self.proof.plus(other.proof)
        return DeliveredPart(min(self.start, other.start), max(self.end, other.end), proof, self.index or other.index)

    def with_gaps(self, resolved: Resolved, epoch: int) -> DeliveredPart:
        """Convert positions without gaps to positions of the order."""
        start, end = resolved.span_of(epoch, self.start, self.end)
        return DeliveredPart(start, end, self.proof, self.index)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        num_samples, total = self.proof
        own = {"index": self.index} if self.index else {}
        return {"start": self.start, "end": self.end, "num_samples": num_samples, "sum": f"{total:016x}", **own}


class RecordHashes:
    """A 64-bit hash of each sample at its position: of epoch, position, id and the checksum of its record.

    ``kind`` names the available checksums: "records" (of each record), "extents" (of the extent that holds a record),
    "none", or "mixed" if sources have different kinds.
    """

    def __init__(self, index: Index | JoinedIndex) -> None:
        self._index = index
        parts = index.parts if isinstance(index, JoinedIndex) else (index,)
        self._checksums = [_Checksums(part) for part in parts]
        kinds = {checksums.kind for checksums in self._checksums}
        self.kind = kinds.pop() if len(kinds) == 1 else "mixed"

    def of(self, epoch: int, positions: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the hashes, shape (num_samples,); 20 to 60 ns per hash."""
        hashes = draws(keys(key(0, epoch, "certificate"), positions), ids)
        if not isinstance(self._index, JoinedIndex):
            return self._checksums[0].into(hashes, ids)
        for part, rows, own_ids in self._index.by_part(ids):
            hashes[rows] = self._checksums[part].into(hashes[rows], own_ids)
        return hashes


class _Checksums:
    """The checksums of an index, and their kind: of records or of extents."""

    def __init__(self, index: Index) -> None:
        self._records = index.columns.get(RECORD_CRCS)
        self._extents = index.extent_checksum if self._records is None else None
        self._extent_of = None if self._extents is None else _Extents(index.extent_first_sample)
        self.kind = "records" if self._records is not None else "extents" if self._extents is not None else "none"

    def into(self, hashes: NDArray[np.uint64], ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the hashes with the checksum of each sample hashed in."""
        if self._records is not None:
            return draws(hashes, self._records[ids])
        if self._extents is not None and self._extent_of is not None:
            return draws(hashes, self._extents[self._extent_of.of(ids)])
        return hashes


class _Extents:
    """Lookup of the extent of a sample: a table over ids gives an estimate, five times as fast as a search."""

    def __init__(self, first_sample: NDArray[np.int64]) -> None:
        self._first = first_sample
        num_samples = int(first_sample[-1])
        entries = min(_MOST_ENTRIES, 2 * len(first_sample))
        self._shift = max(0, (max(1, num_samples) // entries).bit_length())
        starts = np.arange((num_samples >> self._shift) + 1, dtype=np.int64) << self._shift
        self._table = np.searchsorted(first_sample, starts, side="right") - 1

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        extents: NDArray[np.int64] = self._table[ids >> self._shift]
        for _ in range(_MOST_STEPS):
            behind = self._first[extents + 1] <= ids
            if not behind.any():
                return extents
            extents += behind
        return np.searchsorted(self._first, ids, side="right").astype(np.int64) - 1


@dataclass(slots=True)
class _Noted:
    """A span of batches at these steps: the hash of each sample, and counts and sums before each batch."""

    steps: range
    hashes: NDArray[np.uint64]
    batch_first: NDArray[np.int64]
    counts: NDArray[np.int64]
    totals: NDArray[np.uint64]
    dropped: list[tuple[int, Proof]] = field(default_factory=list)

    def up_to(self, step: int) -> Proof:
        """Sum all batches before this step, without dropped samples."""
        done = len(range(self.steps.start, min(step, self.steps.stop), self.steps.step))
        so_far = Proof(int(self.counts[done]), int(self.totals[done]))
        for at, lost in self.dropped:
            so_far = so_far.minus(lost) if at < step else so_far
        return so_far


class DeliverySums:
    """Record of the samples delivered by an iterator, up to its position."""

    def __init__(self, hashes: RecordHashes, epoch: int) -> None:
        self._hashes, self._epoch = hashes, epoch
        self._noted: deque[_Noted] = deque()
        self._before = Proof()  # of finished spans

    def hash_by(self, hashes: RecordHashes) -> None:
        """Use the hashes of an index with more shards from now on."""
        self._hashes = hashes

    def note(self, share: Share, steps: range) -> None:
        """Record the share that will be delivered at these steps, span by span."""
        hashes = self._hashes.of(self._epoch, share.positions, share.ids)
        hashes[share.repeated] = 0  # marked repeats do not count
        sums = np.zeros(len(hashes) + 1, dtype=np.uint64)
        np.cumsum(hashes, out=sums[1:])
        counts = np.zeros(len(hashes) + 1, dtype=np.int64)
        np.cumsum(~share.repeated, out=counts[1:])
        first = share.batch_first
        while len(self._noted) > _MOST_NOTED:
            # Shares are requested one span ahead, so all spans before the last two are finished.
            over = self._noted.popleft()
            self._before = self._before.plus(over.up_to(over.steps.stop))
        self._noted.append(_Noted(steps, hashes, first, counts[first], sums[first]))

    def dropped(self, step: int, number: int) -> None:
        """Record that sample ``number`` of the batch at this step is not delivered."""
        for noted in self._noted:
            if step in noted.steps:
                lost = int(noted.hashes[int(noted.batch_first[noted.steps.index(step)]) + number])
                if lost:  # else the sample was a repeat, and repeats do not count
                    noted.dropped.append((step, Proof(1, lost)))

    def up_to(self, step: int) -> Proof:
        """Sum all deliveries before this step, at most two spans back."""
        so_far = self._before
        for noted in self._noted:
            so_far = so_far.plus(noted.up_to(step))
        return so_far
