"""The key of each sample as a hash of 128 bits: equal for equal keys, in any dataset and format.

A key is a text or a number. The number 7 and the text "7" are the same key, as in splits: a tar holds numbers as
texts. Keys come from the index where it has them: from a column, from names of files, or from the headers of tars.
Otherwise the field is read from all samples, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.column_paths import as_columns
from shoal.formats.folder.reader import Folder
from shoal.formats.rows.tar.reader import Tar
from shoal.indexing.alignment.matched_keys import HashedKeys
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.scan.sample_keys import sample_keys
from shoal.order.arrays.index_ranges import Runs
from shoal.order.seeds import key, keys, text_keys
from shoal.pipeline.sample_columns.column_parts import TEXT, Part
from shoal.pipeline.sample_columns.column_scan import scanned_parts
from shoal.reading.checks.damaged_samples import read_sample
from shoal.stream.choosing.index_columns import words_of_column
from shoal.stream.choosing.sample_groups import KEY, hashed_numbers, hashed_texts, is_whole_number

_LOW_TEXTS, _LOW_NUMBERS = key(0, 0, "low text key"), key(0, 0, "low number key")
_SPAN = 1 << 16
_A_PAIR = 'on=("__key__", "image_id") names the key of the left side, then of the joined side'
_KEYS_AT_ONCE = 1 << 14

Hashes = tuple[NDArray[np.uint64], NDArray[np.uint64]]


def hashed_keys(
    opened: Opened, on: str, *, side: str = "left side", working: Callable[[], None] = lambda: None
) -> Iterator[HashedKeys]:
    """Yield the hashed keys of the samples that take part, in the order of their ids.

    ``on`` is ``"__key__"``, a column of the index, or a field or path of the samples. ``working`` is called again and
    again. Raises `UsageError`, which names the side: the dataset has no such keys, or a sample has none; `ShardError`,
    `StorageError`: keys cannot be read.
    """
    first = 0
    try:
        for high, low in _hashes(opened, on):
            ids = np.arange(first, first + len(high))
            first += len(high)
            working()
            yield HashedKeys(ids, high, low)
    except UsageError as error:
        msg = f"join(): the {side} cannot be matched by {on!r}: {error.message}"
        raise UsageError(msg, hint="; ".join(filter(None, (error.hint, _A_PAIR)))) from None


def chosen_keys(parts: Iterable[HashedKeys], stored: Runs | None) -> Iterator[HashedKeys]:
    """Yield the keys of the selected samples alone; None selects all."""
    for part in parts:
        if stored is None:
            yield part
            continue
        chosen = stored.numbers(part.ids) >= 0
        yield HashedKeys(part.ids[chosen], part.high[chosen], part.low[chosen])


def comes_from_index(opened: Opened, on: str) -> bool:
    """Return True if the index itself has the keys, as a column."""
    return on in opened.index.columns


def _hashes(opened: Opened, on: str) -> Iterator[Hashes]:
    index = opened.index
    if comes_from_index(opened, on):
        words, column = words_of_column(index, on), index.columns[on]
        of_words = None if words is None else hashes_of_texts(words)
        for first in range(0, index.num_samples, _SPAN):
            yield _of_codes(column[first : first + _SPAN], of_words)
    elif on == KEY and isinstance(opened.format, Tar | Folder):
        for texts in sample_keys(opened):
            for first in range(0, len(texts), _KEYS_AT_ONCE):
                yield hashes_of_texts(texts[first : first + _KEYS_AT_ONCE])
    elif on == KEY:
        fields = ", ".join(read_sample(opened, 0)) if index.num_samples else ""
        msg = f"samples of {index.format} have no '__key__', which files in tars and folders have"
        raise UsageError(msg, hint=f"they have {fields}" if fields else "the dataset has no samples")
    else:
        (column_of_on,) = as_columns([f"{on}={on}"])
        for part in scanned_parts(opened, column_of_on):
            yield _of_part(part, on, index.format)


def hashes_of_texts(texts: Sequence[str]) -> Hashes:
    """Return the hashes of texts; the text of a whole number has the hash of the number."""
    high, low = hashed_texts(texts), text_keys(_LOW_TEXTS, texts)
    numbers = [place for place, text in enumerate(texts) if is_whole_number(text)]
    low[numbers] = keys(_LOW_NUMBERS, high[numbers])
    return high, low


def hashes_of_numbers(values: NDArray[Any]) -> Hashes:
    """Return the hashes of numbers: the first 64 bits differ for any two numbers."""
    high = hashed_numbers(values)
    return high, keys(_LOW_NUMBERS, high)


def _of_codes(codes: NDArray[Any], of_words: Hashes | None) -> Hashes:
    if of_words is None:
        return hashes_of_numbers(codes)
    high, low = of_words
    return high[codes], low[codes]


def _of_part(part: Part, on: str, format_name: str) -> Hashes:
    if len(part.missing):
        msg = f"{len(part.missing)} of {len(part.values)} consecutive {format_name} samples have no field {on!r}"
        raise UsageError(msg, hint="choose a field that every sample has")
    return _of_codes(part.values, hashes_of_texts(part.words) if part.kind == TEXT else None)
