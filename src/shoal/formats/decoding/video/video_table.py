"""The table of a video: the decoder that it needs, and the byte range and time of every packet.

With its table, any frame of a video is decoded from the bytes of its group of pictures alone. It is made from the index
box of the file, about 1% of the bytes, and stored as text and numbers, without pickles.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.decoding.video.boxes import Box, VideoError, boxes, child, descendant, index_box, refuse_fragments
from shoal.formats.decoding.video.sample_tables import Packets, movie_timescale, packets_of
from shoal.formats.shard_format import ReadBytes

_VERSION = 1
_CODECS = {
    b"avc1": ("h264", b"avcC"),
    b"avc3": ("h264", b"avcC"),
    b"hvc1": ("hevc", b"hvcC"),
    b"hev1": ("hevc", b"hvcC"),
    b"av01": ("av1", b"av1C"),
    b"vp09": ("vp9", b""),
    b"mp4v": ("mpeg4", b"esds"),
}
_DECODER_CONFIG, _DECODER_SPECIFIC = 4, 5  # tags of descriptors in an esds box
_VIDEO_ENTRY_BYTES = 78
_LIMIT_BYTES = 1 << 30


class VideoFile(NamedTuple):
    """A video of a dataset: its name below the root, its size, and any text that changes when it is written again."""

    name: str
    num_bytes: int
    version: str = ""


@dataclass(frozen=True)
class VideoTable:
    """The packets of a video, and its decoder.

    ``codec`` is FFmpeg's name of the codec, ``extradata`` its parameters outside of packets. ``colors`` are the
    numbers of primaries, transfer and matrix, and 1 for the full range, if the file has them.
    """

    codec: str
    extradata: bytes
    width: int
    height: int
    packets: Packets
    colors: tuple[int, ...] = ()

    @property
    def num_frames(self) -> int:
        """Number of shown frames."""
        return int(np.count_nonzero(self.packets.is_shown))

    @cached_property
    def shown(self) -> NDArray[np.int64]:
        """Packets of the shown frames, in the order of presentation."""
        shown = np.flatnonzero(self.packets.is_shown)
        ordered: NDArray[np.int64] = shown[np.argsort(self.packets.times[shown], kind="stable")]
        return ordered

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """Presentation times of `shown`, ascending."""
        return self.packets.times[self.shown] / self.packets.timescale

    @cached_property
    def keys(self) -> NDArray[np.int64]:
        """Packets of keyframes, where decoding can begin, ascending."""
        return np.flatnonzero(self.packets.is_key)

    def nearest(self, seconds: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the packet of the frame nearest to each time, and its distance in seconds; the earlier of two."""
        times = self.seconds
        after = np.clip(np.searchsorted(times, seconds), 1, max(1, len(times) - 1))
        before, after = after - 1, np.minimum(after, len(times) - 1)
        chosen = np.where(np.abs(times[after] - seconds) < np.abs(seconds - times[before]), after, before)
        return self.shown[chosen], np.abs(times[chosen] - seconds)

    def first_packet(self, packet: int) -> int:
        """Return the keyframe where decoding must begin to get the frame of a packet.

        A frame that is shown before its keyframe, but decoded after it (an open group), also needs the group before.
        """
        keys, times = self.keys, self.packets.times
        key = int(np.searchsorted(keys, packet, side="right")) - 1
        while key > 0 and times[keys[key]] > times[packet]:
            key -= 1
        return int(keys[max(key, 0)])

    def runs(self, packets: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return the ranges of packets to decode for the frames of some packets: the fewest bytes, in order.

        Each range begins at a keyframe, and ends behind the last needed packet of the group.
        """
        runs: list[tuple[int, int]] = []
        for packet in np.unique(packets).tolist():
            first, end = self.first_packet(packet), packet + 1
            while runs and first <= runs[-1][1]:  # a frame of an open group also needs the group before
                first_before, end_before = runs.pop()
                first, end = min(first, first_before), max(end, end_before)
            runs.append((first, end))
        return runs

    def to_bytes(self) -> bytes:
        """Return the table as bytes for `from_bytes`."""
        packets = self.packets
        head = {
            "version": _VERSION, "codec": self.codec, "extradata": base64.b64encode(self.extradata).decode(),
            "width": self.width, "height": self.height, "colors": list(self.colors),
            "timescale": packets.timescale, "num_packets": len(packets.sizes),
        }  # fmt: skip
        columns = (
            np.diff(packets.positions, prepend=0), packets.sizes, np.diff(packets.times, prepend=0),
            packets.is_key.astype(np.uint8), packets.is_shown.astype(np.uint8),
        )  # fmt: skip
        data = zlib.compress(b"".join(column.tobytes() for column in columns), 1)
        text = json.dumps(head).encode()
        return struct.pack("<II", len(text), zlib.crc32(data)) + text + data

    @classmethod
    def from_bytes(cls, data: bytes) -> VideoTable:
        """Return the table in bytes of `to_bytes`; raises `ValueError` if they are damaged or of another version."""
        try:
            num_text, crc = struct.unpack_from("<II", data)
            head: Mapping[str, Any] = json.loads(data[8 : 8 + num_text])
            body = data[8 + num_text :]
            if head["version"] != _VERSION or zlib.crc32(body) != crc:
                raise ValueError("another version, or damaged")
            num = int(head["num_packets"])
            raw = zlib.decompressobj().decompress(body, _LIMIT_BYTES)
            numbers = np.frombuffer(raw, np.int64, 3 * num).reshape(3, num)
            flags = np.frombuffer(raw, np.uint8, 2 * num, 3 * 8 * num).reshape(2, num).astype(np.bool_)
        except (LookupError, TypeError, struct.error, zlib.error) as error:
            raise ValueError(f"not the table of a video: {error}") from None
        packets = Packets(
            np.cumsum(numbers[0]), numbers[1].copy(), np.cumsum(numbers[2]), flags[0], flags[1], int(head["timescale"])
        )
        extradata = base64.b64decode(head["extradata"])
        return cls(head["codec"], extradata, head["width"], head["height"], packets, tuple(head["colors"]))


def read_table(read: ReadBytes, num_bytes: int) -> VideoTable:
    """Make the table of an MP4 file from its index box.

    Raises `VideoError`: the file is no MP4 or damaged, or has a codec or a feature that shoal does not read.
    """
    data = index_box(read, num_bytes)
    movie = Box(b"moov", 0, len(data))
    refuse_fragments(data, movie)
    track = _video_track(data, movie)
    entry = _sample_entry(data, track)
    packets = packets_of(data, track, movie_timescale=movie_timescale(data, movie), num_bytes=num_bytes)
    ends = packets.positions + packets.sizes
    if int(packets.positions.min()) < 0 or int(packets.sizes.min()) < 0 or int(ends.max()) > num_bytes:
        msg = f"packets reach to byte {int(ends.max())}, but the file has {num_bytes} bytes: it is cut short or damaged"
        raise VideoError(msg, int(packets.positions[int(ends.argmax())]))
    if not packets.is_shown.any():
        raise VideoError("the edit list hides every frame")
    return _table(data, entry, packets)


def _video_track(data: bytes, movie: Box) -> Box:
    for box in boxes(data, movie.first, movie.end):
        if box.kind == b"trak":
            handler = descendant(data, box, b"mdia", b"hdlr")
            if data[handler.first + 8 : handler.first + 12] == b"vide":
                return box
    raise VideoError("the file has no track of video")


def _sample_entry(data: bytes, track: Box) -> Box:
    table = descendant(data, track, b"mdia", b"minf", b"stbl", b"stsd")
    entries = list(boxes(data, min(table.first + 8, table.end), table.end))
    if len(entries) != 1:
        raise VideoError(f"the video has {len(entries)} descriptions of its codec; shoal reads one")
    return entries[0]


def _table(data: bytes, entry: Box, packets: Packets) -> VideoTable:
    name = entry.kind.decode("latin-1")
    if entry.kind not in _CODECS:
        known = ", ".join(sorted({codec for codec, _ in _CODECS.values()}))
        raise VideoError(f"the video has the codec {name!r}; shoal reads {known}")
    codec, kind = _CODECS[entry.kind]
    if entry.end - entry.first < _VIDEO_ENTRY_BYTES:
        raise VideoError(f"the description {name!r} is cut short")
    width, height = struct.unpack_from(">HH", data, entry.first + 24)
    inside = Box(entry.kind, entry.first + _VIDEO_ENTRY_BYTES, entry.end)
    extradata = b""
    if kind:
        box = child(data, inside, kind)
        if box is None:
            raise VideoError(f"the description {name!r} has no {kind.decode()!r}")
        extradata = data[box.first : box.end] if kind != b"esds" else _decoder_specific(data[box.first + 4 : box.end])
    colors: tuple[int, ...] = ()
    color = child(data, inside, b"colr")
    if color and data[color.first : color.first + 4] == b"nclx" and color.end - color.first >= 11:
        numbers = struct.unpack_from(">HHHB", data, color.first + 4)
        colors = (*numbers[:3], numbers[3] >> 7)
    return VideoTable(codec, extradata, width, height, packets, colors)


def _decoder_specific(data: bytes) -> bytes:
    """Return the parameters of an MPEG-4 decoder, from the descriptors of an esds box."""
    first, end = 0, len(data)
    while first + 2 <= end:
        tag, first = data[first], first + 1
        size = 0
        for _ in range(4):
            if first >= end:
                break
            size, more = size << 7 | data[first] & 0x7F, data[first] & 0x80
            first += 1
            if not more:
                break
        if tag == _DECODER_SPECIFIC:
            return data[first : first + size]
        first += {3: 3, _DECODER_CONFIG: 13}.get(tag, size)  # their content has descriptors after some bytes
    return b""
