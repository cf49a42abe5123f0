"""A predicate as a row filter of pyiceberg, which compares it with partitions and statistics of files."""

from __future__ import annotations

from functools import reduce
from typing import Any

from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.indexing.tables.snapshot_protocol import TableRequest
from shoal.tables.table_requests import Condition, predicate_of


def row_filter(request: TableRequest, schema: Any, current: Any) -> Any:
    """Return the predicate of a request as an expression of pyiceberg; raises `UsageError` if it is malformed.

    The predicate has the names of ``schema``, the schema of the version; a scan compares names of the ``current`` schema.
    """
    from pyiceberg.expressions import AlwaysTrue, And, Or  # noqa: PLC0415  # optional

    groups = [
        reduce(And, [_expression(condition, schema, current) for condition in group]) for group in predicate_of(request)
    ]
    return reduce(Or, groups) if groups else AlwaysTrue()


def _expression(condition: Condition, schema: Any, current: Any) -> Any:
    from pyiceberg import expressions  # noqa: PLC0415  # optional

    name, operator, value = condition
    try:
        number = schema.find_field(name).field_id
    except ValueError:
        hint = did_you_mean(name, schema.column_names) + "name a column of this version of the table"
        raise UsageError(f"predicate= has the column {name!r}, which the table does not have", hint=hint) from None
    name = current.find_column_name(number)
    if name is None:  # the column was dropped since: a scan cannot compare it, and leaves out no file
        return expressions.AlwaysTrue()
    kinds = {
        "=": "EqualTo",
        "!=": "NotEqualTo",
        "<": "LessThan",
        "<=": "LessThanOrEqual",
        ">": "GreaterThan",
        ">=": "GreaterThanOrEqual",
        "in": "In",
        "not in": "NotIn",
    }
    return getattr(expressions, kinds[operator])(name, value)
