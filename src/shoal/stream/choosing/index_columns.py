"""Per-sample data of an index by name: its columns, and the names that numbers in them stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_text
from shoal.errors import UsageError
from shoal.formats.folder.class_directories import CLASS_FIELD, ClassDirectories
from shoal.formats.folder.reader import Folder
from shoal.formats.tokens.token_files import Tokens, token_itemsize
from shoal.hints import did_you_mean
from shoal.index.table import Index
from shoal.indexing.build import OPTIONS
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.stored_types import class_labels
from shoal.reading.checks.record_checksums import RECORD_CRCS

_SAMPLE_BYTES, _NUM_TOKENS = "sample_bytes", "num_tokens"


def column_of(index: Index, name: str) -> NDArray[Any]:
    """Return a column, shape (num_samples,); `UsageError` if there is none.

    A folder of classes has `cls`, the number of the directory of each file; files of tokens have `num_tokens`.
    """
    name = as_text("the name of a column", name)
    if name in index.columns:
        return index.columns[name]
    if name == _SAMPLE_BYTES and index.sample_bytes is not None:
        return index.sample_bytes
    if name == CLASS_FIELD and (classes := _folder_classes(index)):
        below_splits = bool(index.metadata[OPTIONS].get("below_splits"))
        numbers = ClassDirectories(tuple(classes), below_splits).numbers_of(index.shard_names)
        return np.array(numbers, dtype=np.int64)[index.extent_shard]
    if name == _NUM_TOKENS and _has_token_counts(index) and index.sample_bytes is not None:
        itemsizes = [token_itemsize(index.shard_heads[shard]) for shard in range(index.num_shards)]
        num_samples = np.diff(index.extent_first_sample[index.shard_first_extent])
        return index.sample_bytes // np.repeat(np.array(itemsizes, np.uint32), num_samples)
    known = _column_names(index)
    msg = f"the index has no column {name!r}; it has {', '.join(map(repr, known)) or 'none'}"
    reads = f'`shoal index --columns {name}`, or index_columns=["{name}"] of shoal.open, reads it from the samples'
    hint = f"{reads}; an array by sample id serves as a label"
    raise UsageError(msg, hint=did_you_mean(name, known) + hint)


def with_class_column(index: Index) -> Index:
    """Return the index with a column `cls` and its names, if it is the index of a folder of classes."""
    classes = _folder_classes(index)
    if not classes or CLASS_FIELD in index.columns:
        return index
    columns = {**index.columns, CLASS_FIELD: column_of(index, CLASS_FIELD)}
    return replace(index, columns=columns, metadata={**index.metadata, "classes": list(classes)})


def key_column(index: Index, name: str) -> NDArray[Any]:
    """Return a key for each sample by id: ``"shard"``, ``"bytes"``, or a column; read-only. `UsageError` if none.

    Bytes and columns of a float dtype are numbers (float64); all others are labels.
    """
    if as_text("the name of a column", name) == "shard":
        values: NDArray[Any] = np.repeat(
            np.arange(index.num_shards), np.diff(index.extent_first_sample[index.shard_first_extent])
        )
    elif name in ("bytes", _SAMPLE_BYTES):
        if index.sample_bytes is None:
            msg = f"{name!r} is the size of each sample, which this index does not have"
            raise UsageError(msg, hint="`shoal index` keeps sizes for up to 10**8 samples")
        values = index.sample_bytes.astype(np.float64)
    else:
        values = column_of(index, name).view()
    values.flags.writeable = False
    return values


def lengths_of_column(index: Index, name: str) -> NDArray[Any]:
    """Return the number of tokens of each sample by id; read-only. `UsageError` if the column has no such numbers."""
    values = key_column(index, name)
    words = words_of_column(index, name)
    if words is None and name != "shard":
        return values
    contents = "'shard' numbers shards" if words is None else f"the column {name!r} holds names"
    example = f", such as {words[0]!r}," if words else ","
    msg = f"{contents}{example} and no counts of tokens"
    raise UsageError(msg, hint="name the column of lengths: 'num_tokens', or 'tokens:len' for the length of a field")


def texts_of_column(index: Index, name: str) -> Sequence[str] | None:
    """Return the sorted texts that the numbers of a column stand for; None if it is no column of texts."""
    texts: Mapping[str, Sequence[str]] = index.metadata.get("texts", {})
    return texts.get(name)


def words_of_column(index: Index, name: str) -> Sequence[str] | None:
    """Return the texts or class names that the numbers of a column stand for; None if there are none."""
    if (texts := texts_of_column(index, name)) is not None:
        return texts
    classes: Mapping[str, Sequence[str]] | Sequence[str] | None = index.metadata.get("classes")
    if isinstance(classes, Mapping):
        return classes.get(name)
    return (classes or _folder_classes(index)) if name == CLASS_FIELD else None


def class_names(opened: Opened, field: str | None = None) -> tuple[str, ...]:
    """Return the names that numbers of a field stand for, by its index column or the features of Hugging Face.

    The default field is `cls`, or `label` if only that has names. `UsageError` if the numbers have no names.
    """
    index = opened.index
    fields = (CLASS_FIELD, "label") if field is None else (field,)
    words, named = next(filter(None, (words_of_column(index, name) for name in fields)), None), dict[str, Any]()
    if words is None:
        named = class_labels(opened)
        words = next((named[name] for name in fields if name in named), None)
    if words is None:
        known = dict.fromkeys([*(name for name in _column_names(index) if words_of_column(index, name)), *named])
        msg = f"the numbers of {field or CLASS_FIELD!r} have no names here"
        hint = "folders of classes, what `shoal pack` makes of them, and datasets of Hugging Face have them"
        raise UsageError(msg, hint=f"there are names for {', '.join(map(repr, known))}" if known else hint)
    return tuple(words)


def column_names(index: Index) -> list[str]:
    """Return the columns of the index, and the class of a folder of classes."""
    derived = [CLASS_FIELD] if CLASS_FIELD not in index.columns and _folder_classes(index) else []
    derived += [_NUM_TOKENS] if _NUM_TOKENS not in index.columns and _has_token_counts(index) else []
    return [*index.columns, *derived]


def _column_names(index: Index) -> list[str]:
    names = [name for name in column_names(index) if name != RECORD_CRCS]
    return names + ([_SAMPLE_BYTES] if index.sample_bytes is not None else [])


def _has_token_counts(index: Index) -> bool:
    return index.format == Tokens.name and index.sample_bytes is not None


def _folder_classes(index: Index) -> Sequence[str] | None:
    if index.format != Folder.name:
        return None
    classes: Sequence[str] | None = index.metadata.get(OPTIONS, {}).get("classes")
    return classes
