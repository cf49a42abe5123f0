"""HDF5 files as shards: datasets with a common first axis are the fields, and a sample is a row of each.

A piece is a range of rows whose chunks lie together in the file. The index keeps the bytes that describe the datasets,
and small datasets: HDF5 itself then decodes a piece from these bytes and the bytes of the piece.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from shoal import formats
from shoal.errors import ShardError, ShoalError
from shoal.formats import PieceCuts, known_reads
from shoal.formats.field_columns import wanted_of
from shoal.formats.shard_format import Spilled, SpillSpace

CUT_BYTES = 1 << 20  # of a contiguous dataset, in each piece
MOST_RATIO = 1100  # deflate stores at most about as many bytes in one
HINT = "another or a damaged file? compare it with its source, and index it again"


class Hdf5(formats.Format):
    """Rows of the datasets of ``group``, or only of ``fields``; the index keeps datasets up to ``small_bytes``."""

    name, suffixes, has_columns = "hdf5", (".h5", ".hdf5"), True

    def __init__(self, *, group: str = "/", fields: Sequence[str] = (), small_bytes: int = 256 << 10) -> None:
        self.group, self.fields, self.small_bytes = group, list(fields), small_bytes
        self.options = {"group": group, "fields": self.fields, "small_bytes": small_bytes}
        self._wanted: tuple[str, ...] | None = None
        self.spilled_as = f"hdf5 {self.options}"

    def projected(self, names: Sequence[str]) -> "Hdf5":
        projected = copy(self)
        projected._wanted, projected.spilled_as = tuple(names), f"{self.spilled_as} {names}"
        return projected

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        return head.get("fields")

    def scan(self, read: formats.ReadBytes, num_bytes: int, *, shard: str) -> formats.ShardScan:
        reads = formats.NotedReads(read)
        with opened(reads, num_bytes, shard, 0) as file:
            fields = self._fields(file[self.group], num_bytes)
            num_rows = len(next(iter(fields.values())))
            by_size = sorted(fields.values(), key=lambda field: field.id.get_storage_size())
            large = [field for field in by_size[:-1] if not self._keep(field, reads)] + by_size[-1:]
            stored = [stored_rows(field, num_bytes) for field in large]
            cuts = PieceCuts.between(stored, num_rows=num_rows, num_bytes=num_bytes)
            row_bytes = sum(field.nbytes for field in by_size) // max(1, num_rows)
        head = {"num_bytes": num_bytes, "fields": list(fields), "cuts": cuts.packed(), "kept": reads.packed()}
        return formats.ShardScan(
            cuts.first_bytes, cuts.crcs(), head, {}, cuts.num_samples, cuts.num_samples * row_bytes
        )

    def _fields(self, group: h5py.Group, num_bytes: int) -> dict[str, h5py.Dataset]:
        # A link to another file would read what this file names, and not what the user opens.
        hard = [name for name in self.fields or group if isinstance(group.get(name, getlink=True), h5py.HardLink)]
        fields = {name: group[name] for name in hard if isinstance(group[name], h5py.Dataset) and group[name].shape}
        lengths = {name: len(field) for name, field in fields.items()}
        if len(set(lengths.values())) != 1 or len(fields) < len(self.fields):
            raise ValueError(f"{self.group} has the datasets {lengths}: name some of equal length, Hdf5(fields=[...])")
        for name, field in fields.items():
            is_text = h5py.check_string_dtype(field.dtype) or h5py.check_vlen_dtype(field.dtype)
            if field.is_virtual or field.external or (field.dtype.hasobject and not is_text):
                raise ValueError(f"{name} has its data elsewhere, or references: leave it out, Hdf5(fields=[...])")
            if max(field.nbytes, len(field)) > MOST_RATIO * num_bytes:
                raise ValueError(f"{name} claims {field.nbytes:,} bytes in a file of {num_bytes:,}")
        return fields

    def _keep(self, field: h5py.Dataset, reads: formats.NotedReads) -> bool:
        """Read a small dataset, so that ``reads`` has its bytes; return False, and note none, if it is large."""
        step = 64 if field.dtype.hasobject else max(len(field), 1)  # values of variable length may have any size
        steps = (field[row : row + step] for row in range(0, len(field), step))
        return field.id.get_storage_size() <= self.small_bytes and reads.keep(steps, limit_bytes=2 * self.small_bytes)

    def parse(self, buffer: formats.Buffer, span: formats.Span) -> formats.ArrayRows:
        cuts, end_byte = PieceCuts.kept(span.head, "cuts", shard=span.shard), span.first_byte + len(buffer)
        pieces, rows = cuts.rows_in(span, len(buffer))
        with self._opened(buffer, end_byte, span) as file:
            return formats.ArrayRows(self._values(file, span, rows), cuts.crcs()[pieces])

    def spill(self, read: formats.ReadBytes, end_byte: int, span: formats.Span, space: SpillSpace) -> Spilled:
        _, rows = PieceCuts.kept(span.head, "cuts", shard=span.shard).rows_in(span, end_byte - span.first_byte)
        with self._opened(read, end_byte, span) as file:
            return formats.spilled_arrays(lambda part: self._values(file, span, part), rows, space)

    def parse_part(self, data: bytes, span: formats.Span) -> formats.ArrayRows:
        return formats.ArrayRows.of_part(data)

    def _opened(self, piece: Any, end_byte: int, span: formats.Span) -> AbstractContextManager[h5py.File]:
        first_byte, shard = span.first_byte, span.shard
        reads = known_reads(span.head, "kept", piece, first_byte=first_byte, end_byte=end_byte, shard=shard)
        return opened(reads, span.head["num_bytes"], shard, first_byte)

    def _values(self, file: h5py.File, span: formats.Span, rows: slice) -> dict[str, NDArray[Any]]:
        fields = {name: file[self.group][name] for name in wanted_of(span.head["fields"], self._wanted)}
        texts = {
            name for name in fields if fields[name].dtype.hasobject and h5py.check_string_dtype(fields[name].dtype)
        }
        return {name: (field.asstr() if name in texts else field)[rows] for name, field in fields.items()}


@contextmanager
def opened(read: formats.ReadBytes, num_bytes: int, shard: str, byte: int) -> Iterator[h5py.File]:
    """Open a file, and turn errors of HDF5 into `ShardError`, except the error of a failed read."""
    ranges = formats.FileOfRanges(lambda first, end: sound(read(first, end)), num_bytes, raises=False)
    try:
        with h5py.File(ranges, "r") as file:
            yield file
        if ranges.failure is not None:
            raise ranges.failure
    except Exception as error:
        cause = ranges.failure or error  # after a failed read, which left zeros, HDF5 has another error, or none
        if isinstance(cause, ShoalError):
            raise cause from None
        raise ShardError(f"HDF5: {cause}", shard=shard, byte=byte, hint=HINT) from error


def sound(data: formats.Buffer) -> formats.Buffer:
    """Return the data; raise if it is a heap of texts whose damaged sizes would keep HDF5 in a loop for ever."""
    at, end = 16, int.from_bytes(data[8:16], "little") if data[:4] == b"GCOL" else 0
    while at + 16 <= end <= len(data):
        is_object, size = any(data[at : at + 2]), int.from_bytes(data[at + 8 : at + 16], "little")
        if not 16 <= (step := 16 + -(-size // 8) * 8 if is_object else size) <= end - at:
            raise ValueError("the heap of values of variable length is damaged")
        at += step
    return data


def stored_rows(field: h5py.Dataset, num_bytes: int) -> formats.StoredRows | None:
    """Return the rows where a dataset may be cut, and where they are stored; None if that is not known."""
    if field.chunks is not None and not field.dtype.hasobject:
        chunks: list[Any] = []
        field.id.chunk_iter(chunks.append)
        parts = [(chunk.chunk_offset[0], chunk.byte_offset, chunk.byte_offset + chunk.size) for chunk in chunks]
        num_rows = min(len(field), num_bytes * field.chunks[0])  # a damaged file may claim any number
        return formats.StoredRows(np.arange(0, num_rows, field.chunks[0]), np.array(parts, np.int64).reshape(-1, 3))
    offset, stored_bytes = field.id.get_offset(), field.id.get_storage_size()
    if offset is None or not stored_bytes or field.dtype.hasobject:  # in the header, not stored, or anywhere
        return None
    borders = np.arange(0, len(field), max(1, CUT_BYTES * len(field) // stored_bytes))
    first_bytes = offset + np.append(borders, len(field)) * (stored_bytes // len(field))
    return formats.StoredRows(borders, np.stack([borders, first_bytes[:-1], first_bytes[1:]], axis=1))
