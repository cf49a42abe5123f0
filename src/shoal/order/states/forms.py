"""Forms of JSON values, for checking, describing and fuzzing states.

A form accepts a value and returns the value as plain JSON types, or raises `MisfitError` with the place of the first
misfit. Integers of other libraries are accepted as integers, and tuples as lists.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.figures import shown
from shoal.order.seeds import MAX_SEED

MAX_POSITION = 2**63 - 1
"""Largest position, and largest number in the parameters of an order."""


class MisfitError(Exception):
    """A value does not have its form; ``place`` is the path to the misfit."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.text, self.place = text, place


class Form(Protocol):
    """The form of a value."""

    @property
    def words(self) -> str:
        """Description for people: "an integer from 0 to 5"."""

    def made(self, value: Any) -> Any:
        """Return the value as JSON types; raise `MisfitError` if it does not have the form."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer from ``least`` to ``most``."""

    most: int = MAX_POSITION
    least: int = 0

    @property
    def words(self) -> str:
        """Description of the range."""
        return f"an integer from {self.least} to {self.most}"

    def made(self, value: Any) -> int:
        """Return the integer as an int."""
        try:
            number = operator.index(value)
        except TypeError:
            raise _misfit(self, value) from None
        if isinstance(value, bool) or not self.least <= number <= self.most:
            raise _misfit(self, value)
        return number


@dataclass(frozen=True, slots=True)
class Text:
    """A text that matches a pattern (``words`` describe the pattern); any text without a pattern."""

    pattern: str = ""
    words: str = "a text"

    def made(self, value: Any) -> str:
        """Return the text."""
        if not isinstance(value, str) or (self.pattern and not re.fullmatch(self.pattern, value)):
            raise _misfit(self, value)
        return str(value)


@dataclass(frozen=True, slots=True)
class OneOf:
    """A value from a short list: strings, None or booleans."""

    values: tuple[Any, ...]

    @property
    def words(self) -> str:
        """The values in JSON."""
        return " or ".join("null" if choice is None else repr(choice).lower() for choice in self.values)

    def made(self, value: Any) -> Any:
        """Return the value."""
        for choice in self.values:
            if type(value) is type(choice) and value == choice:
                return choice
        raise _misfit(self, value)


@dataclass(frozen=True, slots=True)
class Plain:
    """Any JSON value without NaN; ``most`` limits the absolute value of an integer outside of lists and dicts."""

    most: int = MAX_SEED

    @property
    def words(self) -> str:
        """Description of any JSON value."""
        return "any JSON value"

    def made(self, value: Any) -> Any:
        """Return the value with mappings as dicts, sequences as lists, and integers as ints."""
        if isinstance(value, Mapping):
            return {_text_key(name): _inside(name, _PLAIN, item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [_inside(number, _PLAIN, item) for number, item in enumerate(value)]
        if value is None or isinstance(value, str | bool) or (isinstance(value, float) and math.isfinite(value)):
            return value
        return Whole(self.most, -self.most).made(value)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of at least this many values of one form."""

    form: Form
    least: int = 0

    @property
    def words(self) -> str:
        """Description of the list."""
        return f"a list{' that is not empty' if self.least else ''}, each {self.form.words}"

    def made(self, value: Any) -> list[Any]:
        """Return a list of the values."""
        if not isinstance(value, list | tuple) or len(value) < self.least:
            raise _misfit(self, value)
        return [_inside(number, self.form, item) for number, item in enumerate(value)]


@dataclass(frozen=True, slots=True)
class Row:
    """A list; each item has a name and a form."""

    places: Mapping[str, Form]

    @property
    def words(self) -> str:
        """The names in brackets."""
        return f"[{', '.join(self.places)}]"

    def made(self, value: Any) -> list[Any]:
        """Return a list of the values."""
        if not isinstance(value, list | tuple) or len(value) != len(self.places):
            raise _misfit(self, value)
        forms = self.places.values()
        return [_inside(number, form, item) for number, (form, item) in enumerate(zip(forms, value, strict=True))]


@dataclass(frozen=True, slots=True)
class ByName:
    """A dict with a form for its names and a form for its values."""

    form: Form
    name: Form = field(default_factory=Text)

    @property
    def words(self) -> str:
        """Description of the dict."""
        return f"a dict by name, each {self.form.words}"

    def made(self, value: Any) -> dict[str, Any]:
        """Return a dict of the values."""
        _refuse_other_than_dict(value)
        return {self.name.made(name): _inside(name, self.form, item) for name, item in value.items()}


@dataclass(frozen=True, slots=True)
class Digits:
    """An integer written as a text, as in the keys of a JSON dict."""

    number: Whole

    @property
    def words(self) -> str:
        """Description of the range."""
        return f"{self.number.words}, as a text"

    def made(self, value: Any) -> str:
        """Return the text."""
        most = len(str(self.number.most))
        if not isinstance(value, str) or not (value.isascii() and value.isdigit() and len(value) <= most):
            raise _misfit(self, value)
        return str(self.number.made(int(value)))


@dataclass(frozen=True, slots=True)
class Either:
    """The first fitting form of several; without a fitting form, the error names the deepest misfit."""

    forms: tuple[Form, ...]

    @property
    def words(self) -> str:
        """Descriptions of all forms."""
        return "; or ".join(form.words for form in self.forms)

    def made(self, value: Any) -> Any:
        """Return the value in the first form that fits."""
        misfits = []
        for form in self.forms:
            try:
                return form.made(value)
            except MisfitError as misfit:
                misfits.append(misfit)
        deepest = max(misfits, key=lambda misfit: len(misfit.place))
        raise deepest if deepest.place else _misfit(self, value)


@dataclass(frozen=True, slots=True)
class Field:
    """A named value: its form, its meaning for the docs, and whether it may be missing."""

    form: Form
    meaning: str
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Fields:
    """A dict with these fields; ``others`` is the form of other fields, and None drops other fields."""

    fields: Mapping[str, Field]
    others: Form | None = field(default_factory=Plain)
    title: str = ""

    @property
    def words(self) -> str:
        """The names, or the title of their table in the docs."""
        return self.title or f"a dict of {', '.join(self.fields)}"

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the fields that are not optional."""
        return tuple(name for name, item in self.fields.items() if not item.is_optional)

    def made(self, value: Any) -> dict[str, Any]:
        """Return a dict of the fields."""
        _refuse_other_than_dict(value)
        if missing := [name for name in self.required if name not in value]:
            text = f"lacks {', '.join(missing)}"
            raise MisfitError(text)
        made = {name: _inside(name, item.form, value[name]) for name, item in self.fields.items() if name in value}
        if self.others is not None:
            further = [name for name in value if name not in self.fields]
            made |= {_text_key(name): _inside(name, self.others, value[name]) for name in further}
        return made


@dataclass(frozen=True, slots=True)
class Switch:
    """A dict with a form that depends on one field; for unknown values of the field, the form is ``usual``.

    ``forms`` is a function, because orders may hold sources, and sources hold orders.
    """

    field: str
    forms: Callable[[], Mapping[str, Fields]]
    usual: Fields | None = None

    @property
    def words(self) -> str:
        """Descriptions of the forms."""
        forms = [*self.forms().values(), *([self.usual] if self.usual else [])]
        return "; or ".join(form.words for form in forms)

    def made(self, value: Any) -> dict[str, Any]:
        """Return a dict in the form that the field names."""
        _refuse_other_than_dict(value)
        forms, name = self.forms(), value.get(self.field)
        form = forms.get(name, self.usual) if isinstance(name, str) else self.usual
        if form is None:
            text = f"must be {OneOf(tuple(forms)).words}; got {shown(name)}"
            raise MisfitError(text, f".{self.field}")
        return form.made(value)


def _inside(name: Any, form: Form, value: Any) -> Any:
    """Convert a part of a value to its form; on a misfit, put the part's name before the path in the error."""
    try:
        return form.made(value)
    except MisfitError as misfit:
        part = f"[{name}]" if isinstance(name, int) else f".{str(name)[:40]}"
        raise MisfitError(misfit.text, part + misfit.place) from None


def _text_key(name: Any) -> str:
    if not isinstance(name, str):
        text = f"must have texts as names; got {shown(name)}"
        raise MisfitError(text)
    return name


def _refuse_other_than_dict(value: object) -> None:
    if not isinstance(value, Mapping):
        text = f"must be a dict; got {shown(value)}"
        raise MisfitError(text)


def _misfit(form: Form, value: object) -> MisfitError:
    return MisfitError(f"must be {form.words}; got {shown(value)}")


_PLAIN = Plain()
