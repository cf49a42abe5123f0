"""The index file, which a process maps and reads without copying.

Any tool for safetensors reads an index: 8 bytes little-endian header length; a JSON header, padded with spaces to
64-byte alignment; then the columns, little-endian, each 64-byte aligned (entries named ``padding.N`` fill the gaps,
which safetensors does not allow). ``__metadata__`` holds only text: ``format`` "shoal.index", ``version``, ``crc32``
and ``index``, the rest as JSON. Names, versions and heads of shards are columns of bytes, so the header has a few KB
for any number of shards; for shards packed by shoal it also has digests of 70 bytes. ``crc32`` covers the whole file,
in eight hexadecimal digits, computed with zeros in their place; old files have none.

An index may come from anywhere, so nothing in it is trusted: `decode` checks the header against the file, and
`shoal.index.assembly.validate` the columns against each other. `confirm` detects bytes that changed by accident.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexFileError
from shoal.index.shard_scan import Buffer
from shoal.index.shard_texts import Texts, check_names
from shoal.index.table import EXTENT_COLUMNS, Index

_VERSION = 1
_MAGIC = "shoal.index"
_MAX_HEADER_BYTES = 256 << 20

_ALIGNMENT = 64
_LENGTH_BYTES = 8
_KINDS = {
    "BOOL": "|b1", "I8": "|i1", "U8": "|u1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8",
    "U64": "<u8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
_KIND_OF = {np.dtype(text): name for name, text in _KINDS.items()}
USER_PREFIX = "column."
"""Prefix of the names of users' columns in the file."""
_NO_CRC = "00000000"
_BEGINNING = b'{"__metadata__":{"format":"shoal.index"'
_HINT = "the file is damaged or of another kind: make the index again"


def encode(index: Index) -> list[Buffer]:
    """Return the bytes of an index file as consecutive buffers; the columns are not copied.

    Raises `IndexFileError` if the name of a shard is not safe, or the file cannot hold the type of a column.
    """
    columns = [(name, _flat(name, column)) for name, column in columns_of(index)]
    described = {name: getattr(index, name) for name in ("format", "fingerprint", "num_shards", "notes", "metadata")}
    head, gaps = head_of(described, [(name, column.dtype, len(column)) for name, column in columns])
    parts: list[Buffer] = []
    for (_, column), gap in zip(columns, gaps, strict=True):
        parts.append(column.view(np.uint8).data if len(column) else b"")
        if gap:
            parts.append(bytes(gap))
    return [with_crc(head, _crc_of(head, *parts)), *parts]


def head_of(described: Mapping[str, Any], columns: Iterable[tuple[str, np.dtype[Any], int]]) -> tuple[bytes, list[int]]:
    """Return the head of an index file, all bytes before the columns, and the bytes of the gap after each column.

    ``described`` has format, fingerprint, num_shards, notes and metadata; ``columns`` has the name, type and length of
    each column. The CRC is still zero, see `with_crc`. Raises `IndexFileError` if the head is too large for readers.
    """
    facts = {**described, "notes": dict(described["notes"]), "metadata": dict(described["metadata"])}
    outer = {"format": _MAGIC, "version": str(_VERSION), "crc32": _NO_CRC, "index": json.dumps(facts)}
    header: dict[str, Any] = {"__metadata__": outer}
    gaps: list[int] = []
    position = num_parts = 0
    for name, kind, length in columns:
        end = position + length * kind.itemsize
        header[name] = _entry(_KIND_OF[_stored(name, kind)], length, position, end)
        position = end + -end % _ALIGNMENT
        gaps.append(position - end)
        num_parts += 1
        if position > end:
            header[f"padding.{num_parts}"] = _entry("U8", position - end, end, position)
            num_parts += 1
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH_BYTES) % _ALIGNMENT)
    if len(text) > _MAX_HEADER_BYTES:
        msg = f"the header of the index would have {len(text)} bytes, but readers accept at most {_MAX_HEADER_BYTES}"
        raise IndexFileError(msg, hint="write larger shards, or leave out fewer inputs")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, gaps


def begins_as_index(beginning: bytes) -> bool:
    """Return True if ``beginning`` holds the first bytes of an index file, at most 64.

    >>> begins_as_index(bytes(8) + b'{"__metadata__":{"form'), begins_as_index(b"<p>Not found</p>")
    (True, False)
    """
    return len(beginning) > _LENGTH_BYTES and _BEGINNING.startswith(beginning[_LENGTH_BYTES:][: len(_BEGINNING)])


def with_crc(head: bytes, crc: int) -> bytes:
    """Return the head of an index file with the CRC-32 of the whole file, computed with zeros in its place."""
    return head.replace(_crc_entry(_NO_CRC), _crc_entry(f"{crc:08x}"), 1)


def _flat(name: str, column: NDArray[Any]) -> NDArray[Any]:
    if column.ndim != 1:
        raise IndexFileError(f"the column {name!r} has the shape {column.shape}", hint="an index holds flat columns")
    return np.ascontiguousarray(column, _stored(name, column.dtype))


def _stored(name: str, kind: np.dtype[Any]) -> np.dtype[Any]:
    stored = kind.newbyteorder("<")
    if stored not in _KIND_OF:
        msg = f"the column {name!r} is of type {kind}"
        raise IndexFileError(msg, hint=f"an index holds columns of {', '.join(_KINDS)}")
    return stored


def _entry(kind: str, length: int, start: int, end: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": [length], "data_offsets": [start, end]}


def _crc_entry(digits: str) -> bytes:
    """Return the CRC entry of the header; no similar text comes before it."""
    return f'"crc32":"{digits}"'.encode()


def _crc_of(*parts: Buffer) -> int:
    return reduce(lambda crc, part: crc32(part, crc), parts, 0)


def columns_of(index: Index) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the names and values of the columns of the file, in its order."""
    yield from shard_columns(index.shard_bytes, index.shard_names, index.shard_versions, index.shard_heads)
    yield "extent_first_sample", index.extent_first_sample
    for name in (*EXTENT_COLUMNS, "extent_checksum", "sample_bytes"):
        if (column := getattr(index, name)) is not None:
            yield name, column
    for name, column in index.columns.items():
        yield USER_PREFIX + name, column


def num_column_bytes(index: Index) -> int:
    """Return the bytes of the columns of extents and samples: all but a few bytes per shard of the file; O(1)."""
    columns = [getattr(index, name) for name in (*EXTENT_COLUMNS, "extent_checksum", "sample_bytes")]
    columns += [index.extent_first_sample, *index.columns.values()]
    return sum(column.nbytes for column in columns if column is not None)


def shard_columns(
    num_bytes: NDArray[np.int64],
    names: Sequence[str],
    versions: Sequence[str],
    heads: Mapping[int, Mapping[str, Any]],
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the columns about shards, the first columns of the file; see `Index`."""
    check_names(names)
    if any("\n" in version for version in versions):
        raise IndexFileError("a version of a shard holds a newline", hint="leave the version empty")
    yield "shard_bytes", num_bytes
    yield "shard_names", _blob("\n".join(names))
    yield "shard_versions", _blob("\n".join(versions))
    if heads:
        yield "shard_heads", _blob(json.dumps({str(number): dict(head) for number, head in heads.items()}))


def _blob(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8) if text else np.zeros(0, np.uint8)


def decode(buffer: Buffer) -> Index:
    """Decode an index file; the columns are read-only views of ``buffer``, which may be a memory map.

    O(header): only the ranges, types and lengths of columns are checked; `shoal.index.assembly.validate` reads them.
    Raises `IndexFileError` if the bytes are not an index file, have a newer version, or parts that do not fit together.
    """
    header, data_start = _header(buffer)
    described = _pop_metadata(header)
    columns = {name: _column(buffer, data_start, name, entry) for name, entry in header.items()}
    borders = [0, *(border for entry in header.values() for border in entry["data_offsets"]), len(buffer) - data_start]
    if borders[0::2] != borders[1::2]:
        _refuse("its columns do not follow each other from the header to the end of the file")
    num_shards = described["num_shards"]
    first_sample = _required(columns, "extent_first_sample", ("I64",))
    num_extents, num_samples = len(first_sample) - 1, int(first_sample[-1]) if len(first_sample) else -1
    if num_extents < 0 or num_samples < 0 or int(first_sample[0]) != 0:
        _refuse("its column 'extent_first_sample' does not begin at 0 and ascend")
    user = {name[len(USER_PREFIX) :]: _required(columns, name, tuple(_KINDS), num_samples)
            for name in columns if name.startswith(USER_PREFIX)}  # fmt: skip
    sums = _required(columns, "extent_checksum", ("U32",), num_extents) if "extent_checksum" in columns else None
    sizes = _required(columns, "sample_bytes", ("U32", "U64"), num_samples) if "sample_bytes" in columns else None
    names, versions = (_required(columns, name, ("U8",)) for name in ("shard_names", "shard_versions"))
    return Index(
        format=described["format"],
        shard_names=Texts(names.data, num_texts=num_shards, is_path=True),
        shard_bytes=_required(columns, "shard_bytes", ("I64",), num_shards),
        shard_versions=Texts(versions.data, num_texts=num_shards, is_path=False),
        shard_heads=_heads(columns, num_shards),
        extent_checksum=sums,
        sample_bytes=sizes,
        fingerprint=described["fingerprint"],
        columns=user,
        notes=described["notes"],
        metadata=described["metadata"],
        extent_first_sample=first_sample,
        **{
            name: _required(columns, name, (_KIND_OF[np.dtype(kind)],), num_extents)
            for name, kind in EXTENT_COLUMNS.items()
        },
    )


@dataclass(frozen=True, slots=True, eq=False)
class IndexHead:
    """Contents of the head of an index file; ``columns`` has types and byte ranges in the file by name."""

    format: str
    num_shards: int
    notes: Mapping[str, int]
    metadata: Mapping[str, Any]
    columns: Mapping[str, tuple[np.dtype[Any], int, int]]


def read_head(read: Callable[[int, int], Buffer], num_bytes: int) -> IndexHead:
    """Decode the head of an index file of ``num_bytes``; ``read`` returns a range of the file, and is called twice.

    Raises `IndexFileError` if the file is not an index, or a column would lie outside of it.
    """
    length = int.from_bytes(bytes(read(0, min(num_bytes, _LENGTH_BYTES))), "little")
    if length > min(_MAX_HEADER_BYTES, num_bytes - _LENGTH_BYTES):
        _refuse("its first 8 bytes are not the length of a header")
    header, data_start = _header(read(0, _LENGTH_BYTES + length))
    described = _pop_metadata(header)
    columns = {}
    for name, entry in header.items():
        kind, start, end = _range_of(name, entry, data_start, num_bytes)
        columns[name] = kind, data_start + start, data_start + end
    names = ("format", "num_shards", "notes", "metadata")
    return IndexHead(columns=columns, **{name: described[name] for name in names})


def confirm(buffer: Buffer, *, required: bool = False) -> None:
    """Check that the bytes of an index match the CRC-32 in its header; O(bytes), 0.4 s per GB.

    Finds changed values that `validate` cannot find, for example in columns that users added. Raises `IndexFileError`
    for another CRC-32, and for a header without a CRC-32 if it is ``required``.
    """
    header, data_start = _header(buffer)
    digits = header.get("__metadata__", {}).get("crc32")
    if digits is None:
        if required:
            _refuse("its header has no CRC-32")
        return
    head = bytes(buffer[:data_start]).replace(_crc_entry(str(digits)), _crc_entry(_NO_CRC), 1)
    crc = f"{_crc_of(head, memoryview(buffer)[data_start:]):08x}"
    if crc != digits:
        msg = f"its bytes have the CRC-32 {crc}, but its header says {str(digits)[:20]!r}"
        raise IndexFileError(msg, hint="the file was damaged: restore it, or make the index again")


def _header(buffer: Buffer) -> tuple[dict[str, Any], int]:
    """Return the JSON header, and the first byte of the columns."""
    length = int.from_bytes(bytes(buffer[:_LENGTH_BYTES]), "little")
    if len(buffer) < _LENGTH_BYTES or length > min(_MAX_HEADER_BYTES, len(buffer) - _LENGTH_BYTES):
        _refuse("its first 8 bytes are not the length of a header")
    try:
        header = json.loads(bytes(buffer[_LENGTH_BYTES : _LENGTH_BYTES + length]).decode("utf-8"))
    except (ValueError, RecursionError):
        _refuse("its header is not JSON")
    if not isinstance(header, dict):
        _refuse("its header is not a JSON object")
    return header, _LENGTH_BYTES + length


def _pop_metadata(header: dict[str, Any]) -> dict[str, Any]:
    """Remove the metadata from the header, and check its types."""
    outer = header.pop("__metadata__", None)
    if not isinstance(outer, dict) or outer.get("format") != _MAGIC:
        _refuse(f"its header does not say {_MAGIC!r}")
    version = outer.get("version")
    if version != str(_VERSION):
        msg = f"this index file has version {version!r}, but this version of shoal reads version {_VERSION}"
        raise IndexFileError(msg, hint="update shoal, or make the index again with this version")
    try:
        rest = json.loads(outer["index"])
        typed = {"format": str, "fingerprint": str, "num_shards": int, "notes": dict, "metadata": dict}
        right = all(type(rest[name]) is kind for name, kind in typed.items())
        right = right and rest["num_shards"] >= 0 and all(type(count) is int for count in rest["notes"].values())
    except (KeyError, TypeError, ValueError, RecursionError):
        right, rest = False, {}
    if not right:
        _refuse("its metadata is incomplete")
    return dict(rest)


def _column(buffer: Buffer, data_start: int, name: str, entry: object) -> NDArray[Any]:
    """Return a column as a read-only view, and check its range against the file."""
    kind, start, end = _range_of(name, entry, data_start, len(buffer))
    if start == end:
        return np.zeros(0, dtype=kind)
    column = np.frombuffer(buffer, dtype=kind, count=(end - start) // kind.itemsize, offset=data_start + start)
    column.flags.writeable = False
    return column


def _range_of(name: str, entry: object, data_start: int, num_bytes: int) -> tuple[np.dtype[Any], int, int]:
    """Return type, first and end byte of a column after the head, and check both bytes against the size of the file."""
    match entry:
        case {"shape": [int(length)], "data_offsets": [int(start), int(end)], "dtype": str(dtype)} if dtype in _KINDS:
            kind = np.dtype(_KINDS[dtype])
        case _:
            _refuse(f"its header does not describe the column {name[:80]!r}")
    is_whole = bool not in {type(length), type(start), type(end)} and end - start == length * kind.itemsize
    if not (is_whole and 0 <= start <= end <= num_bytes - data_start) or (data_start + start) % kind.itemsize:
        _refuse(f"its column {name[:80]!r} of {length} values cannot lie at bytes {start} to {end}")
    return kind, start, end


def _required(
    columns: Mapping[str, NDArray[Any]], name: str, kinds: tuple[str, ...], length: int | None = None
) -> NDArray[Any]:
    """Return a column of one of these types and of this length."""
    column = columns.get(name)
    if column is None:
        _refuse(f"it has no column {name!r}")
    if _KIND_OF.get(column.dtype) not in kinds or (length is not None and len(column) != length):
        expected = "any length" if length is None else f"length {length}"
        _refuse(f"its column {name!r} is {column.dtype} of length {len(column)}, not {kinds[0]} of {expected}")
    return column


def _heads(columns: Mapping[str, NDArray[Any]], num_shards: int) -> dict[int, dict[str, Any]]:
    """Return the stored heads of shards, by shard number."""
    if "shard_heads" not in columns:
        return {}
    try:
        text = _required(columns, "shard_heads", ("U8",)).tobytes().decode("utf-8")
        heads = {int(number): head for number, head in json.loads(text).items()}
    except (AttributeError, ValueError, RecursionError):
        _refuse("its column 'shard_heads' is not a JSON object")
    if not all(0 <= number < num_shards and isinstance(head, dict) for number, head in heads.items()):
        _refuse("its column 'shard_heads' names shards that do not exist")
    return heads


def _refuse(what: str) -> NoReturn:
    raise IndexFileError(f"this is not a whole index file: {what}", hint=_HINT) from None
