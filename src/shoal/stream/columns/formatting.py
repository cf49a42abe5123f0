"""What a batch is made of for whoever receives it: Python's values, numpy's arrays, an Arrow table, torch's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.shards.arrow_columns import arrow_array, arrow_table, numpy_cells, plain_cells
from shoal.shards.arrow_values import python_values
from shoal.shards.columns import Kind, bytes_of_rows, widened
from shoal.stream.collate import column_of
from shoal.stream.columns.tensors import tensors, torch_library

__all__ = ["FORMATS", "Formatting"]

FORMATS = ("python", "numpy", "arrow", "torch")


@dataclass(frozen=True, slots=True)
class Formatting:
    """From columns or samples to a batch.

    ``name`` is one of `FORMATS`, or None: then a batch is what `collate` makes of samples as they are stored.
    """

    name: str | None = None

    def __post_init__(self) -> None:
        if self.name not in (None, *FORMATS):
            msg = f"format() takes one of {', '.join(map(repr, FORMATS))}; got {self.name!r}"
            raise UsageError(msg, hint=did_you_mean(self.name, FORMATS).rstrip())
        if self.name == "arrow":
            arrow_table({})  # what is not installed is said here, not when iterating
        elif self.name == "torch":
            torch_library()

    def columns(self, kinds: Sequence[tuple[str, Kind]], arrays: Sequence[Any]) -> dict[str, Any]:
        """Gathered columns by name, before stages and `finished`."""
        return {name: self._column(kind, array) for (name, kind), array in zip(kinds, arrays, strict=True)}

    def finished(self, batch: Any) -> Any:
        """The batch as it is handed out."""
        if self.name is None or self.name == "numpy":
            return batch
        if self.name == "torch":
            return tensors(batch)
        if self.name == "python":
            return _plain(batch)
        if not isinstance(batch, Mapping):
            msg = f'format("arrow") needs batches with names; got {type(batch).__name__}'
            raise UsageError(msg, hint="leave out to_tuple(), or what else makes something of a sample")
        return arrow_table(batch)

    def sample(self, sample: Any) -> Any:
        """One sample as it is handed out where there are no batches; an Arrow table has one row."""
        if self.name is None:
            return sample
        if self.name == "arrow":
            return self.finished(
                {name: [value] for name, value in sample.items()} if isinstance(sample, dict) else sample
            )
        return _plain(sample) if self.name == "python" else self.finished(_scalars(sample))

    def _column(self, kind: Kind, array: Any) -> Any:
        if self.name == "arrow":
            return array if kind.how == "cells" else arrow_array(kind, array)
        if kind.how == "cells":
            if self.name == "python":
                return python_values(array)
            values = plain_cells(array) if self.name is None else numpy_cells(array)
            return column_of(values) if isinstance(values, list) and values else values
        if kind.how == "bytes":
            return bytes_of_rows(array)
        if self.name == "python":
            return array.tolist()
        if kind.how != "number" or self.name is not None:
            return array
        if array.dtype == np.uint64 and (array >> 63).any():  # what numpy makes of these depends on those beside them
            return column_of(array.tolist())
        return widened(array)


def _plain(value: Any) -> Any:
    """The same in Python's own types, as far as they are numpy's."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        plain = value.item()
        # Of a time that Python cannot hold it is a number that no longer says of what.
        return value if isinstance(plain, int) and value.dtype.kind in "mM" else plain
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value


def _scalars(value: Any) -> Any:
    """The same with Python's numbers as numpy's."""
    if isinstance(value, dict):
        return {name: _scalars(item) for name, item in value.items()}
    if type(value) is tuple:
        return tuple(map(_scalars, value))
    if isinstance(value, bool | int | float | complex):
        array = np.asarray(value)
        return value if array.dtype.kind == "O" else array[()]  # whole numbers beyond 64 bits stay what they are
    return value
