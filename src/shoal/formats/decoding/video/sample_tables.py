"""The tables of an MP4 track: position, size, time and kind of each packet, in the order of decoding.

Numbers in the tables are not trusted: counts are compared with the bytes of their table before anything is allocated.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.decoding.video.boxes import Box, VideoError, child, descendant

_MOST_PACKETS = 1 << 26
_MOST_EDITS = 2  # an empty one before the media
_MOST_UNITS = 1 << 60  # of time: sums of two fit 64 bits
_NO_MEDIA = -1


class Packets(NamedTuple):
    """The packets of a track in the order of decoding; all arrays have shape (num_packets,).

    Packet ``i`` is ``sizes[i]`` bytes of the file from ``positions[i]`` on (int64). ``times`` are presentation times
    (int64) in units of ``1 / timescale`` seconds. ``is_key`` is true where decoding can begin, ``is_shown`` false for
    frames that the edit list hides.
    """

    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    is_key: NDArray[np.bool_]
    is_shown: NDArray[np.bool_]
    timescale: int


def packets_of(data: bytes, track: Box, *, movie_timescale: int, num_bytes: int) -> Packets:
    """Return the packets of a track; raises `VideoError` if its tables are damaged or contradict each other.

    ``num_bytes`` is the size of the file, which limits the number of packets that a few bytes can claim.
    """
    media = descendant(data, track, b"mdia")
    timescale = _timescale(data, descendant(data, media, b"mdhd"))
    tables = descendant(data, media, b"minf", b"stbl")
    sizes = _sizes(data, tables, num_bytes)
    num_packets = len(sizes)
    positions = _positions(data, tables, sizes)
    decode_times = _decode_times(data, tables, num_packets)
    shifts = _shifts(data, tables, num_packets)
    is_key = _keys(data, tables, num_packets)
    times = decode_times + shifts
    times, is_shown = _edited(data, track, times, timescale, movie_timescale)
    return Packets(positions, sizes, times, is_key, is_shown, timescale)


def _timescale(data: bytes, header: Box) -> int:
    at = header.first + (20 if _version(data, header) == 1 else 12)
    timescale = int(_unpacked(data, header, ">I", at)[0])
    if timescale <= 0:
        raise VideoError("the timescale of the video is 0")
    return timescale


def movie_timescale(data: bytes, movie: Box) -> int:
    """Return the units per second of edit lists."""
    return _timescale(data, descendant(data, movie, b"mvhd"))


def _version(data: bytes, box: Box) -> int:
    return int(_unpacked(data, box, ">B", box.first)[0])


def _unpacked(data: bytes, box: Box, layout: str, at: int) -> tuple[int, ...]:
    if at < box.first or at + struct.calcsize(layout) > box.end:
        raise VideoError(f"the box {box.kind.decode('latin-1')!r} is cut short")
    return struct.unpack_from(layout, data, at)


def _rows(data: bytes, box: Box, layout: str, *, first: int = 4) -> NDArray[np.int64]:
    """Return the rows of a table of numbers; a count of rows comes before them. Shape (num_rows, num_columns)."""
    (num_rows,) = _unpacked(data, box, ">I", box.first + first)
    kind, columns = np.dtype(f">{layout[0]}"), len(layout)
    num_bytes = num_rows * columns * kind.itemsize
    begin = box.first + first + 4
    if begin + num_bytes > box.end:
        raise VideoError(f"the box {box.kind.decode('latin-1')!r} lists {num_rows} rows, but is too short for them")
    rows = np.frombuffer(data, kind, num_rows * columns, begin).reshape(num_rows, columns)
    return rows.astype(np.int64)


def _sizes(data: bytes, tables: Box, num_bytes: int) -> NDArray[np.int64]:
    box = descendant(data, tables, b"stsz")
    uniform, num_packets = _unpacked(data, box, ">II", box.first + 4)
    if not 0 < num_packets <= _MOST_PACKETS or num_packets * uniform > num_bytes:
        raise VideoError(f"the video claims {num_packets} packets in a file of {num_bytes} bytes")
    if uniform:
        return np.full(num_packets, uniform, dtype=np.int64)
    return _rows(data, box, "I", first=8)[:, 0]


def _positions(data: bytes, tables: Box, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first byte of each packet: packets of a chunk follow each other."""
    large = child(data, tables, b"co64")
    chunks = (_rows(data, large, "q") if large else _rows(data, descendant(data, tables, b"stco"), "I"))[:, 0]
    runs = _rows(data, descendant(data, tables, b"stsc"), "III")
    firsts = runs[:, 0] - 1
    is_sound = len(runs) > 0 and firsts[0] == 0 and bool((np.diff(firsts) > 0).all()) and firsts[-1] < len(chunks)
    if not is_sound or bool((runs[:, 1] <= 0).any()):
        raise VideoError("the table of chunks ('stsc') contradicts the positions of chunks")
    packets_in = np.repeat(runs[:, 1], np.diff(np.append(firsts, len(chunks))))
    if int(packets_in.sum()) != len(sizes):
        raise VideoError(f"the chunks have {int(packets_in.sum())} packets, but sizes are listed for {len(sizes)}")
    ends = np.cumsum(sizes)
    first_packets = np.cumsum(packets_in) - packets_in
    before = ends[first_packets] - sizes[first_packets]  # bytes of all packets before each chunk
    positions: NDArray[np.int64] = ends - sizes + np.repeat(chunks - before, packets_in)
    return positions


def _decode_times(data: bytes, tables: Box, num_packets: int) -> NDArray[np.int64]:
    rows = _rows(data, descendant(data, tables, b"stts"), "II")
    durations = _repeated(rows[:, 1], rows[:, 0], num_packets, "stts")
    return np.cumsum(durations) - durations


def _shifts(data: bytes, tables: Box, num_packets: int) -> NDArray[np.int64]:
    """Return the time from decoding to presentation of each packet: 0 without reordering."""
    box = child(data, tables, b"ctts")
    if box is None:
        return np.zeros(num_packets, dtype=np.int64)
    rows = _rows(data, box, "II")
    # Version 0 is unsigned by the standard, but writers stored negative shifts in it: players read it as signed.
    return _repeated(rows[:, 1].astype(np.int32).astype(np.int64), rows[:, 0], num_packets, "ctts")


def _repeated(values: NDArray[np.int64], counts: NDArray[np.int64], num_packets: int, name: str) -> NDArray[np.int64]:
    total = int(counts.sum())  # counts are 32 bits each: no sum of a table overflows
    if total != num_packets:
        raise VideoError(f"the table {name!r} has {total} packets, but sizes are listed for {num_packets}")
    return np.repeat(values, counts)


def _keys(data: bytes, tables: Box, num_packets: int) -> NDArray[np.bool_]:
    box = child(data, tables, b"stss")
    if box is None:
        return np.ones(num_packets, dtype=np.bool_)
    numbers = _rows(data, box, "I")[:, 0] - 1
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < num_packets:
        raise VideoError("the table of keyframes ('stss') names packets that are not there")
    is_key = np.zeros(num_packets, dtype=np.bool_)
    is_key[numbers] = True
    is_key[0] = True  # decoding begins at the first packet in any case
    return is_key


def _edited(
    data: bytes, track: Box, times: NDArray[np.int64], timescale: int, movie_timescale: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return presentation times after the edit list: time 0 is where the presentation begins."""
    edits = child(data, track, b"edts")
    box = child(data, edits, b"elst") if edits else None
    if box is None:
        return times, np.ones(len(times), dtype=np.bool_)
    version = _version(data, box)
    (num_edits,) = _unpacked(data, box, ">I", box.first + 4)
    layout = ">Qqi" if version == 1 else ">Iii"
    each = [
        _unpacked(data, box, layout, box.first + 8 + number * struct.calcsize(layout))
        for number in range(min(num_edits, _MOST_EDITS + 1))
    ]
    empty = [duration for duration, media, _ in each if media == _NO_MEDIA]
    shown = [(duration, media) for duration, media, _ in each if media != _NO_MEDIA]
    is_leading = bool(each) and all(media == _NO_MEDIA for _, media, _ in each[: len(empty)])
    if len(each) > _MOST_EDITS or len(shown) != 1 or not is_leading:
        raise VideoError(f"the video has an edit list of {num_edits} parts; shoal reads one part of media")
    ((duration, media),) = shown
    delay = sum(empty) * timescale // movie_timescale
    if max(delay, abs(media)) >= _MOST_UNITS:
        raise VideoError(f"the edit list begins at {media} and delays the video by {delay} units of time")
    is_shown = times >= media
    if duration:
        is_shown &= times < media + -(-duration * timescale // movie_timescale)
    return times - media + delay, is_shown
