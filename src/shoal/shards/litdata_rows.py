"""Chunks of LitData whose items are rows of an Arrow table behind the table of offsets.

LitData writes them so since 0.2.76 where pyarrow is installed and items are dicts of texts, numbers, bytes, lists and
dicts. The offsets then say nothing; the chunk ends with the ``u32`` size of an Arrow file (a stream, in older chunks)
and a magic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.shards.arrow import Arrow, scan_messages
from shoal.shards.arrow_columns import joined
from shoal.shards.arrow_rows import check_names
from shoal.shards.arrow_values import python_value
from shoal.shards.protocol import Buffer, ReadBytes, Sample, ShardScan, Stretch

__all__ = ["TableItems", "is_rows", "parse_rows", "scan_rows"]

_MAGIC = b"LDARW01\0"
_TAIL_BYTES = 4 + len(_MAGIC)
_HINT = "the shard is damaged, or not the one that was indexed: copy it again, or index it again"
_ROWS = "rows"


def scan_rows(read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan | None:
    """The record batches of a chunk, each of which is a piece; None where no magic ends it.

    Raises
    ------
    ShardError
        The Arrow file leads out of the chunk, is none, or has another number of rows than the chunk says.
    """
    tail = bytes(read(max(0, num_bytes - _TAIL_BYTES), num_bytes))
    if not tail.endswith(_MAGIC):
        return None
    end = num_bytes - _TAIL_BYTES
    begin = end - int.from_bytes(tail[:4], "little")
    if begin < 4 or len(tail) < _TAIL_BYTES:
        msg = f"an Arrow file of {end - begin} bytes ends at byte {end}"
        raise ShardError(msg, shard=shard, byte=max(0, end), hint=_HINT)
    found = scan_messages(read, begin, end, shard=shard)
    num_items = int.from_bytes(bytes(read(0, 4)), "little")
    if found.num_samples != num_items:
        msg = f"the chunk says {num_items} items, and its Arrow file has {found.num_samples} rows"
        raise ShardError(msg, shard=shard, byte=0, hint=_HINT)
    return replace(found, head={_ROWS: dict(found.head)})


def is_rows(head: Mapping[str, Any]) -> bool:
    """Whether a chunk with this head holds rows."""
    return _ROWS in head


def parse_rows(buffer: Buffer, stretch: Stretch) -> TableItems:
    """Open some record batches.

    Raises
    ------
    ShardError
        They are none, or have another number of rows.
    """
    table, crcs = Arrow().opened(buffer, stretch._replace(head=stretch.head[_ROWS]))
    return TableItems(table, crcs, shard=stretch.shard)


class TableItems:
    """The rows of a table as LitData gives them: all values are Python's, lists of numbers too."""

    __slots__ = ("_arrays", "_crcs", "_num_rows", "_shard")

    def __init__(self, table: Any, crcs: Sequence[int], *, shard: str) -> None:
        check_names(table.column_names, shard)
        self._arrays = {name: joined(column) for name, column in zip(table.column_names, table.columns, strict=True)}
        self._num_rows, self._crcs, self._shard = table.num_rows, crcs, shard

    def __len__(self) -> int:
        return int(self._num_rows)

    def layout_crcs(self) -> NDArray[np.uint32]:
        """The CRC of each record batch, as the scan gives them; shape (num_pieces,)."""
        return np.array(self._crcs, dtype=np.uint32)

    def sample(self, number: int) -> Sample:
        """Row ``number``.

        Raises
        ------
        ShardError
            Where a value is damaged (text that is not UTF-8).
        """
        sample: Sample = {}
        for name, array in self._arrays.items():
            try:
                sample[name] = python_value(array[number])
            except (ValueError, OverflowError) as error:
                msg = f"row {number} of these, column {name!r}: {error}"
                raise ShardError(msg, shard=self._shard, hint=_HINT) from None
        return sample
