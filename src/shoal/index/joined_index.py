"""The index of several datasets with consecutive sample ids; their tables stay separate."""

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
    """The samples of several named datasets; the ids of a dataset follow the ids of the dataset before it."""

    names: tuple[str, ...]
    parts: tuple[Index, ...]

    @cached_property
    def first_id(self) -> NDArray[np.int64]:
        """First sample id of each dataset, then the number of ids; shape (num_parts + 1,)."""
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
        """Return the number of a sample's dataset, and the sample's id in it."""
        part = int(np.searchsorted(self.first_id, sample_id, side="right")) - 1
        return part, sample_id - int(self.first_id[part])

    def place(self, sample_id: int) -> tuple[str, int, int]:
        """Return the shard of a sample, and the first and end byte of the sample or of its extent."""
        part, number = self.part_of(sample_id)
        return self.parts[part].place(number)

    def by_part(self, ids: NDArray[np.int64]) -> Sequence[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Group samples by dataset: its number, the rows of its samples, ascending, and their ids in it."""
        owners = np.searchsorted(self.first_id, ids, side="right") - 1
        by_owner = np.argsort(owners.astype(np.uint16) if len(self.parts) < 1 << 16 else owners, kind="stable")
        ends = np.cumsum(np.bincount(owners, minlength=len(self.parts))).tolist()
        groups = ((part, by_owner[begin:end]) for part, (begin, end) in enumerate(itertools.pairwise([0, *ends])))
        return [(part, rows, ids[rows] - self.first_id[part]) for part, rows in groups if len(rows)]
