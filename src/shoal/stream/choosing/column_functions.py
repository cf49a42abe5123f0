"""Functions of users that choose samples by a column of the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.table import Index
from shoal.stream.choosing.index_columns import column_of, texts_of_column, words_of_column


def kept_by_function(index: Index, name: str, function: Callable[[Any], Any]) -> NDArray[np.bool_]:
    """Return a mask of the samples that a function keeps, shape (num_samples,).

    The function gets the column as an array, and of a column of texts its different texts, once (dtype object).

    Raises
    ------
    UsageError
        The result is not a boolean for each, or the function compares numbers with a text.
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
            options["out"] = tuple(_plain(each) for each in options["out"])
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
