"""Spilled tables: decoded rows in parts of a few rows, each an Arrow IPC stream of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from shoal.formats.shard_format import Spilled, SpillSpace
from shoal.formats.tables.arrow_columns import joined
from shoal.formats.tables.pyarrow_library import arrow_library

_PART_BYTES = 64 << 10
_SCHEMAS = 8  # a part is this many times as large as the schema that it repeats


def rows_of_part(num_rows: int, decoded_bytes: int, schema: Any) -> int:
    """Return the number of rows per part: as many as 64 KiB hold, or more if the schema is large."""
    wanted_bytes = max(_PART_BYTES, _SCHEMAS * int(schema.remove_metadata().serialize().size))
    return max(1, min(num_rows, wanted_bytes * num_rows // max(1, decoded_bytes)))


def spilled_rows(batches: Iterable[Any], num_rows: int, space: SpillSpace) -> Spilled:
    """Append record batches to ``space``, ``num_rows`` to a part."""
    pa = arrow_library("Arrow")
    borders, num_samples = [0], 0
    for table in _tables(pa, batches, num_rows):
        # In the form that rows are read from: without dictionaries, which every part would repeat.
        columns = [joined(column) for column in table.columns]
        plain = pa.table(columns, names=table.column_names)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, plain.schema) as writer:
            writer.write_table(plain)
        part = sink.getvalue()
        space.append(memoryview(part))
        borders.append(borders[-1] + part.size)
        num_samples += plain.num_rows
    return Spilled(np.array(borders, dtype=np.int64), num_samples, num_rows)


def table_of_part(data: bytes) -> Any:
    """Return the rows of a part."""
    with arrow_library("Arrow").ipc.open_stream(data) as reader:
        return reader.read_all()


def _tables(pa: Any, batches: Iterable[Any], num_rows: int) -> Iterator[Any]:
    """Regroup the rows, ``num_rows`` at a time; the last group may have fewer."""
    waiting: list[Any] = []
    num_waiting = 0
    for batch in batches:
        first = 0
        while first < batch.num_rows:
            taken = batch.slice(first, num_rows - num_waiting)
            waiting.append(taken)
            first, num_waiting = first + taken.num_rows, num_waiting + taken.num_rows
            if num_waiting == num_rows:
                yield pa.Table.from_batches(waiting)
                waiting, num_waiting = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
