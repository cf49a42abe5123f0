"""Serialized scans, for the pipe to a worker and for the disk: JSON and raw columns, which cannot run code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from shoal import errors
from shoal.errors import ShoalError
from shoal.index.shard_scan import Buffer, ShardScan

_LENGTH_BYTES = 8
_MOST_WRITTEN_BYTES = 16 << 20  # at a time: a system writes only a part of 2 GiB or more
_PIECE_COLUMNS = ("piece_samples", "piece_decoded_bytes", "piece_ends")


def write_frame(pipe: IO[bytes], header: Mapping[str, Any], scan: ShardScan | None = None) -> None:
    """Write one whole message: a header of JSON types and optionally a scan, without a copy.

    ``pipe`` may be raw and write only a part, as stdout does under PYTHONUNBUFFERED. Raises `OSError` of the system,
    and if a non-blocking pipe accepts nothing.
    """
    parts: list[Buffer] = [json.dumps(header).encode()]
    parts += scan_to_buffers(scan) if scan is not None else []
    lengths = len(parts[0]), sum(len(part) for part in parts[1:])
    for part in (*(length.to_bytes(_LENGTH_BYTES, "little") for length in lengths), *parts):
        rest = memoryview(part)
        while rest:
            num_written = pipe.write(rest[:_MOST_WRITTEN_BYTES])
            if not num_written:  # None if a raw pipe would have to wait
                raise BlockingIOError(f"the pipe took none of the {len(rest)} bytes left of a message")
            rest = rest[num_written:]
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> tuple[dict[str, Any], ShardScan | None] | None:
    """Read the next message, without a copy of its scan; None once the other side has ended, cleanly or not."""
    try:
        header_bytes, scan_bytes = _read(pipe, 2 * _LENGTH_BYTES).view("<u8").tolist()
        header = json.loads(_read(pipe, header_bytes).tobytes())
        return header, scan_from(_read(pipe, scan_bytes).data) if scan_bytes else None
    except EOFError:
        return None


def _read(pipe: IO[bytes], num_bytes: int) -> NDArray[np.uint8]:
    """Read the next bytes in place; EOFError if there are fewer."""
    data = np.empty(num_bytes, dtype=np.uint8)
    rest = data.data
    while rest:
        num_read: int | None = pipe.readinto(rest)  # type: ignore[attr-defined]  # every binary file has it
        if not num_read:
            raise EOFError
        rest = rest[num_read:]
    return data


def scan_to_buffers(scan: ShardScan) -> list[Buffer]:
    """Return a scan as buffers to write in turn; large buffers are views of its arrays."""
    pieces = {name: getattr(scan, name) for name in _PIECE_COLUMNS}
    header = {
        "num_starts": len(scan.sample_starts),
        "head": scan.head,
        "notes": scan.notes,
        **{name: None if column is None else column.tolist() for name, column in pieces.items()},
    }
    text = json.dumps(header, default=dict).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)  # so that the arrays behind it are aligned
    starts = np.ascontiguousarray(scan.sample_starts, dtype="<i8")
    crcs = np.ascontiguousarray(scan.layout_crcs, dtype="<u4")
    columns = [column.data.cast("B") for column in (starts, crcs) if len(column)]
    return [len(text).to_bytes(_LENGTH_BYTES, "little"), text, *columns]


def scan_from(data: memoryview) -> ShardScan:
    """Rebuild a scan from the bytes of `scan_to_buffers`."""
    text_end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = json.loads(bytes(data[_LENGTH_BYTES:text_end]))
    starts_end = text_end + 8 * header["num_starts"]
    pieces = {name: header.get(name) for name in _PIECE_COLUMNS}
    return ShardScan(
        sample_starts=np.frombuffer(data[text_end:starts_end], dtype="<i8").astype(np.int64, copy=False),
        layout_crcs=np.frombuffer(data[starts_end:], dtype="<u4").astype(np.uint32, copy=False),
        head=header["head"],
        notes=header["notes"],
        **{name: None if rows is None else np.array(rows, dtype=np.int64) for name, rows in pieces.items()},
    )


def header_of_error(error: Exception, trace: str) -> dict[str, Any]:
    """Return an exception as JSON types; its traceback ``trace`` is kept only if the error is not shoal's."""
    if not isinstance(error, ShoalError):
        return {"kind": "bug", "what": f"{type(error).__name__}: {error}", "trace": trace}
    known = {name: value for name, value in vars(error).items() if isinstance(value, str | int | None)}
    return {"kind": "error", "type": type(error).__name__, "args": [str(arg) for arg in error.args], "known": known}


def error_of(header: Mapping[str, Any], *, shard: str) -> ShoalError:
    """Rebuild the exception of `header_of_error`, with its type and attributes."""
    kind = getattr(errors, header["type"]) if header.get("type") in errors.__all__ else None
    if isinstance(kind, type) and issubclass(kind, ShoalError):
        error: ShoalError = kind.__new__(kind, *header["args"])
        error.args = tuple(header["args"])
        vars(error).update(header["known"])
        return error
    msg = f"{shard}: the scan of this shard failed: {header.get('what', header)}"
    failure = ShoalError(
        msg, hint="this is a bug of shoal, or of the format; please report it with the traceback below"
    )
    failure.add_note(header.get("trace", ""))
    return failure
