"""Samples chosen by columns of the index: by values, or by functions of users."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.table import Index
from shoal.order.arrays.index_ranges import Runs
from shoal.stream.choosing.index_columns import column_of, texts_of_column, words_of_column

_MOST_WORDS = 10  # texts of a column that an error lists


def choose_by_columns(index: Index, columns: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return a mask of the samples with the wanted values in all of these columns, shape (num_samples,)."""
    mask = np.ones(index.num_samples, dtype=bool)
    for name, wanted in columns.items():
        if callable(wanted):
            mask &= _kept_by_function(index, name, wanted)
        else:
            mask &= np.isin(column_of(index, name), _numbers_of(index, name, wanted))
    return mask


def _numbers_of(index: Index, name: str, wanted: Any) -> NDArray[Any]:
    """Return the wanted values of a column as the column stores them: texts and class names as numbers."""
    # numpy would take a set for one value.
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
        msg = f"sample {array[numbers < 0][0]} is not among the {len(left)} samples that are left"
        raise UsageError(msg, hint="select() before shuffle() takes sample ids, which do not change with selections")
    return numbers


def _kept_by_function(index: Index, name: str, function: Callable[[Any], Any]) -> NDArray[np.bool_]:
    """Return a mask of the samples that a function keeps.

    The function gets the column as an array; if it is a column of texts, the different texts, once (dtype object).
    """
    column, texts = column_of(index, name), texts_of_column(index, name)
    if texts is not None:
        words = np.empty(len(texts), dtype=object)
        words[:] = texts
        of_words = _checked(function(words), name, len(words), "texts", "it gets the different texts of the column")
        kept: NDArray[np.bool_] = of_words[column]
        return kept
    try:
        of_numbers = function(column.view(_Numbers))
    except _ComparedError as error:
        msg = f"the function for {name!r} compares numbers with {error.text!r}, which numpy calls different from all"
        hint = "the column holds numbers"
        if words_of_column(index, name) is not None:
            hint = f"select({name}=[...]) takes names; class_names({name!r}).index({error.text!r}) is the number of one"
        raise UsageError(msg, hint=hint) from None
    return _checked(of_numbers, name, index.num_samples, "samples", "it gets the whole column")


def _checked(result: Any, name: str, num_wanted: int, of: str, gets: str) -> NDArray[np.bool_]:
    kept = np.asarray(result)
    if kept.shape != (num_wanted,) or kept.dtype != np.bool_:
        msg = f"the function for {name!r} must return a boolean for each of {num_wanted} {of}"
        raise UsageError(msg, hint=f"{gets} as an array")
    return kept


class _ComparedError(Exception):
    """Numbers met a text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _Numbers(np.ndarray[Any, Any]):
    """Numbers that refuse to meet texts: numpy would call each of them different from any text, without an error."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute as usual; the result refuses texts, too."""
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
