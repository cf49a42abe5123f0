"""Frames of videos: which bytes are read for them, how many are kept, and what is said of damage."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.robots import FPS, number_in, picture, write_video

from shoal.errors import ShardError, StorageError
from shoal.formats.decoding.video.video_table import VideoFile, VideoTable
from shoal.reading.videos.frame_reader import FrameReader
from shoal.reading.videos.group_bytes import GroupBytes, groups_of
from shoal.reading.videos.video_tables import VideoFiles, VideoTables
from shoal.stats.counters import Counters
from shoal.storage.files.local_store import LocalStore

pytest.importorskip("av")

NUM_FRAMES = 40


class Recording(LocalStore):
    """A store that records the ranges that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[tuple[int, int]] = []

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        self.ranges.append((first_byte, end_byte))
        return super().read_range(path, first_byte, end_byte)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("videos") / "a.mp4"
    write_video(path, [picture(n, 0) for n in range(NUM_FRAMES)], codec="libx264", options={"g": "6", "bf": "2"})
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


def files_of(path: Path) -> VideoFiles:
    return VideoFiles(Recording(), str(path.parent), (VideoFile(path.name, path.stat().st_size, "1"),))


def reader_of(path: Path, *, keep_bytes: int = 1 << 20, tolerance: float = 1e-4) -> tuple[FrameReader, Counters]:
    videos, counters = files_of(path), Counters()
    videos.make_tables()
    recording(videos).ranges.clear()
    return FrameReader(videos, counters, tolerance_seconds=tolerance, keep_bytes=keep_bytes), counters


def recording(videos: VideoFiles) -> Recording:
    assert isinstance(videos.store, Recording)
    return videos.store


def needed_bytes(table: VideoTable, numbers: list[int]) -> int:
    """Bytes of the groups of some frames, each up to the last needed packet."""
    packets, _ = table.nearest(np.array(numbers) / FPS)
    needed = {each for packet in packets.tolist() for each in range(table.first_packet(packet), packet + 1)}
    return int(table.packets.sizes[sorted(needed)].sum())


def test_frames_come_by_their_times(video: Path) -> None:
    reader, counters = reader_of(video)
    frames = reader.frames(0, np.array([7, 3, 7, 0, 39]) / FPS)
    assert frames.shape == (5, 48, 64, 3)
    assert [number_in(frame) for frame in frames] == [7, 3, 7, 0, 39]
    assert counters.num_frames == 5
    table = VideoTables(reader.videos)[0]
    packets = np.unique(table.nearest(np.array([7, 3, 0, 39]) / FPS)[0])
    assert counters.num_decoded_frames == sum(end - first for first, end in table.runs(packets))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, NUM_FRAMES - 1), min_size=1, max_size=6), min_size=1, max_size=8))
def test_no_byte_is_read_but_those_of_needed_packets_and_none_twice(video: Path, calls: list[list[int]]) -> None:
    reader, counters = reader_of(video)
    table = VideoTables(reader.videos)[0]
    for numbers in calls:
        frames = reader.frames(0, np.array(numbers) / FPS)
        assert [number_in(frame) for frame in frames] == numbers
    ranges = recording(reader.videos).ranges
    total = sum(end - first for first, end in ranges)
    assert total == counters.video_bytes == needed_bytes(table, list(itertools.chain(*calls)))
    assert len(ranges) == counters.num_video_reads
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(sorted(ranges)))
    assert total + counters.served_video_bytes == sum(needed_bytes(table, numbers) for numbers in calls)


def test_neighbouring_groups_are_one_request(video: Path) -> None:
    reader, counters = reader_of(video)
    reader.frames(0, np.arange(NUM_FRAMES) / FPS)
    assert counters.num_video_reads == 1
    assert counters.num_decoded_frames == NUM_FRAMES


@pytest.mark.parametrize("keep_bytes", [1, 3000, 1 << 20])
def test_kept_bytes_are_bounded(video: Path, keep_bytes: int) -> None:
    reader, counters = reader_of(video, keep_bytes=keep_bytes)
    table = VideoTables(reader.videos)[0]
    for number in [*range(NUM_FRAMES), *range(0, NUM_FRAMES, 7)]:
        reader.frames(0, np.array([number]) / FPS)
        assert reader.groups.held_bytes <= keep_bytes
    largest = max(int(table.packets.sizes[first:end].sum()) for first, end in groups_of(table, (0, NUM_FRAMES)))
    assert counters.peak_video_bytes <= keep_bytes + largest
    is_all_kept = keep_bytes > table.packets.sizes.sum()
    assert (counters.video_bytes == table.packets.sizes.sum()) == is_all_kept


def test_threads_read_a_group_once(video: Path) -> None:
    reader, counters = reader_of(video)
    with ThreadPoolExecutor(8) as pool:
        frames = list(
            pool.map(lambda number: reader.frames(0, np.array([number, number - 3]) / FPS), [11, 9, 10, 11] * 8)
        )
    assert [number_in(frame[0]) for frame in frames] == [11, 9, 10, 11] * 8
    assert counters.video_bytes == needed_bytes(VideoTables(reader.videos)[0], [6, 7, 8, 9, 10, 11])
    assert reader.groups.held_bytes == counters.video_bytes


def test_a_group_that_failed_is_read_again() -> None:
    table_bytes = [b"a" * 10, b"b" * 5]
    from shoal.formats.decoding.video.sample_tables import Packets

    packets = Packets(
        np.array([0, 10]), np.array([10, 5]), np.array([0, 1]), np.array([True, False]), np.ones(2, dtype=np.bool_), 10
    )
    table, groups = VideoTable("h264", b"", 2, 2, packets), GroupBytes(100)

    def fails(first: int, end: int) -> bytes:
        raise StorageError("down")

    with pytest.raises(StorageError):
        groups.packets(0, table, (0, 2), fails)
    assert groups.held_bytes == 0
    data = b"".join(table_bytes)
    assert list(groups.packets(0, table, (0, 2), lambda first, end: data[first:end])) == table_bytes


def test_times_without_a_frame_are_errors(video: Path) -> None:
    reader, _ = reader_of(video)
    with pytest.raises(
        ShardError, match=r"no frame within 0.0001 s of 0.3400 s: the nearest is 0.0400 s away"
    ) as raised:
        reader.frames(0, np.array([0.1, 0.34]))
    assert raised.value.shard == "a.mp4"
    near, _ = reader_of(video, tolerance=0.05)
    assert number_in(near.frames(0, np.array([0.34]))[0]) == 3
    with pytest.raises(ShardError, match="refers to the video 7"):
        reader.frames(7, np.array([0.0]))


def test_damage_names_file_bytes_and_frame(video: Path, tmp_path: Path) -> None:
    reader, _ = reader_of(video)
    table = VideoTables(reader.videos)[0]
    key = int(table.keys[2])
    first, size = int(table.packets.positions[key]), int(table.packets.sizes[key])
    data = bytearray(video.read_bytes())
    data[first : first + size] = bytes(size)
    damaged = tmp_path / "b.mp4"
    damaged.write_bytes(data)
    other, _ = reader_of(damaged)
    assert number_in(other.frames(0, np.array([0.1]))[0]) == 1
    with pytest.raises(ShardError, match=rf"bytes \[{first}, ") as raised:
        other.frames(0, table.packets.times[[key]] / table.packets.timescale)
    assert (raised.value.shard, raised.value.byte) == ("b.mp4", first)
    assert number_in(other.frames(0, np.array([0.2]))[0]) == 2  # the decoder works on


def test_tables_are_made_once_and_again_if_the_cache_is_damaged(video: Path, tmp_path: Path) -> None:
    videos = files_of(video)
    assert videos.make_tables() > 0
    assert videos.make_tables() == 0
    (entry,) = (tmp_path / "cache" / "videos").iterdir()
    recording(videos).ranges.clear()
    assert VideoTables(videos)[0].num_frames == NUM_FRAMES
    assert not recording(videos).ranges
    entry.write_bytes(b"damaged")
    assert VideoTables(videos)[0].num_frames == NUM_FRAMES
    assert recording(videos).ranges
    other = VideoFiles(videos.store, videos.root, (videos.files[0]._replace(version="2"),))
    assert other.make_tables() > 0
