"""Boxes of MP4 files: the index box (``moov``) is found and read without the media data."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from shoal.formats.shard_format import ReadBytes

_AT_ONCE_BYTES = 16 << 10  # of the file's begin, and behind the media data: small index boxes fit
_LIMIT_BYTES = 256 << 20  # of an index box: about ten million frames
_MOST_BOXES = 4096
_BY_ITS_END, _LARGE = 0, 1  # sizes with a meaning
_FRAGMENTS = (b"moof", b"sidx")


class VideoError(ValueError):
    """A video that is damaged, or has a feature that shoal does not read; ``byte`` is its place in the file."""

    def __init__(self, msg: str, byte: int | None = None) -> None:
        super().__init__(msg)
        self.byte = byte


class Box(NamedTuple):
    """A box in a buffer: its type, and where its content begins and ends."""

    kind: bytes
    first: int
    end: int


def boxes(data: bytes, first: int = 0, end: int | None = None) -> Iterator[Box]:
    """Yield the boxes that follow each other in a range of a buffer; raises `VideoError` if one exceeds the range."""
    end = len(data) if end is None else end
    for _ in range(_MOST_BOXES):
        if first >= end:
            return
        kind, begin, next_first = _header(data, first, end, first)
        if next_first > end:
            msg = f"a box {kind!r} claims {next_first - first} bytes, but {end - first} are left"
            raise VideoError(msg)
        yield Box(kind, begin, next_first)
        first = next_first
    raise VideoError(f"more than {_MOST_BOXES} boxes in a row")


def child(data: bytes, parent: Box, kind: bytes) -> Box | None:
    """Return the first box of a type in another box."""
    return next((box for box in boxes(data, parent.first, parent.end) if box.kind == kind), None)


def descendant(data: bytes, parent: Box, *kinds: bytes) -> Box:
    """Return the box on a path of types; raises `VideoError` if it is missing."""
    for kind in kinds:
        inside = child(data, parent, kind)
        if inside is None:
            raise VideoError(f"the index box has no {kind.decode('latin-1')!r} in {parent.kind.decode('latin-1')!r}")
        parent = inside
    return parent


def index_box(read: ReadBytes, num_bytes: int) -> bytes:
    """Read the content of the index box of an MP4 file: the headers of the boxes before it, and the box.

    Raises `VideoError`: the file is not MP4, is cut short, or has fragments.
    """
    first, held, held_first = 0, b"", 0
    for _ in range(_MOST_BOXES):
        if first + 8 > num_bytes:
            break
        if not held_first <= first <= first + 16 <= held_first + len(held):
            held, held_first = bytes(read(first, min(first + _AT_ONCE_BYTES, num_bytes))), first
        kind, begin, end = _header(held, first - held_first, num_bytes - held_first, first)
        begin, end = begin + held_first, end + held_first
        if first == 0 and kind not in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"):
            raise VideoError(f"this is no MP4 file: it begins with {held[:8]!r}", 0)
        if kind in _FRAGMENTS:
            raise _fragmented()
        if end > num_bytes:
            name = kind.decode("latin-1")
            raise VideoError(f"the box {name!r} ends at byte {end}, but the file has {num_bytes} bytes", first)
        if kind == b"moov":
            if end - begin > _LIMIT_BYTES:
                raise VideoError(
                    f"the index box has {end - begin} bytes, and shoal reads at most {_LIMIT_BYTES}", first
                )
            is_held = end <= held_first + len(held)
            return held[begin - held_first : end - held_first] if is_held else bytes(read(begin, end))
        first = end
    raise VideoError("there is no index box ('moov'): the recording was not finished, or the file is cut short", first)


def _fragmented() -> VideoError:
    return VideoError("the video is fragmented; write it in one piece: ffmpeg -i old.mp4 -c copy new.mp4")


def refuse_fragments(data: bytes, movie: Box) -> None:
    """Raise `VideoError` if the index box says that packets are listed in fragments behind it."""
    if child(data, movie, b"mvex") is not None:
        raise _fragmented()


def _header(data: bytes, first: int, limit: int, byte: int) -> tuple[bytes, int, int]:
    """Return the type of a box, and where its content begins and ends; positions are in the buffer."""
    if first + 8 > len(data):
        raise VideoError(f"a box header is cut short: {data[first:]!r}", byte)
    size, kind = struct.unpack_from(">I4s", data, first)
    begin = first + 8
    if size == _LARGE:
        if first + 16 > len(data):
            raise VideoError(f"a box header is cut short: {data[first:]!r}", byte)
        (size,) = struct.unpack_from(">Q", data, begin)
        begin += 8
    elif size == _BY_ITS_END:
        size = limit - first
    if size < begin - first:
        raise VideoError(f"a box {kind!r} has an impossible size: {size}", byte)
    return kind, begin, first + size
