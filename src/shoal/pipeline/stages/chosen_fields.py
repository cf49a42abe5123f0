"""Stages that choose and rename fields, by name or by a path into a nested field.

The path ``document.body`` is the value ``body`` inside the field ``document``, a dict or JSON text, as in the columns
of an index. A field of exactly that name comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.arguments import as_text
from shoal.errors import UsageError
from shoal.formats.column_paths import value_inside
from shoal.hints import did_you_mean
from shoal.pipeline.stages.stage import Stage

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Rename(Stage):
    """A stage that renames fields: a new name takes the value of the first old name that exists."""

    names: Mapping[str, str]

    @classmethod
    def of(cls, names: Mapping[str, Any]) -> Rename:
        """Return the stage for the arguments of `Dataset.rename`."""
        hint = "rename(new='old'), and alternatives are separated by ';'"
        return cls({new: as_text(f"rename({new}=)", old, hint=hint) for new, old in names.items()})

    def __repr__(self) -> str:
        return f"rename({', '.join(f'{new}={old!r}' for new, old in self.names.items())})"

    @property
    def takes_columns(self) -> bool:  # type: ignore[override]
        """True for whole fields; a path may lead into the values of a column."""
        return not have_paths(self.names.values())

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with renamed fields; a value at a path gets a field, and the outer field stays."""
        fields = fields_of(sample, "rename()")
        values = {new: value_at(fields, old, "rename()") for new, old in self.names.items()}
        used = {name for old in self.names.values() if (name := field_named(fields, old)) is not None}
        renamed = {name: value for name, value in fields.items() if name not in used and name not in values}
        return renamed | values


class _FieldsStage(Stage):
    """A stage that takes the values of some fields."""

    __slots__ = ()

    names: tuple[str, ...]

    @property
    def takes_columns(self) -> bool:  # type: ignore[override]
        """True for whole fields; a path may lead into the values of a column."""
        return not have_paths(self.names)


@dataclass(frozen=True, slots=True)
class SelectColumns(_FieldsStage):
    """A stage that keeps only some fields."""

    names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"columns({', '.join(map(repr, self.names))})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with only these fields, in this order; a path names its value."""
        fields = fields_of(sample, "columns()")
        return {name: value_at(fields, name, "columns()") for name in self.names}


@dataclass(frozen=True, slots=True)
class ToTuple(_FieldsStage):
    """A stage that turns the values of some fields into a tuple."""

    names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"to_tuple({', '.join(map(repr, self.names))})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the values; a name may list alternatives with ";"."""
        fields = fields_of(sample, "to_tuple()")
        return tuple(value_at(fields, name, "to_tuple()") for name in self.names)


def fields_of(sample: Any, verb: str) -> Mapping[str, Any]:
    """Return the fields of a sample; `UsageError` if the sample is not a dict."""
    if type(sample) is not dict and not isinstance(sample, Mapping):  # isinstance takes 0.3 us
        msg = f"{verb} needs samples that are dicts; got {type(sample).__name__}"
        raise UsageError(msg, hint=f"call {verb} before a map() or to_tuple() that turns samples into something else")
    return sample


def field_named(fields: Mapping[str, Any], names: str) -> str | None:
    """Return the first name that is a field; ";" separates alternative names."""
    return next((name for name in names.split(";") if name in fields), None)


def value_at(fields: Mapping[str, Any], names: str, verb: str) -> Any:
    """Return the value of the first alternative that is a field, else of the first path; `UsageError` if none."""
    if (name := field_named(fields, names)) is not None:
        return fields[name]
    for path in filter(is_path, names.split(";")):
        value = value_inside(fields, path, missing=_MISSING)
        if value is not _MISSING:
            return value
    msg = f"{verb} needs the field {names!r}; this sample has {', '.join(map(repr, fields)) or 'no fields'}"
    alternatives = 'alternatives are separated by ";" ("jpg;jpeg;png"), and a path leads into a field ("document.text")'
    raise UsageError(msg, hint=did_you_mean(names, fields) + alternatives)


def is_path(name: str) -> bool:
    """Return True if a name may lead into a field."""
    return "." in name


def have_paths(names: Iterable[str]) -> bool:
    """Return True if any of these names may lead into a field."""
    return any(map(is_path, names))


def without_value(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields without the value of a field or path.

    A dict that becomes empty is removed as well. JSON text that holds the value stays.
    """
    if name in fields:
        return {other: value for other, value in fields.items() if other != name}
    kept = dict(fields)
    cut = name.find(".")
    while cut > 0:
        outer, inner = name[:cut], name[cut + 1 :]
        if isinstance(kept.get(outer), Mapping) and value_inside(kept, name, missing=_MISSING) is not _MISSING:
            rest = without_value(kept[outer], inner)
            return {**kept, outer: rest} if rest else without_value(kept, outer)
        cut = name.find(".", cut + 1)
    return kept
