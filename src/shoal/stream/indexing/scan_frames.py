"""Scans as bytes, for the pipe to a worker and for the disk: JSON and raw columns, nothing that could run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from shoal import errors
from shoal.errors import ShoalError
from shoal.shards.protocol import Buffer, ShardScan

__all__ = ["error_of", "header_of_error", "read_frame", "scan_from", "scan_to_buffers", "write_frame"]

_LENGTH_BYTES = 8


def write_frame(pipe: IO[bytes], header: Mapping[str, Any], scan: ShardScan | None = None) -> None:
    """Send one message: a header of JSON types and, with it, a scan."""
    parts: list[Buffer] = [json.dumps(header).encode()]
    parts += scan_to_buffers(scan) if scan is not None else []
    first, rest = len(parts[0]), sum(len(part) for part in parts[1:])
    pipe.write(first.to_bytes(_LENGTH_BYTES, "little") + rest.to_bytes(_LENGTH_BYTES, "little"))
    for part in parts:
        pipe.write(part)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> tuple[dict[str, Any], ShardScan | None] | None:
    """The next message, or None when the other side has ended, in order or not."""
    lengths = pipe.read(2 * _LENGTH_BYTES)
    first = int.from_bytes(lengths[:_LENGTH_BYTES], "little")
    rest = int.from_bytes(lengths[_LENGTH_BYTES:], "little")
    header, body = pipe.read(first), pipe.read(rest)
    if len(lengths) < 2 * _LENGTH_BYTES or len(header) < first or len(body) < rest:
        return None
    return json.loads(header), scan_from(memoryview(body)) if rest else None


def scan_to_buffers(scan: ShardScan) -> list[Buffer]:
    """A scan as buffers to be written one after another."""
    about = {
        "num_starts": len(scan.sample_starts),
        "head": scan.head,
        "notes": scan.notes,
        "piece_samples": None if scan.piece_samples is None else scan.piece_samples.tolist(),
        "piece_decoded_bytes": None if scan.piece_decoded_bytes is None else scan.piece_decoded_bytes.tolist(),
        "piece_ends": None if scan.piece_ends is None else scan.piece_ends.tolist(),
    }
    text = json.dumps(about, default=dict).encode()
    starts = np.ascontiguousarray(scan.sample_starts, dtype="<i8")
    crcs = np.ascontiguousarray(scan.layout_crcs, dtype="<u4")
    return [len(text).to_bytes(_LENGTH_BYTES, "little"), text, starts.tobytes(), crcs.tobytes()]


def scan_from(data: memoryview) -> ShardScan:
    """The scan that `scan_to_buffers` gave."""
    text_end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    about = json.loads(bytes(data[_LENGTH_BYTES:text_end]))
    starts_end = text_end + 8 * about["num_starts"]
    return ShardScan(
        sample_starts=np.frombuffer(data[text_end:starts_end], dtype="<i8").astype(np.int64),
        layout_crcs=np.frombuffer(data[starts_end:], dtype="<u4").astype(np.uint32),
        head=about["head"],
        notes=about["notes"],
        piece_samples=_whole_numbers(about["piece_samples"]),
        piece_decoded_bytes=_whole_numbers(about["piece_decoded_bytes"]),
        piece_ends=_whole_numbers(about.get("piece_ends")),
    )


def _whole_numbers(numbers: list[int] | None) -> NDArray[np.int64] | None:
    return None if numbers is None else np.array(numbers, dtype=np.int64)


def header_of_error(error: Exception, trace: str) -> dict[str, Any]:
    """An exception as JSON types; ``trace`` is its traceback, which only errors that are not ours need."""
    if not isinstance(error, ShoalError):
        return {"kind": "bug", "what": f"{type(error).__name__}: {error}", "trace": trace}
    known = {name: value for name, value in vars(error).items() if isinstance(value, str | int | None)}
    return {"kind": "error", "type": type(error).__name__, "args": [str(arg) for arg in error.args], "known": known}


def error_of(header: Mapping[str, Any], *, shard: str) -> ShoalError:
    """The exception that `header_of_error` described, of the same type and knowing the same."""
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
