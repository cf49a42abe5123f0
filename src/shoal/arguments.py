"""Arguments of users (texts, names, flags, choices, sequences): converted, or refused with a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np

from shoal.errors import UsageError
from shoal.figures import shown
from shoal.hints import did_you_mean


def with_type(value: object) -> str:
    """Return a value and its type on one line, for errors.

    >>> with_type(["a", "b"]), with_type(None)
    ("['a', 'b'] of type list", 'None')
    """
    return "None" if value is None else f"{' '.join(shown(value).split())} of type {type(value).__name__}"


def as_text(what: str, value: object, *, hint: str = "") -> str:
    """Return a text, or raise an error that names the argument.

    >>> as_text("tokenize(to=)", "tokens")
    'tokens'
    """
    if isinstance(value, str):
        return value
    raise UsageError(f"{what} takes a text; got {with_type(value)}", hint=hint)


def as_texts(verb: str, values: Sequence[Any]) -> tuple[str, ...]:
    """Return the texts in the arguments of a verb, or raise an error that shows the right call.

    >>> as_texts("columns", ("image", "label"))
    ('image', 'label')
    """
    for value in values:
        several: Any = value if isinstance(value, Iterable) and not isinstance(value, str | bytes | dict) else ()
        names = [*map(str, several)] if all(isinstance(name, str) for name in several) else []
        example = ", ".join(map(repr, names)) or "'image', 'label'"
        as_text(f"{verb}() takes names as separate arguments: each", value, hint=f"{verb}({example})")
    return tuple(str(value) for value in values)


def as_choice(what: str, value: Any, choices: Sequence[Any], *, hint: str = "") -> Any:
    """Return a value that is among the choices (texts or None), or raise an error that lists them.

    >>> as_choice("remainder", "pad", ("keep", "pad", "drop"))
    'pad'
    """
    if isinstance(value, str | None) and value in choices:
        return value
    got = repr(value) if isinstance(value, str) else with_type(value)
    msg = f"{what} must be one of {', '.join(map(repr, choices))}; got {got}"
    raise UsageError(msg, hint=f"{did_you_mean(value, choices)}{hint}".rstrip())


def as_flag(what: str, value: object, *, hint: str = "") -> bool:
    """Return True or False, or raise an error: Python takes a text such as "false" for true.

    >>> as_flag("filter(refill=)", True)
    True
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise UsageError(f"{what} must be True or False; got {with_type(value)}", hint=hint)


def as_sequence(what: str, values: Any) -> tuple[Any, ...]:
    """Return the elements of a list, tuple or array, or raise an error for a text or a single value.

    >>> as_sequence("buckets", [64, 128])
    (64, 128)
    """
    if isinstance(values, Sequence | np.ndarray | range) and not isinstance(values, str | bytes):
        return tuple(values)
    msg = f"{what} takes a list; got {with_type(values)}"
    is_single = isinstance(values, str | SupportsIndex | float)
    raise UsageError(msg, hint="a single value is a list of one: [value]" if is_single else "")
