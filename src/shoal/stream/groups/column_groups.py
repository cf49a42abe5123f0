"""Groups of samples by a column of the index: their values, and the number of the group of each sample."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.index.table import Index
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.choosing.index_columns import column_names, key_column, words_of_column

_DERIVED = ("shard", "bytes", "sample_bytes")
"""Columns that an index has without being asked."""


class ColumnGroups(NamedTuple):
    """Groups by column: the value of each group, the group of each sample by id, and the samples of each group.

    ``counts`` counts only samples that take part.
    """

    values: list[Any]
    groups: NDArray[np.integer[Any]]
    counts: NDArray[np.int64]

    def sizes_in_words(self, numbers: NDArray[np.int64], *, most: int = 3) -> str:
        """Return values and numbers of samples of some groups, for an error.

        >>> ColumnGroups(["cat", "dog"], np.array([0, 1, 0]), np.array([2, 1])).sizes_in_words(np.array([1, 0]))
        "'dog' (1), 'cat' (2)"
        """
        shown = [f"{self.values[number]!r} ({self.counts[number]:,})" for number in numbers[:most].tolist()]
        return ", ".join(shown) + (", ..." if len(numbers) > most else "")


def groups_of(parts: Sequence[ResolvedOrder], column: str) -> ColumnGroups:
    """Return the groups of the samples of some datasets, joined in order; equal values are one group.

    Groups are numbered dataset by dataset, so a dataset that is added later changes no number. `UsageError` if an index
    lacks the column.
    """
    numbers: dict[Any, int] = {}
    groups, counts = list[NDArray[np.integer[Any]]](), np.zeros(0, dtype=np.int64)
    for part in parts:
        with hint_at_columns(part.index, column, "by="):
            values, own_groups = _own_groups(part.index, column)
        renumbered = np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int32)
        is_same = bool((renumbered == np.arange(len(values))).all())
        groups.append(own_groups if is_same else renumbered[own_groups])
        counted = own_groups if part.stored is None else own_groups[part.stored.members(np.arange(len(part.stored)))]
        counts = np.concatenate([counts, np.zeros(len(numbers) - len(counts), dtype=np.int64)])
        counts[renumbered] += np.bincount(counted, minlength=len(values))
    return ColumnGroups(list(numbers), np.concatenate(groups) if len(groups) > 1 else groups[0], counts)


def _own_groups(index: Index, column: str) -> tuple[Sequence[Any], NDArray[np.integer[Any]]]:
    """Return the values of a column, and the number of the value of each sample."""
    stored, words = key_column(index, column), words_of_column(index, column)
    if words is not None:
        return words, stored
    values, groups = np.unique(stored, return_inverse=True)
    return values.tolist(), groups.astype(np.int32)


@contextlib.contextmanager
def hint_at_columns(index: Index, column: str, argument: str) -> Iterator[None]:
    """Name the argument in the error for a column that the index lacks."""
    try:
        yield
    except UsageError as error:
        if column in (*column_names(index), *_DERIVED):
            raise
        hint = did_you_mean(column, column_names(index))
        hint += f"`shoal index --columns {column}`, or index_columns=[{column!r}] of shoal.open, reads a stored field; "
        hint += f"shoal.pack.repack(ds, url, columns=[{column!r}]) stores a field that map() or join() makes"
        raise UsageError(f"batch({argument}{column!r}): {error.message}", hint=hint) from None
