"""Writing of an index that does not fit into memory: an index file, column after column, from chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.index.assembly import FINGERPRINTED, fingerprint_of_chunks
from shoal.index.index_file import head_of, with_crc
from shoal.index.shard_scan import Buffer


class _File(Protocol):
    """An unfinished file."""

    def write(self, buffers: Sequence[Buffer]) -> None: ...

    def patch(self, first_byte: int, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class StreamedColumn:
    """A column of an index file: its name, type and length; each call of ``chunks`` yields its values again."""

    name: str
    kind: np.dtype[Any]
    length: int
    chunks: Callable[[], Iterable[NDArray[Any]]]


def write_streamed(
    file: _File, columns: Sequence[StreamedColumn], *, shard_names: Sequence[str], about: Mapping[str, Any]
) -> str:
    """Write an index file, with the same bytes as `encode`, and return the fingerprint of the dataset.

    ``about`` has the format, notes and metadata. Memory: two chunks, and the head. The columns in the fingerprint are
    read twice, because the fingerprint precedes the columns in the file. Raises `IndexFileError` as `encode`.
    """
    by_name = {column.name: column for column in columns}
    num_extents = by_name[FINGERPRINTED[0]].length
    chunks = (chunk for name in FINGERPRINTED for chunk in by_name[name].chunks())
    fingerprint = fingerprint_of_chunks(shard_names, num_extents, chunks)
    described = {"format": about["format"], "fingerprint": fingerprint, "num_shards": len(shard_names)}
    described |= {"notes": about["notes"], "metadata": about["metadata"]}
    head, gaps = head_of(described, [(column.name, column.kind, column.length) for column in columns])
    file.write([head])
    crc = crc32(head)
    for column, gap in zip(columns, gaps, strict=True):
        length = 0
        for chunk in column.chunks():
            data = np.ascontiguousarray(chunk, column.kind.newbyteorder("<")).view(np.uint8).data
            crc = crc32(data, crc)
            file.write([data])
            length += len(chunk)
        if length != column.length:
            raise ValueError(f"the column {column.name!r} has {length} values, not {column.length}")
        if gap:
            crc = crc32(bytes(gap), crc)
            file.write([bytes(gap)])
    file.patch(0, with_crc(head, crc))
    return fingerprint
