"""Plain text shards: each line that is not blank is a sample."""

from __future__ import annotations

from shoal.formats.forward_scan import About, Content, FoundSamples, forward_scan
from shoal.formats.lines.line_borders import LineScan, line_records, scan_lines
from shoal.formats.records import BadRecordError, CutRecords
from shoal.formats.shard_format import ReadBytes, Sample, Span
from shoal.index.shard_scan import Buffer, ShardScan

_LINE_LIMIT_BYTES = 1 << 30


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
        return line_records(buffer, span, LineScan(span.shard, _LINE_LIMIT_BYTES), _decode)


def _decode(data: bytes) -> Sample:
    # Blank lines before it are part of its bytes; its own leading spaces stay.
    begin = data.rfind(b"\n", 0, len(data) - 1) + 1
    try:
        return {"text": data[begin:].decode("utf-8").rstrip("\r\n")}
    except UnicodeDecodeError as error:
        msg = f"this line is not UTF-8: {error.reason}"
        hint = "convert the shard to UTF-8, or correct the line"
        raise BadRecordError(msg, byte=begin + error.start, hint=hint) from None
