"""Shards of one sample a line, in UTF-8: JSON Lines, and plain text.

Lines end with a newline (a carriage return before it is white space to JSON). Lines of only white space belong to no
sample. The last line needs no newline, and a byte order mark at the start is skipped.
"""

from __future__ import annotations

import json
from typing import Any

from shoal.errors import ShardError
from shoal.formats.decoding.json_text import json_parser
from shoal.formats.forward_scan import About, Content, FoundSamples, forward_scan
from shoal.formats.lines.line_borders import BOM, WHITE, LineScan, line_records, scan_lines
from shoal.formats.records import BadRecordError, CutRecords
from shoal.formats.shard_format import ReadBytes, Sample, Span
from shoal.index.shard_scan import Buffer, ShardScan

_FRONT_BYTES = 4096
_LINE_LIMIT_BYTES = 1 << 30


class JsonLines:
    """The format of one JSON value a line.

    A sample is the object of its line; a line with another JSON value gives ``{"json": value}``. ``NaN`` and
    ``Infinity`` are accepted, as in Python's `json`. A scan reads ``window_bytes`` at a time and keeps none of them, so
    its memory does not grow with the length of a line; a line longer than ``line_limit_bytes`` is refused.
    """

    name: str = "jsonl"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson")

    def __init__(self, *, window_bytes: int = 1 << 20, line_limit_bytes: int = _LINE_LIMIT_BYTES) -> None:
        self.window_bytes, self.line_limit_bytes = window_bytes, line_limit_bytes

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the lines of a shard by reading all of it; the layout CRC of a sample is the CRC-32 of its bytes.

        Memory: some windows, and 12 bytes a sample. ``notes`` count ``blank_lines``. Raises `ShardError`: a line is
        longer than ``line_limit_bytes``.
        """
        return forward_scan(self, read, num_bytes, shard=shard)

    def scan_forward(self, content: Content, found: FoundSamples, *, shard: str) -> About:
        """Scan content whose size is not known yet; see `scan`."""
        _refuse_one_value(bytes(content.read(0, _FRONT_BYTES)), shard)
        return scan_lines(content, found, LineScan(shard, self.line_limit_bytes), window_bytes=self.window_bytes)

    def parse(self, buffer: Buffer, span: Span) -> CutRecords:
        """Open the bytes of consecutive lines; a line is parsed when its sample is requested.

        Raises `ShardError`: the bytes are not cut at line ends, or hold another number of lines than the index says.
        """
        return line_records(buffer, span, LineScan(span.shard, self.line_limit_bytes), _decode_json)


def _refuse_one_value(front: bytes, shard: str) -> None:
    """Raise for a document of one value over several lines, whose first line alone is not JSON."""
    line, newline, _ = front.removeprefix(BOM).lstrip().partition(b"\n")
    line = line.strip()
    is_list = line == b"[" or (line.startswith(b"[") and line.endswith(b","))
    if newline and (is_list or line == b"{"):
        what, query = ("array", "'.[]'") if is_list else ("object", ".")
        msg = f"this is one JSON {what} over several lines, and no value on each line"
        hint = f"write it with a value on each line: jq -c {query} FILE > FILE.jsonl"
        raise ShardError(msg, shard=shard, byte=0, hint=hint)


def _value(data: bytes) -> Any:
    return json.loads(data.decode("utf-8").strip(WHITE))


def _decode_json(data: bytes) -> Sample:
    """Return the fields of the object on a line."""
    try:
        value = json_parser(_value)(data)
    except UnicodeDecodeError as error:
        what, byte = f"is not UTF-8: {error.reason}", error.start
    except json.JSONDecodeError as error:
        text = data.decode("utf-8")
        num_characters = len(text) - len(text.lstrip(WHITE)) + error.pos
        what, byte = f"is not JSON: {error.msg}", len(text[:num_characters].encode())
    except (ValueError, RecursionError) as error:
        what, byte = f"holds JSON that Python cannot read: {error}", 0
    else:
        return value if isinstance(value, dict) else {"json": value}
    msg = f"this line {what}"
    raise BadRecordError(msg, byte=byte, hint="correct the line, or take it out of the shard")


class Text:
    """The format of one line of UTF-8 per sample: ``{"text": line}``, without the line end."""

    name: str = "text"
    suffixes: tuple[str, ...] = (".txt", ".text")

    def __init__(self, *, window_bytes: int = 1 << 20) -> None:
        self.window_bytes = window_bytes

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the lines by reading all; the layout CRC is the CRC-32 of a line. ``notes`` count ``blank_lines``."""
        return forward_scan(self, read, num_bytes, shard=shard)

    def scan_forward(self, content: Content, found: FoundSamples, *, shard: str) -> About:
        """Scan content whose size is not known yet; see `scan`."""
        return scan_lines(content, found, LineScan(shard, _LINE_LIMIT_BYTES), window_bytes=self.window_bytes)

    def parse(self, buffer: Buffer, span: Span) -> CutRecords:
        """Open the bytes of consecutive lines; raises `ShardError` if they are not cut at line ends."""
        return line_records(buffer, span, LineScan(span.shard, _LINE_LIMIT_BYTES), _decode_text)


def _decode_text(data: bytes) -> Sample:
    # Blank lines before it are part of its bytes; its own leading spaces stay.
    begin = data.rfind(b"\n", 0, len(data) - 1) + 1
    try:
        return {"text": data[begin:].decode("utf-8").rstrip("\r\n")}
    except UnicodeDecodeError as error:
        msg = f"this line is not UTF-8: {error.reason}"
        hint = "convert the shard to UTF-8, or correct the line"
        raise BadRecordError(msg, byte=begin + error.start, hint=hint) from None
