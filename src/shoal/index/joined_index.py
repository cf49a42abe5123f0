"""Indexes of several datasets as one, whose sample ids follow one another; their tables stay apart."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shoal.index.table import Index


@dataclass(frozen=True)
class JoinedIndex:
    """The samples of several datasets, which have names; sample ids of one follow those of the one before it."""

    names: tuple[str, ...]
    parts: tuple[Index, ...]

    @cached_property
    def first_id(self) -> NDArray[np.int64]:
        """The first sample id of each dataset, and the number of all; shape (num_parts + 1,)."""
        return np.cumsum([0, *(part.num_samples for part in self.parts)], dtype=np.int64)

    @property
    def num_samples(self) -> int:
        """Number of sample ids."""
        return int(self.first_id[-1])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the names and fingerprints of the datasets, in any order."""
        words = sorted(f"{name}\0{part.fingerprint}" for name, part in zip(self.names, self.parts, strict=True))
        return hashlib.blake2b("\0".join(words).encode(), digest_size=16).hexdigest()

    def part_of(self, sample_id: int) -> tuple[int, int]:
        """Return the number of the dataset that holds a sample, and the id of the sample there."""
        part = int(np.searchsorted(self.first_id, sample_id, side="right")) - 1
        return part, sample_id - int(self.first_id[part])

    def place(self, sample_id: int) -> tuple[str, int, int]:
        """Return the shard that holds a sample, and its first and end byte, or those of its extent."""
        part, number = self.part_of(sample_id)
        return self.parts[part].place(number)

    def by_part(self, ids: NDArray[np.int64]) -> Sequence[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Return for each dataset that has some of these samples: its number, their rows, ascending, and ids there."""
        owners = np.searchsorted(self.first_id, ids, side="right") - 1
        by_owner = np.argsort(owners.astype(np.uint16) if len(self.parts) < 1 << 16 else owners, kind="stable")
        ends = np.cumsum(np.bincount(owners, minlength=len(self.parts))).tolist()
        found = []
        for part, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
            if begin < end:
                rows = by_owner[begin:end]
                found.append((part, rows, ids[rows] - self.first_id[part]))
        return found
