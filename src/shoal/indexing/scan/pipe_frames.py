"""Serialized scans, for the pipe to a worker and for the disk: JSON and raw columns, nothing that could run code."""

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

PART_BYTES = 16 << 20
"""Most bytes per write: of 2 GiB or more, a system writes only a part."""


def write_frame(pipe: IO[bytes], header: Mapping[str, Any], scan: ShardScan | None = None) -> None:
    """Write one whole message: a header of JSON types and optionally a scan, of which nothing is copied.

    ``pipe`` may be raw (unbuffered) and write less than it is given, as stdout does under PYTHONUNBUFFERED. Raises
    `OSError`: as raised by the system; also if the pipe accepts nothing because it is non-blocking.
    """
    parts: list[Buffer] = [json.dumps(header).encode()]
    parts += scan_to_buffers(scan) if scan is not None else []
    first, rest = len(parts[0]), sum(len(part) for part in parts[1:])
    _write_all(pipe, first.to_bytes(_LENGTH_BYTES, "little") + rest.to_bytes(_LENGTH_BYTES, "little"))
    for part in parts:
        _write_all(pipe, part)
    pipe.flush()


def _write_all(pipe: IO[bytes], data: Buffer) -> None:
    rest = memoryview(data)
    while rest:
        num_written = pipe.write(rest[:PART_BYTES])
        if not num_written:  # None if a raw pipe would have to wait
            msg = f"the pipe took none of the {len(rest)} bytes that are left of a message"
            raise BlockingIOError(msg)
        rest = rest[num_written:]


def read_frame(pipe: IO[bytes]) -> tuple[dict[str, Any], ShardScan | None] | None:
    """Read the next message; None once the other side has ended, cleanly or not. A scan is read without copying."""
    try:
        first, rest = (int(length) for length in _read_array(pipe, 2, "<u8"))
        header = json.loads(_read_array(pipe, first, "u1").tobytes())
        return header, _read_scan(pipe) if rest else None
    except EOFError:
        return None


def _read_scan(pipe: IO[bytes]) -> ShardScan:
    (about_bytes,) = _read_array(pipe, 1, "<u8").tolist()
    about = json.loads(_read_array(pipe, about_bytes, "u1").tobytes())
    starts = _read_array(pipe, about["num_starts"], "<i8")
    return _scan(about, starts, _read_array(pipe, about["num_crcs"], "<u4"))


def _read_array(pipe: IO[bytes], count: int, kind: str) -> NDArray[Any]:
    """Read the next ``count`` numbers in place; EOFError if there are fewer."""
    numbers = np.empty(count, dtype=kind)
    rest = _bytes_of(numbers)
    while rest:
        num_read: int | None = pipe.readinto(rest)  # type: ignore[attr-defined]  # every binary file has it
        if not num_read:
            raise EOFError
        rest = rest[num_read:]
    return numbers


def scan_to_buffers(scan: ShardScan) -> list[Buffer]:
    """Return a scan as buffers to write one after another; the large ones are views of its arrays."""
    about = {
        "num_starts": len(scan.sample_starts),
        "num_crcs": len(scan.layout_crcs),
        "head": scan.head,
        "notes": scan.notes,
        "piece_samples": None if scan.piece_samples is None else scan.piece_samples.tolist(),
        "piece_decoded_bytes": None if scan.piece_decoded_bytes is None else scan.piece_decoded_bytes.tolist(),
        "piece_ends": None if scan.piece_ends is None else scan.piece_ends.tolist(),
    }
    text = json.dumps(about, default=dict).encode()
    starts = np.ascontiguousarray(scan.sample_starts, dtype="<i8")
    crcs = np.ascontiguousarray(scan.layout_crcs, dtype="<u4")
    return [len(text).to_bytes(_LENGTH_BYTES, "little"), text, _bytes_of(starts), _bytes_of(crcs)]


def _bytes_of(numbers: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, without a copy."""
    return numbers.data.cast("B") if len(numbers) else memoryview(b"")


def scan_from(data: memoryview) -> ShardScan:
    """Rebuild a scan from the bytes that `scan_to_buffers` returned."""
    text_end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    about = json.loads(bytes(data[_LENGTH_BYTES:text_end]))
    starts_end = text_end + 8 * about["num_starts"]
    starts = np.frombuffer(data[text_end:starts_end], dtype="<i8")
    return _scan(about, starts, np.frombuffer(data[starts_end:], dtype="<u4"))


def _scan(about: Mapping[str, Any], starts: NDArray[Any], crcs: NDArray[Any]) -> ShardScan:
    return ShardScan(
        sample_starts=starts.astype(np.int64, copy=False),
        layout_crcs=crcs.astype(np.uint32, copy=False),
        head=about["head"],
        notes=about["notes"],
        piece_samples=_whole_numbers(about["piece_samples"]),
        piece_decoded_bytes=_whole_numbers(about["piece_decoded_bytes"]),
        piece_ends=_whole_numbers(about.get("piece_ends")),
    )


def _whole_numbers(numbers: list[int] | None) -> NDArray[np.int64] | None:
    return None if numbers is None else np.array(numbers, dtype=np.int64)


def header_of_error(error: Exception, trace: str) -> dict[str, Any]:
    """Return an exception as JSON types; ``trace`` is its traceback, kept only for errors that are not shoal's."""
    if not isinstance(error, ShoalError):
        return {"kind": "bug", "what": f"{type(error).__name__}: {error}", "trace": trace}
    known = {name: value for name, value in vars(error).items() if isinstance(value, str | int | None)}
    return {"kind": "error", "type": type(error).__name__, "args": [str(arg) for arg in error.args], "known": known}


def error_of(header: Mapping[str, Any], *, shard: str) -> ShoalError:
    """Rebuild the exception that `header_of_error` described, with its type and attributes."""
    kind = getattr(errors, header["type"]) if header.get("type") in errors.__all__ else None
    if isinstance(kind, type) and issubclass(kind, ShoalError):
        error: ShoalError = kind.__new__(kind, *header["args"])
        error.args = tuple(header["args"])
        vars(error).update(header["known"])
        return error
    msg = f"{shard}: the scan of this shard failed: {header.get('what', header)}"
    failure = ShoalError(msg, hint="this is a bug of shoal, or of the format; please report it with what follows")
    failure.add_note(header.get("trace", ""))
    return failure
