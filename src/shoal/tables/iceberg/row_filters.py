"""A predicate as a row filter of pyiceberg, which compares it with partitions and statistics of files."""

from __future__ import annotations

from functools import reduce
from typing import Any

from shoal.errors import UsageError
from shoal.indexing.tables.snapshot_protocol import TableRequest
from shoal.tables.table_requests import Condition, predicate_of


def row_filter(request: TableRequest) -> Any:
    """Return the predicate of a request as an expression of pyiceberg; raises `UsageError` if it is malformed."""
    from pyiceberg.expressions import AlwaysTrue, And, Or  # noqa: PLC0415  # optional

    groups = [reduce(And, map(_expression, group)) for group in predicate_of(request)]
    return reduce(Or, groups) if groups else AlwaysTrue()


def _expression(condition: Condition) -> Any:
    from pyiceberg import expressions  # noqa: PLC0415  # optional

    name, operator, value = condition
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
    if operator not in kinds:
        raise UsageError(f"predicate= has the operator {operator!r}", hint=", ".join(kinds))
    return getattr(expressions, kinds[operator])(name, value)
