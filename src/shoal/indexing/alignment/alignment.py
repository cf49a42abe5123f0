"""An alignment: for each sample of a dataset, the sample of another dataset with the same key.

Shards that were made later mostly hold their samples in the old order: neighbours then have neighbours as partners, and
a few runs say everything; two datasets of equal order are one run. Otherwise the alignment is an array, mapped from its
file, of 4 or 8 bytes a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

NO_PARTNER = -1

_LEAST_RUNS = 1 << 10
_SAMPLES_OF_A_RUN = 16  # a shorter run takes more bytes, and a longer search, than its part of an array


class Alignment(Protocol):
    """The partner of each sample of a dataset."""

    @property
    def num_samples(self) -> int:
        """Number of samples of the dataset, with and without partner."""
        ...

    @property
    def runs(self) -> PartnerRuns | None:
        """The runs of consecutive partners; None if there are too many."""
        ...

    def partners(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the partner of each sample, `NO_PARTNER` for samples without one."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PartnerRuns:
    """Runs of samples with consecutive partners: run ``i`` begins at ``first_ids[i]``, with ``first_partners[i]``.

    The runs cover all samples; samples of a run with the partner `NO_PARTNER` have none. Both of shape (num_runs,).
    """

    first_ids: NDArray[np.int64]
    first_partners: NDArray[np.int64]
    num_samples: int

    @property
    def runs(self) -> PartnerRuns:
        """The runs themselves."""
        return self

    def partners(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the partner of each sample; O(log num_runs) each."""
        run = np.searchsorted(self.first_ids, ids, side="right") - 1
        first = self.first_partners[run]
        partners: NDArray[np.int64] = np.where(first < 0, NO_PARTNER, first + ids - self.first_ids[run])
        return partners


@dataclass(frozen=True, slots=True, eq=False)
class PartnerArray:
    """The partner of each sample as an array, shape (num_samples,)."""

    array: NDArray[np.signedinteger]

    runs = None

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.array)

    def partners(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the partner of each sample; one lookup each."""
        return self.array[ids].astype(np.int64)


class RunCollector:
    """The runs of partners that come block by block; ``runs`` is None once an array is smaller."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples, self._num_seen, self._num_runs = num_samples, 0, 0
        self._most = max(_LEAST_RUNS, num_samples // _SAMPLES_OF_A_RUN)
        self._first_ids: list[NDArray[np.int64]] = []
        self._first_partners: list[NDArray[np.int64]] = []
        self._last = np.zeros(0, dtype=np.int64)

    def add(self, partners: NDArray[np.int64]) -> None:
        """Add the partners of the next samples."""
        if not len(partners) or self._num_runs > self._most:
            self._num_seen += len(partners)
            return
        before = np.concatenate([self._last, partners[:-1]]) if self._num_seen else partners[:-1]
        after = partners[len(partners) - len(before) :]
        goes_on = np.where(after < 0, before < 0, (before >= 0) & (after == before + 1))
        begins = np.flatnonzero(~goes_on) + (len(partners) - len(before))
        if not self._num_seen:
            begins = np.concatenate([[0], begins])
        self._first_ids.append(begins + self._num_seen)
        self._first_partners.append(partners[begins].astype(np.int64))
        self._num_seen += len(partners)
        self._num_runs += len(begins)
        self._last = partners[-1:]
        if self._num_runs > self._most:
            self._first_ids, self._first_partners = [], []

    @property
    def runs(self) -> PartnerRuns | None:
        """The runs of all samples so far; None if they are too many."""
        if self._num_runs > self._most:
            return None
        nothing = np.zeros(0, dtype=np.int64)
        first_ids = np.concatenate([nothing, *self._first_ids])
        return PartnerRuns(first_ids, np.concatenate([nothing, *self._first_partners]), self._num_samples)
