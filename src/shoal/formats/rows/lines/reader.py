"""Shards of one sample a line, in UTF-8: JSON Lines, and plain text; and of JSON that is one array.

Lines end with a newline (a carriage return before it is white space to JSON). Lines of only white space belong to no
sample. The last line needs no newline, and a byte order mark at the start is skipped.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.decoding.json_text import json_parser, strict_parser
from shoal.formats.rows.lines.json_array import ARRAY_HEAD, ElementScan, element_borders, scan_elements
from shoal.formats.rows.lines.line_borders import WHITE, LineScan, front_bytes, line_records, scan_lines, windows_of
from shoal.formats.rows.records import BadRecordError, CutRecords, cut_together
from shoal.formats.shard_format import About, BorderSink, Content, Format, Sample, Span
from shoal.index.shard_scan import Buffer

_FRONT_BYTES = 4096
_LINE_LIMIT_BYTES = 1 << 30


class JsonLines(Format):
    """The format of one JSON value a line, or of one JSON array.

    A sample is the object on its line, or an element of the array; any other JSON value gives ``{"json": value}``.
    ``NaN`` and ``Infinity`` are accepted, as in Python's `json`. A scan reads ``window_bytes`` at a time; its memory
    does not grow with the length of a line. A line or an element longer than ``line_limit_bytes`` is refused.

    A shard is an array if an array begins on its first line. In ``.jsonl`` and ``.ndjson`` files, an array that ends on
    its first line is a line instead.

    Examples
    --------
    >>> shoal.open("web", format=shoal.formats.JsonLines(line_limit_bytes=1 << 30))[7]
    {'text': 'web 7'}
    """

    name: str = "jsonl"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson")
    scan_rule = 2

    def __init__(self, *, window_bytes: int = 1 << 20, line_limit_bytes: int = _LINE_LIMIT_BYTES) -> None:
        self.window_bytes, self.line_limit_bytes = window_bytes, line_limit_bytes

    def scan_forward(self, content: Content, borders: BorderSink, *, shard: str) -> About:
        """Find the lines of a shard by reading all of it; the layout CRC of a sample is the CRC-32 of its bytes.

        Memory: some windows, and 12 bytes a sample. ``notes`` count ``blank_lines``. Raises `ShardError`: a line is
        longer than ``line_limit_bytes``, or an array does not end, or not with the shard.
        """
        lines = LineScan(shard, self.line_limit_bytes)
        position, front = front_bytes(content), bytes(content.read(0, _FRONT_BYTES))
        line, newline, _ = front[position:].lstrip().partition(b"\n")
        line = line.strip()
        if newline and line == b"{":
            msg = "this is one JSON object over several lines, not one value per line"
            raise ShardError(
                msg, shard=shard, byte=0, hint="write it with a value on each line: jq -c . FILE > FILE.jsonl"
            )
        if not line.startswith(b"["):
            return scan_lines(content, borders, lines, window_bytes=self.window_bytes)
        has_lines = any(suffix in shard.lower().rpartition("/")[2] for suffix in self.suffixes)
        if has_lines and not (newline and (line == b"[" or line.endswith(b","))):
            return scan_lines(content, borders, lines, window_bytes=self.window_bytes)
        elements = ElementScan(shard, self.line_limit_bytes, position=position)
        return scan_elements(windows_of(content, position, self.window_bytes), borders, elements)

    def parse(self, buffer: Buffer, span: Span) -> CutRecords:
        """Open the bytes of consecutive lines or elements; each is parsed when its sample is requested.

        Raises `ShardError`: the bytes are not cut at line ends or commas, or hold another number of samples than the
        index says.
        """
        if not ARRAY_HEAD.keys() <= span.head.keys():
            return line_records(buffer, span, LineScan(span.shard, self.line_limit_bytes), _decode_json, _CUT_JSON)
        starts, view = element_borders(buffer, span), memoryview(buffer)

        def crcs() -> NDArray[np.uint32]:
            return np.array([crc32(view[start:end]) for start, end in pairwise(starts)], dtype=np.uint32)

        return CutRecords(buffer, starts, span, decode=_decode_element, crcs=crcs, cut=_CUT_ELEMENTS)


def _value(data: bytes) -> Any:
    return json.loads(data.decode("utf-8").strip(WHITE))


def _decode_json(data: bytes, what: str = "line") -> Sample:
    """Return the fields of the object on a line."""
    try:
        value = json_parser(_value)(data)
    except UnicodeDecodeError as error:
        wrong, byte = f"is not UTF-8: {error.reason}", error.start
    except json.JSONDecodeError as error:
        text = data.decode("utf-8")
        num_characters = len(text) - len(text.lstrip(WHITE)) + error.pos
        wrong, byte = f"is not JSON: {error.msg}", len(text[:num_characters].encode())
    except (ValueError, RecursionError) as error:
        wrong, byte = f"holds JSON that Python cannot read: {error}", 0
    else:
        return value if isinstance(value, dict) else {"json": value}
    raise BadRecordError(f"this {what} {wrong}", byte=byte, hint=f"correct the {what}, or remove it from the shard")


def _decode_lines(lines: list[bytes]) -> list[Sample]:
    """Return the fields of the objects on lines; any error if one is unusual."""
    strict = strict_parser()
    if strict is None:
        return [*map(_decode_json, lines)]
    return [value if isinstance(value, dict) else {"json": value} for value in map(strict[0], lines)]


def _decode_element(data: bytes) -> Sample:
    """Return the fields of an object in an array; a comma may come before the object."""
    comma = len(data) - len(data.removeprefix(b","))
    try:
        return _decode_json(data[comma:], "element")
    except BadRecordError as error:
        error.byte += comma
        raise


_CUT_JSON = cut_together(_decode_json, _decode_lines)
_CUT_ELEMENTS = cut_together(_decode_element)


class Text(Format):
    """The format of one line of UTF-8 per sample: ``{"text": line}``, without the line end.

    Examples
    --------
    >>> shoal.open("pets.csv", format=shoal.formats.Text())[1]
    {'text': 'Tom;3'}
    """

    name: str = "text"
    suffixes: tuple[str, ...] = (".txt", ".text")

    def __init__(self, *, window_bytes: int = 1 << 20) -> None:
        self.window_bytes = window_bytes

    def scan_forward(self, content: Content, borders: BorderSink, *, shard: str) -> About:
        """Find the lines by reading all; the layout CRC is the CRC-32 of a line. ``notes`` count ``blank_lines``."""
        return scan_lines(content, borders, LineScan(shard, _LINE_LIMIT_BYTES), window_bytes=self.window_bytes)

    def parse(self, buffer: Buffer, span: Span) -> CutRecords:
        """Open the bytes of consecutive lines; raises `ShardError` if they are not cut at line ends."""
        return line_records(buffer, span, LineScan(span.shard, _LINE_LIMIT_BYTES), _decode_text, _CUT_TEXT)


def _decode_text(data: bytes) -> Sample:
    # Blank lines before it are part of its bytes; its own leading spaces stay.
    begin = data.rfind(b"\n", 0, len(data) - 1) + 1
    try:
        return {"text": data[begin:].decode("utf-8").rstrip("\r\n")}
    except UnicodeDecodeError as error:
        msg = f"this line is not UTF-8: {error.reason}"
        hint = "convert the shard to UTF-8, or correct the line"
        raise BadRecordError(msg, byte=begin + error.start, hint=hint) from None


_CUT_TEXT = cut_together(_decode_text)
