"""Costs of samples in a column of the index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.choosing.index_columns import key_column, words_of_column
from shoal.stream.groups.column_groups import hint_at_columns

_MOST_COST = 1 << 32
"""The largest cost after scaling: sums of 2^30 samples fit into 64 bits."""


def cost_column(parts: Sequence[ResolvedOrder], column: str, argument: str) -> NDArray[np.number[Any]]:
    """Return the costs of the samples of some datasets, joined in order; ``argument`` is for errors.

    `UsageError` if an index lacks the column, or the column holds texts, negative numbers, or no finite numbers.
    """
    columns = []
    for part in parts:
        with hint_at_columns(part.index, column, argument):
            values = key_column(part.index, column)
        words = words_of_column(part.index, column)
        if words is not None or values.dtype.kind not in "biuf":
            example = f", such as {words[0]!r}" if words else ""
            msg = f"batch({argument}{column!r}): the column holds names{example}, and no costs"
            raise UsageError(msg, hint="name a column of numbers: 'num_tokens', 'sample_bytes' or a field of samples")
        columns.append(values)
    costs = np.concatenate(columns) if len(columns) > 1 else columns[0]
    if len(costs) and not (costs.min() >= 0 and np.isfinite(costs.max())):
        worst = int(np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))[0])
        msg = f"batch({argument}{column!r}): the sample with id {worst} has the cost {costs[worst]}"
        raise UsageError(msg, hint="costs are finite numbers of at least 0")
    return costs


def whole_costs(costs: NDArray[np.number[Any]]) -> NDArray[np.integer[Any]]:
    """Return costs as whole numbers, in proportion; small whole numbers as they are.

    >>> whole_costs(np.array([0.5, 0.25])).tolist() == [2**32, 2**31], whole_costs(np.array([3, 5])).tolist()
    (True, [3, 5])
    """
    most = float(costs.max(initial=0))
    if costs.dtype.kind in "iub" and most <= _MOST_COST:
        return costs.astype(np.int64, copy=False)
    whole: NDArray[np.int64] = np.rint(costs * (_MOST_COST / most if most else 1.0)).astype(np.int64)
    return whole
