"""Names and types of the columns of rows, collected group by group before any row is written.

Only names and types are kept, and the least and the largest integer of a column: these determine whether floating
numbers, or unsigned integers, hold all integers exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.rows_to_columns import RowRefusedError, row_refused, table_of_rows

_MOST_FIELDS = 10_000
_EXACT = 1 << 53  # a float64 holds all integers up to this
_MOST_DIGITS = 76
_HINT = (
    "convert the values to one kind; or write tar or jsonl, where samples may differ; "
    'or leave out samples of another kind with on_error="skip"'
)


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """The type of a column's values, as far as known; empty if all values are null.

    ``leaf`` is a type of pyarrow; ``least`` and ``largest`` are set for integers. ``element`` is the kind of a list's
    elements; ``fields`` are the kinds of a struct's fields. ``first`` is the first sample of this kind, or a sample
    shortly before it.
    """

    leaf: Any = None
    least: int | None = None
    largest: int | None = None
    element: ColumnKind | None = None
    fields: Mapping[str, ColumnKind] | None = None
    first: int = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing is known yet."""
        return self.leaf is None and self.element is None and self.fields is None


ColumnKinds = Mapping[str, ColumnKind]
"""The kinds of columns by name, in order of first appearance."""


class _ConflictError(UsageError):
    """Two kinds that do not fit into the column ``column``; ``known`` is the type of the first."""

    column = known = ""


class _DifferentError(Exception):
    """Two kinds that fit into no column; the arguments are their types."""


def kinds_of_rows(
    known: ColumnKinds, rows: Sequence[Sample], *, first: int, format_name: str, skips: bool
) -> ColumnKinds:
    """Extend the known kinds by more rows, the samples from ``first`` on.

    Raises `RowRefusedError` for the first row that does not fit the columns of the rows before it, unless ``skips``
    skips such rows; `UsageError` if there are more than 10 000 fields.
    """
    kinds = known
    remaining = [(number, row) for number, row in enumerate(rows, first) if row]
    while remaining:
        group = [row for _, row in remaining]
        more: ColumnKinds = {}
        try:
            more = _kinds_of(table_of_rows(group, None, format_name=format_name), remaining[0][0])
            return joined_kinds(kinds, more, skips=False)
        except (RowRefusedError, _ConflictError) as error:
            if len(remaining) == 1:
                if not skips:
                    raise _refused(error, *remaining[0]) from None
                # Keep the row's other columns: rows that are written may have them too.
                return joined_kinds(kinds, more, skips=True)
            # Bisect, so that one row that does not fit does not cost a check per row.
            half = len(remaining) // 2
            kinds = kinds_of_rows(kinds, group[:half], first=remaining[0][0], format_name=format_name, skips=skips)
            remaining = remaining[half:]
    return kinds


def joined_kinds(known: ColumnKinds, more: ColumnKinds, *, skips: bool) -> ColumnKinds:
    """Merge the kinds of two parts of a dataset; with ``skips``, the first part wins conflicts.

    Raises `UsageError` for other conflicts, and if there are too many fields.
    """
    kinds = dict(known)
    for name, kind in more.items():
        try:
            kinds[name] = _joined(kinds.get(name, ColumnKind()), kind)
        except _DifferentError as different:
            if not skips:
                one, other = different.args
                msg = f"the column {name!r} is {one} at first, but {other} from about the sample {kind.first} on"
                error = _ConflictError(msg, hint=_HINT)
                error.column, error.known = name, one
                raise error from None
    if sum(map(_num_fields, kinds.values())) > _MOST_FIELDS:
        msg = f"the samples have more than {_MOST_FIELDS} different fields, and each would be a column"
        hint = "write tar or jsonl, or give options={'schema': ...} with a map of pyarrow for such objects"
        raise UsageError(msg, hint=hint)
    return kinds


def schema_of_kinds(kinds: ColumnKinds) -> Any:
    """Return the pyarrow schema for these kinds. Raises `UsageError` if there is no column."""
    if not kinds:
        raise UsageError("no sample has a field, and a table without columns has no rows", hint="write tar or jsonl")
    pa = arrow_library("Arrow")
    return pa.schema([pa.field(name, _type_of(kind)) for name, kind in kinds.items()])


def _refused(error: RowRefusedError | _ConflictError, number: int, row: Sample) -> RowRefusedError:
    why = error.message
    if isinstance(error, _ConflictError):
        what = f"the column {error.column!r}, which is {error.known} in the samples before,"
        why = row_refused(0, row, f"{what} cannot hold {row[error.column]!r:.60}").message
    return RowRefusedError(f"sample {number}: {why}; nothing was written yet", hint=_HINT)


def _kinds_of(table: Any, first: int) -> ColumnKinds:
    return {
        name: reduce(_joined, (_kind_of(chunk, first) for chunk in column.chunks), ColumnKind())
        for name, column in zip(table.schema.names, table.columns, strict=True)
    }


def _kind_of(array: Any, first: int) -> ColumnKind:
    import pyarrow.compute as pc  # noqa: PLC0415  # optional, and slow to import

    kind, types = array.type, arrow_library("Arrow").types
    if types.is_null(kind) or array.null_count == len(array):
        # A column of only None has no type yet; a column of empty lists holds lists.
        return ColumnKind()
    if types.is_struct(kind):
        parts = zip(kind, array.flatten(), strict=True)
        return ColumnKind(fields={part.name: _kind_of(inner, first) for part, inner in parts}, first=first)
    if types.is_list(kind) or types.is_large_list(kind):
        return ColumnKind(element=_kind_of(array.flatten(), first), first=first)
    if types.is_integer(kind):
        ends = pc.min_max(array)
        return ColumnKind(kind, ends["min"].as_py(), ends["max"].as_py(), first=first)
    return ColumnKind(kind, first=first)


def _num_fields(kind: ColumnKind) -> int:
    inner = sum(map(_num_fields, (kind.fields or {}).values()))
    return 1 + inner + (0 if kind.element is None else _num_fields(kind.element))


def _joined(one: ColumnKind, other: ColumnKind) -> ColumnKind:
    """Return the kind that holds the values of both; raises `_DifferentError` if there is none."""
    if one.is_empty or other.is_empty:
        return other if one.is_empty else one
    if one.fields is not None and other.fields is not None:
        pairs = {
            name: (one.fields.get(name, ColumnKind()), other.fields.get(name, ColumnKind()))
            for name in (*one.fields, *other.fields)
        }
        return replace(one, fields={name: _joined(*pair) for name, pair in pairs.items()})
    if one.element is not None and other.element is not None:
        return replace(one, element=_joined(one.element, other.element))
    if one.leaf is None or other.leaf is None:
        raise _DifferentError(str(_type_of(one)), str(_type_of(other)))
    least = min((kind.least for kind in (one, other) if kind.least is not None), default=None)
    largest = max((kind.largest for kind in (one, other) if kind.largest is not None), default=None)
    both = replace(one, least=least, largest=largest)
    return one if one.leaf == other.leaf and one.least is None else replace(both, leaf=_leaf(one, other, both))


def _leaf(one: ColumnKind, other: ColumnKind, both: ColumnKind) -> Any:
    """Return the type that holds the values of both leaf kinds exactly."""
    pa = arrow_library("Arrow")
    types, (first, second) = pa.types, (one.leaf, other.leaf)
    if first == second:
        return first
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in (first, second)):
        least, largest = both.least or 0, both.largest or 0
        if all(map(types.is_integer, (first, second))):
            if largest < 1 << 63:
                return pa.int64()
            if least >= 0:
                return pa.uint64()
        elif all(map(types.is_floating, (first, second))) or -_EXACT <= least <= largest <= _EXACT:
            return pa.float64()
    elif all(map(types.is_decimal, (first, second))):
        scale = max(first.scale, second.scale)
        digits = max(first.precision - first.scale, second.precision - second.scale) + scale
        if digits <= _MOST_DIGITS:
            return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS // 2 else pa.decimal256(digits, scale)
    raise _DifferentError(str(_type_of(one)), str(_type_of(other)))


def _type_of(kind: ColumnKind) -> Any:
    pa = arrow_library("Arrow")
    if kind.fields is not None:
        return pa.struct([pa.field(name, _type_of(inner)) for name, inner in kind.fields.items()])
    if kind.element is not None:
        return pa.list_(_type_of(kind.element))
    return pa.null() if kind.leaf is None else kind.leaf
