"""Arrow IPC shards, files and streams alike: a record batch is a piece.

Both are a chain of messages: a schema, dictionaries, record batches. The first bytes of a message give its length and
number of rows, so a scan skips its body. The index keeps everything before the first record batch. See "Arrow Columnar
Format", section "Serialization and Interprocess Communication".
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import ShardError
from shoal.formats.compressed.packed_heads import packed, unpacked, unusable
from shoal.formats.decoding.hf_features import features_in
from shoal.formats.field_columns import wanted_of
from shoal.formats.shard_format import Format, ReadBytes, Span, Spilled, SpillSpace
from shoal.formats.tables.arrow_columns import check_values
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.extension_types import shaped_schema, without_extensions
from shoal.formats.tables.table_rows import (
    OTHER_FILE,
    TableRecords,
    check_column_names,
    partition_fields,
    rows_of_part,
    spilled_rows,
    table_of_part,
)
from shoal.index.shard_scan import Buffer, ShardScan

_FILE_MAGIC = b"ARROW1\0\0"
_CONTINUATION = b"\xff\xff\xff\xff"
_END = _CONTINUATION + bytes(4)
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_PREFIX = "prefix"  # kept in the head: schema and dictionaries
_AT_ONCE_BYTES = 4 << 10  # most heads of messages are smaller
_HEAD_LIMIT_BYTES = 64 << 20
_NO_SHARD = "this is not an Arrow IPC shard, or it is damaged"
_NAMES = {_SCHEMA: "a schema", _DICTIONARY: "a dictionary", _BATCH: "a record batch"}


class _Message(NamedTuple):
    """One message of a shard: its kind, its byte range, its rows, and the CRC of its head."""

    kind: int
    first_byte: int
    end_byte: int
    num_rows: int
    crc: int
    buffers: list[tuple[int, int]]  # of a compressed record batch: start and size


class Arrow(Format):
    """The format of record batches, as Arrow's writers and Hugging Face ``datasets`` store them; a sample is a row.

    Directories named ``column=value`` give a field to all rows below them.

    Examples
    --------
    >>> packed = shoal.pack.pack([{"text": "a cat", "label": 0}], "packed", format="arrow")
    >>> shoal.open("packed", format=shoal.formats.Arrow())[0]
    {'text': 'a cat', 'label': 0}
    """

    name: str = "arrow"
    suffixes: tuple[str, ...] = (".arrow", ".feather", ".arrows")
    has_columns = True
    spilled_as = "arrow None"

    def __init__(self) -> None:
        self._projection: tuple[str, ...] | None = None

    def projected(self, names: Sequence[str]) -> Arrow:
        """Return a copy that decodes only these columns of shards that have all of them."""
        projected = Arrow()
        projected._projection = tuple(names)
        projected.spilled_as = f"{self.name} {projected._projection}"
        return projected

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Read the heads of messages, and everything before the first record batch; empty batches have no piece.

        Raises `ShardError` if the messages lead out of the shard, or a dictionary comes after a record batch.
        """
        return scan_messages(read, 0, num_bytes, shard=shard)

    def parse(self, buffer: Buffer, span: Span) -> TableRecords:
        """Open record batches; memory O(their size).

        Raises `ShardError` if the bytes are not record batches, or have another number of rows than the index says.
        """
        table, crcs = self.opened(buffer, span)
        constants = partition_fields(span.shard)
        return TableRecords(table, crcs, shard=span.shard, byte=span.first_byte, constants=constants)

    def spill(self, read: ReadBytes, end_byte: int, span: Span, space: SpillSpace) -> Spilled:
        """Spill the rows of record batches, a few per part; memory O(the batches). Raises as `parse`."""
        table, _ = self.opened(read(span.first_byte, end_byte), span)
        num_rows = rows_of_part(table.num_rows, table.nbytes, table.schema)
        return spilled_rows(table.to_batches(), num_rows, space)

    def parse_part(self, data: bytes, span: Span) -> TableRecords:
        """Open one spilled part."""
        return TableRecords(table_of_part(data), [], shard=span.shard, constants=partition_fields(span.shard))

    def opened(self, buffer: Buffer, span: Span) -> tuple[Any, list[int]]:
        """Return the table of record batches, and the CRC of each batch; raises as `parse`."""
        pa, view = arrow_library("Arrow"), memoryview(buffer)
        shard, first_byte = span.shard, span.first_byte

        def read(first: int, end: int, /) -> Buffer:
            return view[first - first_byte : end - first_byte]

        messages = [*_messages(read, first_byte, first_byte + len(view), shard, is_old=bool(span.head.get("old")))]
        if span.head.get("late"):  # dictionaries between these batches, which the head already has
            messages = [message for message in messages if message.kind != _DICTIONARY]
            view = memoryview(b"".join(read(message.first_byte, message.end_byte) for message in messages))
        num_rows = sum(message.num_rows for message in messages)
        if num_rows != span.num_samples or any(message.kind != _BATCH for message in messages):
            msg = f"the index says {span.num_samples} rows in these {len(view)} bytes, but they hold {num_rows}"
            raise ShardError(msg, shard=shard, byte=first_byte, hint=OTHER_FILE)
        stream = _without_extensions(unpacked(span.head, _PREFIX, shard=shard)) + view + _END
        where = ""
        try:
            with pa.ipc.open_stream(stream, options=self._options(pa, stream, shard)) as reader:
                table = reader.read_all()
            for name, column in zip(table.column_names, table.columns, strict=True):
                where = f"column {name!r}: "
                check_values(column)
        except (pa.ArrowException, OSError, ValueError) as error:
            msg = f"its record batches cannot be read: {where}{error}"
            raise ShardError(msg, shard=shard, byte=first_byte, hint=OTHER_FILE) from None
        return table, [message.crc for message in messages if message.num_rows]

    def features(self, head: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the Hugging Face ``datasets`` features in the schema of a shard."""
        return features_in(self.schema(head).metadata)

    def schema(self, head: Mapping[str, Any]) -> Any:
        """Return the schema of a shard with all its columns."""
        pa, prefix = arrow_library("Arrow"), _without_extensions(unpacked(head, _PREFIX))
        try:
            return shaped_schema(pa.ipc.open_stream(prefix + _END).schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unusable(_PREFIX, error) from None

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the names of the columns."""
        return self.schema(head).names if head else None

    def _options(self, pa: Any, stream: bytes, shard: str) -> Any:
        """Return options that read only the wanted columns."""
        if self._projection is None:
            return None
        names = pa.ipc.open_stream(stream).schema.names
        check_column_names(names, shard)
        wanted = wanted_of(names, [name for name in self._projection if name not in partition_fields(shard)])
        return pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in wanted])


def scan_messages(read: ReadBytes, first_byte: int, end_byte: int, *, shard: str) -> ShardScan:
    """Scan a file or stream at ``[first_byte, end_byte)`` of a shard; returns and raises as `Arrow.scan`."""
    batches: list[_Message] = []
    late: list[_Message] = []  # dictionaries after the first record batch, which a file may have
    is_file, schema = bytes(read(first_byte, min(first_byte + 8, end_byte))) == _FILE_MAGIC, b""
    begin = first_byte + len(_FILE_MAGIC) * is_file
    is_old = _is_old(read, begin, end_byte)
    if is_file and not is_old and bytes(read(begin, min(begin + 4, end_byte))) != _CONTINUATION:
        schema, begin = _from_footer(read, first_byte, end_byte, shard)
    prefix_end = begin
    for message in _messages(read, begin, end_byte, shard, is_old=is_old):
        if message.kind == _BATCH:
            batches += [message] if message.num_rows else []
        elif is_file and batches and message.kind == _DICTIONARY:
            late.append(message)
        elif batches or (message.kind == _SCHEMA) != (message.first_byte == begin and not schema):
            msg = f"{_NAMES[message.kind]} lies at bytes [{message.first_byte}, {message.end_byte}), where none may be"
            hint = "write the shard again with one schema and whole dictionaries before the first record batch"
            raise ShardError(msg, shard=shard, byte=message.first_byte, hint=hint)
        else:
            prefix_end = message.end_byte
    if (prefix_end == begin and not schema) or prefix_end - begin > _HEAD_LIMIT_BYTES:
        msg = f"schema and dictionaries have {prefix_end - begin} bytes"
        raise ShardError(msg, shard=shard, byte=begin, hint=_NO_SHARD)
    prefix = schema + bytes(read(begin, prefix_end))
    prefix += b"".join(bytes(read(message.first_byte, message.end_byte)) for message in late)
    starts = [batch.first_byte for batch in batches] + [batch.end_byte for batch in batches[-1:]]
    return ShardScan(
        np.array(starts or [first_byte], dtype=np.int64),
        np.array([batch.crc for batch in batches], dtype=np.uint32),
        head={_PREFIX: packed(prefix)} | ({"late": True} if late else {}) | ({"old": True} if is_old else {}),
        piece_samples=np.array([batch.num_rows for batch in batches], dtype=np.int64),
        piece_decoded_bytes=np.array([_decoded_bytes(read, batch, shard) for batch in batches], dtype=np.int64),
    )


def _from_footer(read: ReadBytes, first_byte: int, num_bytes: int, shard: str) -> tuple[bytes, int]:
    """Return the schema message, and the byte where other messages begin, of a file without a schema at its front.

    polars writes such files.
    """
    tail = bytes(read(max(first_byte, num_bytes - 10), num_bytes))
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != _FILE_MAGIC[:6] or first_byte + size + 18 > num_bytes or size > _HEAD_LIMIT_BYTES:
        msg = f"no message begins here, and no footer ends the file: {tail!r}"
        raise ShardError(msg, shard=shard, byte=first_byte + len(_FILE_MAGIC), hint=_NO_SHARD)
    footer = bytes(read(num_bytes - 10 - size, num_bytes))
    pa = arrow_library("Arrow")
    try:
        file = pa.ipc.open_file(pa.py_buffer(_FILE_MAGIC + without_extensions(footer)))
        schema = file.schema.serialize().to_pybytes()
        blocks = [block for number in (2, 3) for (block,) in _structs(footer, _root(footer), number, "<q16x")]
        begin = min((first_byte + block for block in blocks), default=num_bytes)
        if not first_byte + len(_FILE_MAGIC) <= begin <= num_bytes:
            raise ValueError(f"a message would begin at byte {begin} of {num_bytes}")
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        msg = f"the footer of {size} bytes cannot be read: {error}"
        raise ShardError(msg, shard=shard, byte=num_bytes - 10 - size, hint=_NO_SHARD) from None
    return schema, begin


def _without_extensions(prefix: bytes) -> bytes:
    """Remove the extension types from the schema before the dictionaries."""
    begin = 4 * prefix.startswith(_CONTINUATION)
    end = begin + 4 + int.from_bytes(prefix[begin : begin + 4], "little")
    return without_extensions(prefix[:end]) + prefix[end:]


def _is_old(read: ReadBytes, begin: int, end_byte: int) -> bool:
    """Return True for messages of Arrow before 0.15, where nothing precedes the size of a head."""
    front = bytes(read(begin, min(begin + _AT_ONCE_BYTES, end_byte)))
    size = int.from_bytes(front[:4], "little")
    if front[:4] == _CONTINUATION or not 0 < size <= min(end_byte - begin - 4, _HEAD_LIMIT_BYTES):
        return False
    head = front[4 : 4 + size] if 4 + size <= len(front) else bytes(read(begin + 4, begin + 4 + size))
    try:
        return _head_fields(head)[0] == _SCHEMA
    except (struct.error, ValueError):
        return False


def _messages(read: ReadBytes, begin: int, num_bytes: int, shard: str, *, is_old: bool) -> Iterator[_Message]:
    """Yield the messages from byte ``begin`` to the end mark or the end of the bytes."""
    position, mark = begin, b"" if is_old else _CONTINUATION
    front_bytes = len(mark) + 4
    while position < num_bytes:
        head = bytes(read(position, min(position + _AT_ONCE_BYTES, num_bytes)))
        size = int.from_bytes(head[len(mark) : front_bytes], "little")
        if head[:front_bytes] == mark + bytes(4):
            return
        end, hint = position + front_bytes + size, _NO_SHARD
        fits = head.startswith(mark) and end <= num_bytes and size <= _HEAD_LIMIT_BYTES
        if fits and front_bytes + size > len(head):
            head = bytes(read(position, end))
        try:
            if not fits:
                raise ValueError(f"it would begin with {head[:8]!r}")
            kind, num_rows, body_bytes, buffers = _head_fields(head[front_bytes : front_bytes + size])
            body_end = end + body_bytes
            if body_end > num_bytes:
                hint = "an unfinished copy? copy the shard again"
                raise ValueError(f"{_NAMES[kind]} would end at byte {body_end}, but the shard has {num_bytes}")
            buffers = [(end + first, length) for first, length in buffers if length]
            if any(not end <= first <= first + length <= body_end for first, length in buffers):
                raise ValueError("its buffers extend beyond it")
        except (struct.error, ValueError) as error:
            raise ShardError(f"no message can be read here: {error}", shard=shard, byte=position, hint=hint) from None
        yield _Message(kind, position, body_end, num_rows, zlib.crc32(head[: front_bytes + size]), buffers)
        position = body_end


def _decoded_bytes(read: ReadBytes, batch: _Message, shard: str) -> int:
    """Return the size of a record batch in memory: each compressed buffer begins with its decompressed size."""
    total = 0 if batch.buffers else batch.end_byte - batch.first_byte
    for begin, length in batch.buffers:
        size = int.from_bytes(bytes(read(begin, begin + 8)), "little", signed=True) if length >= 8 else -2
        if size < -1 or size >= 1 << 48:
            msg = f"a compressed buffer of {length} bytes claims to hold {size}"
            raise ShardError(msg, shard=shard, byte=begin, hint=_NO_SHARD)
        total += length if size == -1 else size  # -1: stored uncompressed, since it would not have shrunk
    return total


def _head_fields(head: bytes) -> tuple[int, int, int, list[tuple[int, int]]]:
    """Return kind, rows, body bytes and compressed buffers of a message, from its flatbuffer."""
    # A table begins with the distance back to its list of fields, which has the distance of each field from the start
    # of the table, or 0. See https://flatbuffers.dev/internals.
    table = _root(head)
    kind, body_bytes = _number(head, table, 1, "<B"), _number(head, table, 3, "<q")
    if kind not in _NAMES or body_bytes < 0:
        raise ValueError(f"kind {kind}, {body_bytes} bytes")
    if kind != _BATCH:
        return kind, 0, body_bytes, []
    field = _field(head, table, 2)
    batch = field + _root(head, field)
    num_rows = _number(head, batch, 0, "<q") if field else -1
    if num_rows < 0:
        raise ValueError(f"{num_rows} rows")
    is_compressed = _field(head, batch, 3)
    return kind, num_rows, body_bytes, _structs(head, batch, 2, "<2q") if is_compressed else []


def _root(data: bytes, at: int = 0) -> int:
    """Return the distance that a reference holds."""
    return int(struct.unpack_from("<I", data, at)[0])


def _structs(data: bytes, table: int, number: int, layout: str) -> list[Any]:
    """Return the vector of structs in a table's field; empty if the field is left out."""
    field = _field(data, table, number)
    if not field:
        return []
    vector, size = field + _root(data, field), struct.calcsize(layout)
    count = _root(data, vector)
    if size * count > len(data):
        raise ValueError(f"{count} structs in {len(data)} bytes")
    return [struct.unpack_from(layout, data, vector + 4 + size * entry) for entry in range(count)]


def _number(data: bytes, table: int, number: int, layout: str) -> int:
    field = _field(data, table, number)
    return int(struct.unpack_from(layout, data, field)[0]) if field else 0


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a table's field; 0 if the field is left out."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    if fields < 0:
        raise ValueError("a table without fields")
    if 4 + 2 * number >= struct.unpack_from("<H", data, fields)[0]:
        return 0
    distance = int(struct.unpack_from("<H", data, fields + 4 + 2 * number)[0])
    return table + distance if distance else 0
