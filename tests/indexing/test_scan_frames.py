"""Scans on their way from a worker: whole through pipes that take little at a time, and never copied as a whole."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from shoal.index.shard_scan import ShardScan
from shoal.indexing.scan import scan_frames
from shoal.indexing.scan.scan_frames import read_frame, scan_from, scan_to_buffers, write_frame
from shoal.storage.cache_directory import Scratch
from shoal.testing.known_shards import measured


class ShortPipe(io.RawIOBase):
    """A raw pipe that takes and gives at most so many bytes at a time, as the system does from 2 GiB on."""

    def __init__(self, most_bytes: int) -> None:
        self.data = bytearray()
        self.most_bytes = most_bytes
        self.at = 0

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        taken = memoryview(data).cast("B")[: self.most_bytes]  # type: ignore[arg-type]
        self.data += taken
        return len(taken)

    def readinto(self, buffer: object) -> int:
        into = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        part = self.data[self.at : self.at + min(len(into), self.most_bytes)]
        into[: len(part)] = part
        self.at += len(part)
        return len(part)


def scan_of(num_samples: int, *, pieces: bool = False) -> ShardScan:
    starts = np.arange(num_samples + 1, dtype=np.int64) * 7
    crcs = np.arange(num_samples, dtype=np.uint32) * np.uint32(2654435761)
    counts = np.full(num_samples, 3, dtype=np.int64) if pieces else None
    return ShardScan(starts, crcs, {"a": [1, "é"]}, {"blank_lines": 2}, counts, counts)


def assert_same(one: ShardScan, other: ShardScan) -> None:
    for column in ("sample_starts", "layout_crcs", "piece_samples", "piece_decoded_bytes", "piece_ends"):
        found, expected = getattr(one, column), getattr(other, column)
        assert (found is None) == (expected is None)
        if expected is not None:
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)
    assert dict(one.head) == dict(other.head)
    assert dict(one.notes) == dict(other.notes)


@pytest.mark.parametrize("most_bytes", [1, 13, 4096])
def test_a_pipe_that_writes_short_gets_the_whole_frame(most_bytes: int) -> None:
    pipe = ShortPipe(most_bytes)
    scan = scan_of(300, pieces=True)
    write_frame(pipe, {"kind": "progress", "done_bytes": 5})  # type: ignore[arg-type]
    write_frame(pipe, {"kind": "scan"}, scan)  # type: ignore[arg-type]
    assert read_frame(pipe) == ({"kind": "progress", "done_bytes": 5}, None)  # type: ignore[arg-type]
    frame = read_frame(pipe)  # type: ignore[arg-type]
    assert frame is not None
    assert frame[0] == {"kind": "scan"}
    assert frame[1] is not None
    assert_same(frame[1], scan)
    assert read_frame(pipe) is None  # type: ignore[arg-type]


def test_a_pipe_that_takes_nothing_is_an_error_and_not_a_loop() -> None:
    class Full(ShortPipe):
        def write(self, data: object) -> None:  # type: ignore[override]  # as a raw pipe that would block
            assert data is not None

    with pytest.raises(BlockingIOError):
        write_frame(Full(1), {"kind": "scan"}, scan_of(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [1, 7, 20, 100, -1])
def test_a_frame_that_breaks_off_is_the_end(cut: int) -> None:
    pipe = ShortPipe(4096)
    write_frame(pipe, {"kind": "scan"}, scan_of(30))  # type: ignore[arg-type]
    del pipe.data[cut:]
    assert read_frame(pipe) is None  # type: ignore[arg-type]


def test_frames_go_in_parts_and_are_not_copied_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_frames, "_MOST_WRITTEN_BYTES", 1 << 16)
    largest = 0

    class Sink(io.RawIOBase):
        def write(self, data: object) -> int:
            nonlocal largest
            largest = max(largest, memoryview(data).nbytes)  # type: ignore[arg-type]
            return memoryview(data).nbytes  # type: ignore[arg-type]

    scan = scan_of(1_000_000)
    _, used_bytes = measured(lambda: write_frame(Sink(), {"kind": "scan"}, scan))  # type: ignore[arg-type]
    assert largest <= 1 << 16
    assert used_bytes < 1 << 20

    kept = io.BytesIO()
    write_frame(kept, {"kind": "scan"}, scan)
    kept.seek(0)
    frame, used_bytes = measured(lambda: read_frame(kept))
    assert frame is not None
    assert frame[1] is not None
    assert_same(frame[1], scan)
    assert used_bytes < 12_000_000 + (1 << 20)  # the scan itself, once


def test_what_is_kept_on_the_disk_is_the_scan(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path), suffix=".scan")
    for scan in (scan_of(0), scan_of(9), scan_of(9, pieces=True)):
        scratch.put("one.scan", scan_to_buffers(scan))
        kept = scratch.get("one.scan")
        assert kept is not None
        assert_same(scan_from(kept), scan)
