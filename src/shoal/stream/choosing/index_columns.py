"""Columns of an index by name: their values, the names that numbers stand for, and the choice of samples by columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_text
from shoal.errors import UsageError
from shoal.formats.folder.class_directories import CLASS_FIELD, ClassDirectories
from shoal.formats.folder.reader import Folder
from shoal.formats.rows.token_files import Tokens, token_itemsize
from shoal.hints import did_you_mean
from shoal.index.table import Index
from shoal.indexing.build import OPTIONS
from shoal.indexing.opened_dataset import Opened
from shoal.order.arrays.index_ranges import Runs
from shoal.pipeline.stored_types import class_labels
from shoal.reading.checks.record_checksums import RECORD_CRCS

_SAMPLE_BYTES, _NUM_TOKENS = "sample_bytes", "num_tokens"
_MOST_WORDS = 10  # texts of a column that an error lists


def column_of(index: Index, name: str) -> NDArray[Any]:
    """Return a column, shape (num_samples,); `UsageError` if the column does not exist.

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
    hint = f"{reads}; an array by sample id works as well"
    raise UsageError(msg, hint=did_you_mean(name, known) + hint)


def with_class_column(index: Index) -> Index:
    """Return the index; for a folder of classes, add a column `cls` and the class names."""
    classes = _folder_classes(index)
    if not classes or CLASS_FIELD in index.columns:
        return index
    columns = {**index.columns, CLASS_FIELD: column_of(index, CLASS_FIELD)}
    return replace(index, columns=columns, metadata={**index.metadata, "classes": list(classes)})


def key_column(index: Index, name: str) -> NDArray[Any]:
    """Return a key for each sample by id: ``"shard"``, ``"bytes"``, or a column; read-only. `UsageError` if unknown.

    Bytes and columns of a float dtype are numbers (float64); all other columns are labels.
    """
    if as_text("the name of a column", name) == "shard":
        values: NDArray[Any] = np.repeat(
            np.arange(index.num_shards), np.diff(index.extent_first_sample[index.shard_first_extent])
        )
    elif name in ("bytes", _SAMPLE_BYTES):
        if index.sample_bytes is None:
            msg = f"{name!r} is the size of each sample, and this index has no sizes"
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
    """Return the sorted texts behind the numbers of a column; None if the column has no texts."""
    texts: Mapping[str, Sequence[str]] = index.metadata.get("texts", {})
    return texts.get(name)


def words_of_column(index: Index, name: str) -> Sequence[str] | None:
    """Return the texts or class names behind the numbers of a column; None for a column without names."""
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
        msg = f"the index has no names for the numbers of {field or CLASS_FIELD!r}"
        hint = "folders of classes, shards that `shoal pack` makes of them, and Hugging Face datasets have names"
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


# ---- the choice of samples by columns


def choose_by_columns(index: Index, columns: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return a mask of the samples with the requested values in all columns, shape (num_samples,)."""
    mask = np.ones(index.num_samples, dtype=bool)
    for name, wanted in columns.items():
        if callable(wanted):
            mask &= _kept_by_function(index, name, wanted)
        else:
            mask &= np.isin(column_of(index, name), _numbers_of(index, name, wanted))
    return mask


def _numbers_of(index: Index, name: str, wanted: Any) -> NDArray[Any]:
    """Return the requested values of a column as stored: texts and class names as numbers."""
    # numpy would treat a set as a single value.
    several = isinstance(wanted, Collection) and not isinstance(wanted, (str, bytes, np.ndarray))
    values = np.atleast_1d(np.asarray(list(wanted) if several else wanted))
    if values.dtype.kind != "U":
        return values
    words = words_of_column(index, name)
    if words is None:
        msg = f"the column {name!r} holds numbers without names; got {str(values[0])!r}"
        raise UsageError(msg, hint=f"give numbers: select({name}=0)")
    numbers = {word: number for number, word in enumerate(words)}
    if missing := [value for value in values.tolist() if value not in numbers]:
        shown = ", ".join(map(repr, words[:_MOST_WORDS])) + (", ..." if len(words) > _MOST_WORDS else "")
        msg = f"no sample has {missing[0]!r} in the column {name!r}; it holds {len(words)} texts: {shown}"
        raise UsageError(msg, hint="texts are compared letter by letter")
    return np.asarray([numbers[value] for value in values.tolist()], dtype=np.int64)


def numbers_left(samples: Any, left: Runs) -> Any:
    """Convert sample ids to numbers among the samples left by earlier selections; a mask is returned as it is."""
    array = np.atleast_1d(np.asarray(samples))
    if array.dtype.kind not in "iu":
        return samples
    numbers = left.numbers(array.astype(np.int64))
    if (numbers < 0).any():
        msg = f"sample {array[numbers < 0][0]} is not among the {len(left)} samples left by earlier selections"
        raise UsageError(msg, hint="select() before shuffle() takes sample ids, which do not change with selections")
    return numbers


def _kept_by_function(index: Index, name: str, function: Callable[[Any], Any]) -> NDArray[np.bool_]:
    """Return a mask of the samples that a function keeps.

    The function gets the column as an array. For a column of texts, the array has the distinct texts (dtype object).
    """
    column, texts = column_of(index, name), texts_of_column(index, name)
    if texts is not None:
        words = np.empty(len(texts), dtype=object)
        words[:] = texts
        of_words = _checked(
            function(words), name, len(words), "texts", "the function gets the distinct texts of the column"
        )
        kept: NDArray[np.bool_] = of_words[column]
        return kept
    try:
        of_numbers = function(column.view(_Numbers))
    except _ComparedError as error:
        msg = f"the function for {name!r} compares numbers with {error.text!r}, which equals no number"
        hint = "the column holds numbers"
        if words_of_column(index, name) is not None:
            hint = f"select({name}=[...]) takes names; class_names({name!r}).index({error.text!r}) is a name's number"
        raise UsageError(msg, hint=hint) from None
    return _checked(of_numbers, name, index.num_samples, "samples", "it gets the whole column")


def _checked(result: Any, name: str, num_wanted: int, of: str, gets: str) -> NDArray[np.bool_]:
    kept = np.asarray(result)
    if kept.shape != (num_wanted,) or kept.dtype != np.bool_:
        msg = f"the function for {name!r} must return a boolean for each of {num_wanted} {of}"
        raise UsageError(msg, hint=f"{gets} as an array")
    return kept


class _ComparedError(Exception):
    """Numbers were compared with a text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _Numbers(np.ndarray[Any, Any]):
    """Numbers that raise when compared with a text: numpy would silently treat every number as unequal."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute as usual; comparing the result with a text raises, too."""
        _refuse_texts(inputs)
        if "out" in options:
            options["out"] = tuple(_plain(array) for array in options["out"])
        result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        return result.view(_Numbers) if isinstance(result, np.ndarray) else result

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        """Compute as usual."""
        _refuse_texts([*inputs, *options.values()])
        return super().__array_function__(function, types, inputs, options)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Numbers) else value


def _refuse_texts(values: Any) -> None:
    for value in values:
        if isinstance(value, (str, bytes)):
            raise _ComparedError(str(value))
        if isinstance(value, np.ndarray) and value.dtype.kind in "SU" and value.size:
            raise _ComparedError(str(value.flat[0]))
        if isinstance(value, (list, tuple, set, frozenset)):
            _refuse_texts(value)
