"""Tables of videos: what PyAV's demuxer says of each packet, any frame from its group alone, and damaged files."""

from __future__ import annotations

import io
import itertools
import struct
import tempfile
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.robots import number_in, picture

from shoal.formats.decoding.video.boxes import VideoError
from shoal.formats.decoding.video.packet_decoder import PacketDecoder
from shoal.formats.decoding.video.video_table import VideoTable, read_table

av = pytest.importorskip("av")

KINDS: dict[str, dict[str, Any]] = {
    "h264 with B-frames": {"codec": "libx264", "options": {"g": "6", "bf": "2"}},
    "h264 with open groups": {
        "codec": "libx264",
        "options": {"x264-params": "open-gop=1:keyint=6:bframes=2:scenecut=0:b-adapt=0"},
    },
    "h264 at varying rates": {"codec": "libx264", "options": {"g": "5", "bf": "2"}, "varies": True},
    "h264 with the index first": {"codec": "libx264", "options": {"g": "6"}, "container": {"movflags": "faststart"}},
    "hevc with open groups": {
        "codec": "libx265",
        "options": {"x265-params": "keyint=6:min-keyint=6:bframes=2:open-gop=1:log-level=none:scenecut=0:pools=1"},
    },
    "av1": {"codec": "libsvtav1", "options": {"g": "4", "preset": "12", "svtav1-params": "lp=1"}},
    "mpeg4": {"codec": "mpeg4", "options": {"g": "4", "bf": "1"}},
    "vp9": {"codec": "libvpx-vp9", "options": {"g": "5", "deadline": "realtime"}},
}
NUM_FRAMES = 17


def written(
    codec: str, options: dict[str, str], *, varies: bool = False, container: dict[str, str] | None = None
) -> bytes:
    """A video whose frame n shows n."""
    if codec not in av.codecs_available:  # PyAV's wheels have more encoders from release to release
        pytest.skip(f"this PyAV has no {codec}")
    with tempfile.NamedTemporaryFile(suffix=".mp4") as target:  # to move the index, FFmpeg opens a file again
        _write(target.name, codec, options, varies=varies, container=container or {})
        return Path(target.name).read_bytes()


def _write(path: str, codec: str, options: dict[str, str], *, varies: bool, container: dict[str, str]) -> None:
    with av.open(path, "w", options=container) as file:
        track = file.add_stream(codec, rate=10, options=options)
        track.height, track.width, track.pix_fmt = 48, 64, "yuv420p"
        track.codec_context.thread_count = 1
        if varies:
            track.time_base = track.codec_context.time_base = Fraction(1, 1000)
        milliseconds = 0
        for number in range(NUM_FRAMES):
            frame = av.VideoFrame.from_ndarray(picture(number, 0), format="rgb24")
            if varies:
                frame.pts, frame.time_base = milliseconds, Fraction(1, 1000)
                milliseconds += 20 + number * 37 % 50
            file.mux(track.encode(frame))
        file.mux(track.encode())


def table_of(data: bytes) -> VideoTable:
    return read_table(lambda first, end: data[first:end], len(data))


def frames_of(data: bytes, table: VideoTable, packet: int) -> tuple[dict[int, Any], int]:
    """The frame of a packet, from the packets of its groups alone; and how many were decoded."""
    ((first, end),) = table.runs(np.array([packet]))
    positions, sizes, times = (column.tolist() for column in table.packets[:3])
    packets = [(times[each], data[positions[each] : positions[each] + sizes[each]]) for each in range(first, end)]
    return PacketDecoder(table).frames(packets, [times[packet]])


@pytest.mark.parametrize("kind", KINDS)
def test_packets_and_frames_are_those_of_pyav(kind: str) -> None:
    data = written(**KINDS[kind])
    table = table_of(data)
    with av.open(io.BytesIO(data)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        assert table.packets.positions.tolist() == [packet.pos for packet in packets]
        assert table.packets.sizes.tolist() == [packet.size for packet in packets]
        assert table.packets.times.tolist() == [packet.pts for packet in packets]
        assert table.packets.is_key.tolist() == [packet.is_keyframe for packet in packets]
    with av.open(io.BytesIO(data)) as container:
        whole = {frame.pts: frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)}
    assert table.packets.times[table.shown].tolist() == sorted(whole)
    for number, packet in enumerate(table.shown.tolist()):
        frames, num_decoded = frames_of(data, table, packet)
        assert num_decoded <= packet + 1 - table.first_packet(packet)
        (pixels,) = frames.values()
        assert number_in(pixels) == number
        assert np.array_equal(pixels, whole[int(table.packets.times[packet])])


def test_frames_shown_before_their_keyframe_need_the_group_before() -> None:
    table = table_of(written(**KINDS["h264 with open groups"]))
    times, keys = table.packets.times, table.keys
    leading = [p for p in range(len(times)) if times[p] < times[keys[np.searchsorted(keys, p, side="right") - 1]]]
    assert leading
    assert all(table.first_packet(p) < keys[np.searchsorted(keys, p, side="right") - 1] for p in leading)


@pytest.mark.parametrize("kind", ["h264 with open groups", "hevc with open groups", "h264 with B-frames", "av1"])
def test_any_frames_come_from_their_runs(kind: str) -> None:
    data = written(**KINDS[kind])
    table = table_of(data)
    positions, sizes, times = (column.tolist() for column in table.packets[:3])
    for first, second in itertools.combinations(range(NUM_FRAMES), 2):
        wanted = table.shown[[first, second]]
        runs = table.runs(wanted)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(runs))
        found: dict[int, Any] = {}
        for begin, end in runs:
            packets = [
                (times[each], data[positions[each] : positions[each] + sizes[each]]) for each in range(begin, end)
            ]
            found |= PacketDecoder(table).frames(packets, [times[each] for each in wanted if begin <= each < end])[0]
        assert [number_in(found[times[each]]) for each in wanted] == [first, second]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted by Linux")
def test_a_decoder_begins_no_threads() -> None:
    data = written(**KINDS["mpeg4"])
    table = table_of(data)
    decoder, tasks = PacketDecoder(table), Path("/proc/self/task")
    positions, sizes, times = (column.tolist() for column in table.packets[:3])
    group = [(times[each], data[positions[each] : positions[each] + sizes[each]]) for each in range(2)]
    before = {*tasks.iterdir()}
    frames, _ = decoder.frames(group, [times[0]])
    assert len(frames) == 1
    assert {*tasks.iterdir()} == before


def test_only_the_index_box_is_read() -> None:
    data = written("mpeg4", {"g": "4"})
    for place in ("begin", "end"):
        padding = 1 << 20
        moov = data.index(b"moov") - 4
        filler = (padding + 8).to_bytes(4, "big") + b"free" + bytes(padding)
        large = data[:moov] + filler + data[moov:] if place == "end" else data + filler
        read: list[int] = []

        def ranges(first: int, end: int, large: bytes = large, read: list[int] = read) -> bytes:
            read.append(end - first)
            return large[first:end]

        assert read_table(ranges, len(large)).to_bytes() == table_of(data).to_bytes()
        assert sum(read) < 64 << 10
        assert len(read) <= 3


def test_tables_are_stored_as_they_are() -> None:
    table = table_of(written(**KINDS["h264 at varying rates"]))
    again = VideoTable.from_bytes(table.to_bytes())
    assert again.to_bytes() == table.to_bytes()
    assert (again.codec, again.extradata, again.width, again.height) == ("h264", table.extradata, 64, 48)
    for one, other in zip(again.packets[:5], table.packets[:5], strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))
    assert again.packets.timescale == table.packets.timescale
    for damaged in (b"", table.to_bytes()[:-3], table.to_bytes()[:20], b"\0" * 50):
        with pytest.raises(ValueError, match=r"."):
            VideoTable.from_bytes(damaged)


def test_the_nearest_frame_is_chosen() -> None:
    table = table_of(written("mpeg4", {"g": "4"}))
    packets, distances = table.nearest(np.array([-1.0, 0.0, 0.049, 0.051, 1.6, 99.0]))
    assert np.array_equal(table.packets.times[packets] / table.packets.timescale, [0, 0, 0, 0.1, 1.6, 1.6])
    assert np.allclose(distances, [1, 0, 0.049, 0.049, 0, 97.4])


def edited(data: bytes, change: Callable[[bytearray], None]) -> bytes:
    changed = bytearray(data)
    change(changed)
    return bytes(changed)


def test_an_edit_list_moves_and_hides_frames() -> None:
    data = written("mpeg4", {"g": "4", "bf": "0"})
    at = data.index(b"elst") + 4
    duration, media = (int.from_bytes(data[at + first : at + first + 4], "big") for first in (8, 12))
    table = table_of(data)
    step = int(table.packets.times[1] - table.packets.times[0])

    def cut(changed: bytearray) -> None:
        changed[at + 8 : at + 12] = (duration * 4 // NUM_FRAMES).to_bytes(4, "big")
        changed[at + 12 : at + 16] = (media + 3 * step).to_bytes(4, "big")

    moved = table_of(edited(data, cut))
    assert moved.packets.times[moved.shown].tolist() == [0, step, 2 * step, 3 * step]
    assert moved.shown.tolist() == [3, 4, 5, 6]
    assert moved.first_packet(3) == 0
    with av.open(io.BytesIO(edited(data, cut))) as container:
        assert [frame.pts for frame in container.decode(video=0)][:4] == [0, step, 2 * step, 3 * step]


def test_an_edit_list_beyond_64_bits_is_refused() -> None:
    data = bytearray(written("mpeg4", {"g": "4", "bf": "0"}))
    edits = struct.pack(">II" + 2 * "Qqi", 1 << 24, 2, 1 << 63, -1, 1, 100, 0, 1)
    at = data.index(b"elst") + 4
    end = at - 8 + int.from_bytes(data[at - 8 : at - 4], "big")
    for kind in (b"elst", b"edts", b"trak", b"moov"):
        size = data.index(kind) - 4
        (num_bytes,) = struct.unpack_from(">I", data, size)
        struct.pack_into(">I", data, size, num_bytes + len(edits) - (end - at))
    data[at:end] = edits
    with pytest.raises(VideoError, match="edit list"):
        table_of(bytes(data))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: data[: data.index(b"moov")], "moov"),
        (lambda data: b"RIFF" + data, "no MP4"),
        (lambda data: b"", "no index box"),
        (lambda data: data.replace(b"mp4v", b"xxxx"), "codec 'xxxx'"),
        (lambda data: data.replace(b"vide", b"soun"), "no track of video"),
        (lambda data: data.replace(b"stsz", b"stsx"), "stsz"),
    ],
)
def test_errors_say_what_is_missing(change: Callable[[bytes], bytes], what: str) -> None:
    with pytest.raises(VideoError, match=what):
        table_of(change(written("mpeg4", {"g": "4"})))


def test_fragments_are_refused() -> None:
    fragmented = written("libx264", {"g": "4"}, container={"movflags": "frag_keyframe+empty_moov"})
    with pytest.raises(VideoError, match=r"ffmpeg -i old.mp4 -c copy new.mp4"):
        table_of(fragmented)


@cache
def sound() -> bytes:
    return written("libx264", {"g": "4", "bf": "2"})


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_index_boxes_give_tables_or_errors(drawn: st.DataObject) -> None:
    """No damage of the index box raises anything but `VideoError`, or allocates more than the file justifies."""
    data = bytearray(sound())
    first = data.index(b"moov") - 4
    for _ in range(drawn.draw(st.integers(1, 4))):
        at = drawn.draw(st.integers(first, len(data) - 1))
        data[at] = drawn.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1]))
    if drawn.draw(st.booleans()):
        del data[drawn.draw(st.integers(first, len(data))) :]
    try:
        table = table_of(bytes(data))
    except VideoError:
        return
    packets = table.packets
    assert len(packets.sizes) <= len(data)
    assert 0 <= packets.positions.min() <= (packets.positions + packets.sizes).max() <= len(data)
    assert len(table.runs(table.shown)) >= 1
