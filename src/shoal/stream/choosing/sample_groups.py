"""The group of each sample as 64 bits: equal for equal groups, on any machine and in any dataset.

A text is hashed by its letters and not by its number in an index, because two datasets may number the same text
differently. The number 7 and the text "7" are the same group, because a column of numbers becomes a column of texts
when a shard with other texts is added. Two groups share a hash, and so a split, with a probability of 2**-64.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from posixpath import basename
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.scan.sample_keys import sample_keys
from shoal.order.arrays.index_ranges import Runs
from shoal.order.arrays.vectorized import distinct
from shoal.order.seeds import key, keys, text_keys
from shoal.stream.choosing.index_columns import column_of, words_of_column

KEY, SHARD = "__key__", "shard"
"""Words of ``by=`` that are not columns."""

_OF_TEXTS = key(0, 0, "text group")
_OF_NUMBERS, _OF_LARGE_NUMBERS, _OF_REAL_NUMBERS = (
    key(0, 0, f"{kind} group") for kind in ("number", "large number", "real number")
)
_NOT_A_NUMBER = 0x7FF8000000000000
_WHOLE = re.compile("0|-?[1-9][0-9]{0,19}")
_SPAN = 1 << 16  # samples, so that temporaries stay in the cache

Spans = Iterable[tuple[slice, NDArray[np.uint64]]]


@dataclass(frozen=True, slots=True)
class Groups:
    """The hash of the group of each sample of an index, computed span by span: ``hashes(first, end)``."""

    num_samples: int
    hashes: Callable[[int, int], NDArray[np.uint64]]

    def spans(self) -> Spans:
        """Yield the hashes of all samples, in spans of ids."""
        for first in range(0, self.num_samples, _SPAN):
            end = min(first + _SPAN, self.num_samples)
            yield slice(first, end), self.hashes(first, end)

    def distinct(self, left: Runs | None) -> NDArray[np.uint64]:
        """Return the distinct hashes, sorted, of the samples that are left; O(n log n)."""
        ids = np.arange(self.num_samples)
        mask = np.ones(len(ids), dtype=np.bool_) if left is None else left.numbers(ids) >= 0
        of_spans = [distinct(hashes[mask[span]]) for span, hashes in self.spans()]
        return distinct(np.concatenate([np.zeros(0, dtype=np.uint64), *of_spans]))


def groups_of(opened: Opened, by: Any, group: Callable[[Any], Any] | None = None) -> Groups:
    """Return the group of each sample; see `shoal.Dataset.split`.

    `UsageError` if the column does not exist, or if a group is neither a text nor a number.
    """
    index = opened.index
    if callable(by) or (by is None and group is not None):
        msg = "group= is a function of the value of by=, but by= is missing"
        raise UsageError(msg, hint='split(..., by="__key__", group=lambda key: key.split("_")[0])')
    if by is None:
        return _single_samples(index)
    if not isinstance(by, str):
        return _of_values(_given(by, index.num_samples), group)
    if by == SHARD:
        hashes, first_sample = _hashed(_shard_names(index), group), _first_sample(index)
        return Groups(index.num_samples, lambda first, end: _spread(hashes, first_sample, first, end))
    if by == KEY and KEY not in index.columns:
        of_parts = [_hashed(part, group) for part in sample_keys(opened)]
        hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *of_parts])
        return Groups(len(hashes), lambda first, end: hashes[first:end])
    column, words = column_of(index, by), words_of_column(index, by)
    return _of_values(column, group) if words is None else _of_words(column, _hashed(words, group))


def hashed_values(values: Iterable[Any]) -> NDArray[np.uint64]:
    """Return the hash of each group, shape (num_values,); `UsageError` if a group is neither a text nor a number."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if all(isinstance(value, str) for value in plain):
        return hashed_texts(plain)
    if odd := [value for value in plain if not isinstance(value, str | int | float)]:
        raise UsageError(f"a group is a text or a number; got {odd[0]!r:.80} of type {type(odd[0]).__name__}")
    hashes = np.empty(len(plain), dtype=np.uint64)
    for kind in (str, float, int):
        places = [number for number, value in enumerate(plain) if isinstance(value, kind)]
        chosen = [plain[place] for place in places]
        if kind is int:  # integers beyond 64 bits are hashed as texts
            hashes[places] = hashed_texts([str(int(value)) for value in chosen])
        else:
            hashes[places] = hashed_texts(chosen) if kind is str else hashed_numbers(np.array(chosen, dtype=float))
    return hashes


def _hashed(values: Sequence[str], group: Callable[[Any], Any] | None) -> NDArray[np.uint64]:
    return hashed_texts(values) if group is None else hashed_values(map(group, values))


def is_whole_number(text: str) -> bool:
    """Return True if a text is the usual spelling of an integer with up to 20 digits."""
    return _WHOLE.fullmatch(text) is not None


def hashed_texts(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Return the hash of each text; the text of a whole number has the hash of the number."""
    hashes = text_keys(_OF_TEXTS, texts)
    numbers = [(i, int(text)) for i, text in enumerate(texts) if is_whole_number(text)]
    for kind, first, end in ((np.int64, -(2**63), 2**63), (np.uint64, 2**63, 2**64)):
        chosen = [(i, number) for i, number in numbers if first <= number < end]
        hashes[[i for i, _ in chosen]] = hashed_numbers(np.array([number for _, number in chosen], dtype=kind))
    return hashes


def hashed_numbers(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the hash of each number: numbers are equal in value, whatever their type."""
    if values.dtype.kind in "bi":
        return keys(_OF_NUMBERS, values)
    words = values.astype(np.uint64 if values.dtype.kind == "u" else np.float64).view(np.uint64)
    if values.dtype.kind == "u":
        others, base = np.flatnonzero(words >> np.uint64(63)), _OF_LARGE_NUMBERS  # -1 has the bits of 2**64 - 1
    else:
        wide = words.view(np.float64)
        is_whole = (np.floor(wide) == wide) & (np.abs(wide) < 2.0**63)
        others, base = np.flatnonzero(~is_whole), _OF_REAL_NUMBERS  # and 0.5 has the bits of 4602678819172646912
        words[np.isnan(wide)] = _NOT_A_NUMBER
        words[is_whole] = wide[is_whole].astype(np.int64).view(np.uint64)
    hashes = keys(_OF_NUMBERS, words)
    hashes[others] = keys(base, words[others])
    return hashes


def _of_values(values: NDArray[Any] | Sequence[str], group: Callable[[Any], Any] | None) -> Groups:
    """Group samples by number or text; ``group`` is called once for each distinct number, or for each text."""
    if not isinstance(values, np.ndarray):
        return Groups(len(values), lambda first, end: _hashed(values[first:end], group))
    if group is None:
        return Groups(len(values), lambda first, end: hashed_numbers(values[first:end]))
    numbers, places = np.unique(values, return_inverse=True)
    hashes = hashed_values(map(group, numbers.tolist()))
    return Groups(len(values), lambda first, end: hashes[places[first:end]])


def _of_words(codes: NDArray[Any], hashes: NDArray[np.uint64]) -> Groups:
    """Group samples by the text of their code; a code without a text is a group of its own."""

    def of_span(first: int, end: int) -> NDArray[np.uint64]:
        span = codes[first:end]
        known = (span >= 0) & (span < len(hashes))
        if known.all():
            every: NDArray[np.uint64] = hashes[span]
            return every
        of_numbers = hashed_numbers(span)
        of_numbers[known] = hashes[span[known]]
        return of_numbers

    return Groups(len(codes), of_span)


def _single_samples(index: Index) -> Groups:
    """Make each sample a group, identified by the name of its shard and its number there."""
    shard_hashes, first_sample = hashed_texts(_shard_names(index)), _first_sample(index)

    def of_span(first: int, end: int) -> NDArray[np.uint64]:
        numbers = np.arange(first, end) - _spread(first_sample, first_sample, first, end)
        return keys(_spread(shard_hashes, first_sample, first, end), numbers)

    return Groups(index.num_samples, of_span)


def _spread(values: NDArray[Any], first_sample: NDArray[np.int64], first: int, end: int) -> NDArray[Any]:
    """Return the value of the shard of each sample of a span."""
    after_first, stop = np.searchsorted(first_sample, [first, end - 1], side="right").tolist()
    begin = after_first - 1
    borders = np.clip(first_sample[begin : stop + 1], first, end)
    spread: NDArray[Any] = np.repeat(values[begin:stop], np.diff(borders))
    return spread


def _first_sample(index: Index) -> NDArray[np.int64]:
    return index.extent_first_sample[index.shard_first_extent]


def _shard_names(index: Index) -> list[str]:
    """Return the base names of the shards, so that a copy of a dataset has the same groups."""
    return [basename(name) for name in index.shard_names]


def _given(values: Any, num_samples: int) -> NDArray[Any] | Sequence[str]:
    """Convert ``by``, a value for each sample by id, to an array of numbers or a list of texts."""
    listed = values.tolist() if isinstance(values, np.ndarray) and values.dtype.kind in "UO" else values
    if isinstance(listed, Collection) and len(listed) == num_samples and all(isinstance(v, str) for v in listed):
        return list(listed)
    array = np.asarray(listed)
    if array.shape != (num_samples,) or array.dtype.kind not in "biuf":
        what = f"a text or number for each of {num_samples} samples by id"
        raise UsageError(f"by= takes a column of the index, or {what}; got {array.dtype} of shape {array.shape}")
    return array
