"""Checks for what Python's JSON silently changes when writing, such as keys that are not text, or times."""

from __future__ import annotations

from typing import Any

import numpy as np

_PLAIN = frozenset((str, int, float, bool, type(None)))


def check_keys(value: object) -> None:
    """Check that all keys inside a value for JSON are text.

    Of ``{1: "a", "1": "b"}`` JSON keeps one entry, and a number as key comes back as text. O(values inside).

    >>> check_keys([1, {"a": (2, {"b": None})}])

    Raises `TypeError`: a key is not text.
    """
    if type(value) in _PLAIN:  # nearly all
        return
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                msg = f"the key {key!r:.60} of an object is a {type(key).__name__}, but keys of JSON are text"
                raise TypeError(msg)
        inside = value.values()
    elif isinstance(value, list | tuple):
        inside = value  # type: ignore[assignment]  # it is only iterated
    else:
        return
    if not set(map(type, inside)) <= _PLAIN:  # for a long list, nearly all the work
        for inner in inside:
            check_keys(inner)


def plain_value(value: object) -> Any:
    """Convert a numpy array or number to lists and numbers.

    >>> plain_value(np.float32(0.5)), plain_value(np.zeros((2, 1), int))
    (0.5, [[0], [0]])

    Raises `TypeError`: JSON cannot hold it; this includes times, which would become bare numbers.
    """
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "mM":
        return value.tolist()
    name = str(value.dtype) if isinstance(value, np.ndarray | np.generic) else type(value).__name__
    raise TypeError(f"JSON cannot hold a value of type {name}")


def plain_number(value: object) -> Any:
    """Convert a numpy number to Python's; for values with arrays, which JSON would return as lists.

    >>> plain_number(np.int8(3))
    3

    Raises `TypeError`: it is not a numpy number.
    """
    if isinstance(value, np.generic):
        return plain_value(value)
    raise TypeError(f"JSON cannot hold a value of type {type(value).__name__}")
