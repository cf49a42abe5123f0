"""Chunks of LitData whose items are rows of an Arrow table after the table of offsets.

LitData writes them since 0.2.76 if pyarrow is installed and items are dicts of texts, numbers, bytes, lists and dicts.
The offsets then have no meaning; the chunk ends with the ``u32`` size of an Arrow file (a stream, in older chunks) and
a magic number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import ShardError
from shoal.formats.packed_heads import unusable
from shoal.formats.shard_format import ReadBytes, Span
from shoal.formats.tables.arrow import Arrow, scan_messages
from shoal.formats.tables.arrow_values import python_value
from shoal.formats.tables.table_rows import OTHER_FILE, TableRecords
from shoal.index.shard_scan import Buffer, ShardScan

_MAGIC = b"LDARW01\0"
_TAIL_BYTES = 4 + len(_MAGIC)
ROWS = "rows"
"""The key in the head of a chunk of rows."""


def scan_rows(read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan | None:
    """Find the record batches of a chunk, each of which is a piece; None if it does not end with the magic number.

    Raises `ShardError` if the Arrow file leads out of the chunk, is invalid, or has another number of rows than the
    chunk says.
    """
    tail = bytes(read(max(0, num_bytes - _TAIL_BYTES), num_bytes))
    if not tail.endswith(_MAGIC):
        return None
    end = num_bytes - _TAIL_BYTES
    begin = end - int.from_bytes(tail[:4], "little")
    if begin < 4 or len(tail) < _TAIL_BYTES:
        msg = f"an Arrow file of {end - begin} bytes ends at byte {end}"
        raise ShardError(msg, shard=shard, byte=max(0, end), hint=OTHER_FILE)
    found = scan_messages(read, begin, end, shard=shard)
    num_items = int.from_bytes(bytes(read(0, 4)), "little")
    if found.num_samples != num_items:
        msg = f"the chunk says {num_items} items, and its Arrow file has {found.num_samples} rows"
        raise ShardError(msg, shard=shard, byte=0, hint=OTHER_FILE)
    return replace(found, head={ROWS: dict(found.head)})


def parse_rows(buffer: Buffer, span: Span) -> TableRecords:
    """Open some record batches.

    Raises `ShardError` if they are invalid, or have another number of rows.
    """
    rows = span.head.get(ROWS)
    if not isinstance(rows, Mapping):
        raise unusable(ROWS, f"{rows!r:.40} says nothing of rows", shard=span.shard)
    table, crcs = Arrow().opened(buffer, span._replace(head=rows))
    return TableRecords(table, crcs, shard=span.shard, byte=span.first_byte, getter_of=_getter_of)


def _getter_of(array: Any) -> Callable[[int], Any]:
    """Return a function that gives a value of a column as LitData does: lists of numbers are lists."""
    return lambda row: python_value(array[row])
