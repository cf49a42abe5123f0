"""Rows of Arrow tables as samples, for Parquet and Arrow shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.field_columns import Columns
from shoal.formats.shard_format import Sample
from shoal.formats.tables.arrow_columns import constant_column, getter_of, joined, stored_column

_WITHOUT_VALUES = ("month_interval", "day_time_interval")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_HINT = "the shard is damaged, or not the one that was indexed: copy it again, or index it again"


def partition_fields(shard: str) -> dict[str, str | None]:
    """Return the fields that a shard's directories, ``column=value`` as of Hive and Spark, give to all its rows.

    Values are text; the directory that they write for rows without a value gives None.

    >>> partition_fields("year=2024/kind=a%20b/part-0.parquet")
    {'year': '2024', 'kind': 'a b'}
    """
    pairs = (part.partition("=") for part in shard.split("/")[:-1])
    return {
        unquote(name): None if value == _NO_VALUE else unquote(value) for name, sign, value in pairs if sign and name
    }


def check_names(names: Sequence[str], shard: str) -> None:
    """Raise `ShardError` if two columns have one name: a dict would keep only the last of them."""
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        msg = f"two columns have the name {twice!r}, and a sample has one value for a name"
        hint = "write the shard again with other names (pyarrow: table.rename_columns)"
        raise ShardError(msg, shard=shard, hint=hint)


def _check_types(schema: Any, shard: str) -> None:
    """Raise `ShardError` for Arrow intervals that pyarrow knows by name but has no values of."""
    for field in schema:
        if any(str(kind) in _WITHOUT_VALUES for kind in _types_in(field.type)):
            msg = f"column {field.name!r} is of the type {field.type}, of which pyarrow gives no values"
            hint = "leave it out with columns(), or write the shard again with month_day_nano_interval"
            raise ShardError(msg, shard=shard, hint=hint)


def _types_in(kind: Any) -> Iterator[Any]:
    yield kind
    for place in range(kind.num_fields):
        yield from _types_in(kind.field(place).type)


class TableRecords:
    """The rows of a table, handed out by number.

    Values are Python's, as pyarrow converts them, except lists of numbers without nulls: those are arrays, shape
    (length,), that own their memory. ``getter_of`` can replace this conversion. ``constants`` are additional fields of
    all rows. ``byte`` is where in the shard the rows begin.

    Raises
    ------
    ShardError
        Two columns have one name, or one has a type that pyarrow has no values of.
    """

    __slots__ = ("_arrays", "_byte", "_constants", "_crcs", "_getter_of", "_getters", "_num_rows", "_shard")

    def __init__(
        self,
        table: Any,
        crcs: Sequence[int],
        *,
        shard: str,
        byte: int | None = None,
        constants: Mapping[str, str | None] = MappingProxyType({}),
        getter_of: Callable[[Any], Callable[[int], Any]] = getter_of,
    ) -> None:
        check_names(table.column_names, shard)
        _check_types(table.schema, shard)
        self._byte, self._getter_of = byte, getter_of
        self._arrays = {name: joined(column) for name, column in zip(table.column_names, table.columns, strict=True)}
        self._num_rows, self._crcs, self._shard = table.num_rows, list(crcs), shard
        self._constants = {name: value for name, value in constants.items() if name not in self._arrays}
        self._getters: list[tuple[str, Callable[[int], Any]]] | None = None

    def __len__(self) -> int:
        return int(self._num_rows)

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the CRC of each piece, as the scan gives them; shape (num_pieces,)."""
        return np.array(self._crcs, dtype=np.uint32)

    def columns(self) -> Columns | None:
        """Return all columns; None if one is too large for an array of its type, or ``getter_of`` was replaced.

        Raises
        ------
        ShardError
            A value is damaged.
        """
        if self._getter_of is not getter_of or any(hasattr(array, "num_chunks") for array in self._arrays.values()):
            return None
        stored = {}
        for name, array in self._arrays.items():
            try:
                stored[name] = stored_column(array)
            except ValueError as error:  # Arrow's errors about values are ValueErrors, too
                msg = f"column {name!r}: {error}"
                raise self._bad(msg) from None
        stored |= {name: constant_column(value, self._num_rows) for name, value in self._constants.items()}
        kinds = tuple((name, kind) for name, (kind, _) in stored.items())
        return Columns(kinds, tuple(values for _, values in stored.values()))

    def sample(self, number: int) -> Sample:
        """Return row ``number``: its values by column; about 1 us for a number or a short text.

        Raises
        ------
        ShardError
            A value is damaged (text that is not UTF-8).
        """
        sample: Sample = {}
        if self._getters is None:
            self._getters = [(name, self._getter(name, array)) for name, array in self._arrays.items()]
        for name, get in self._getters:
            try:
                sample[name] = get(number)
            except (ValueError, OverflowError) as error:
                msg = f"row {number} of these, column {name!r}: {error}"
                raise self._bad(msg) from None
        return {**sample, **self._constants} if self._constants else sample

    def _getter(self, name: str, array: Any) -> Callable[[int], Any]:
        try:
            return self._getter_of(array)
        except ValueError as error:
            msg = f"column {name!r}: {error}"
            raise self._bad(msg) from None

    def _bad(self, what: str) -> ShardError:
        return ShardError(what, shard=self._shard, byte=self._byte, hint=_HINT)
