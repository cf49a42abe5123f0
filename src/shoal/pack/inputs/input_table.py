"""Inputs of a packing by number; any process can read any input."""

# Each process that makes shards imports this file. Listing inputs needs more modules, and is in other files.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.formats.shard_format import Sample
from shoal.pack.inputs.duplicates import Dedup, Distinct, Duplicates
from shoal.pack.inputs.sample_fields import FieldSets
from shoal.pack.shards.shard_writer import Unreadable

TAR_BLOCK = 512
"""Bytes of a header in a tar, and of the units in which it stores data."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InputTable(ABC):
    """Inputs by number, to be packed into shards of ``format``.

    ``classes`` has the names of the classes, maybe by column, for the metadata of the index; ``label``, int32, has the
    class code of each input. ``left_out`` has names and reasons of inputs without a required field; ``duplicates``
    counts inputs that equal an earlier input, None without ``dedup``.
    """

    format: str
    classes: Sequence[str] | Mapping[str, Sequence[str]] = ()
    label: NDArray[np.int32] | None = None
    left_out: tuple[tuple[str, str], ...] = ()
    duplicates: Duplicates | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def record_bytes(self) -> NDArray[np.int64]:
        """Return the approximate bytes of each input in a shard; shape (len,)."""

    def content_bytes(self) -> NDArray[np.int64] | None:
        """Return the bytes of each input's files, equal for equal contents; None if unknown."""
        return None

    @abstractmethod
    def without(self, distinct: Distinct, by: Dedup) -> InputTable:
        """Return the inputs without duplicates."""

    @abstractmethod
    def labels(self, key: str) -> Sequence[str | None]:
        """Return the value of ``key`` of each input, as text; raises `UsageError` if inputs have none."""

    @abstractmethod
    def key(self, number: int) -> str:
        """Return the name of an input for messages."""

    def field_sets(self) -> FieldSets | None:
        """Return the fields of each input by the suffixes of its files; None if inputs are not files."""
        return None

    @abstractmethod
    def samples(self, numbers: NDArray[np.int64], copies: NDArray[np.int64]) -> Iterable[Sample | Unreadable]:
        """Return samples of inputs, in this order, read lazily; ``copies`` has copy numbers from 0. Can be pickled."""

    @abstractmethod
    def digest(self) -> str:
        """Return a digest that is equal for equal inputs: names, sizes, times."""

    def column_path(self, name: str) -> str:
        """Return the path in a sample of a column of the inputs."""
        return name

    def refuse_copies(self, times: NDArray[np.int64]) -> None:  # noqa: B027  # keys that are numbers never collide
        """Raise `UsageError` if a copy would get the key of another input; ``times`` has the repeats of each input."""

    @abstractmethod
    def options(self, *, skips: bool) -> dict[str, Any]:
        """Return format options with the columns of all samples; `UsageError` if there are none, unless ``skips``."""
