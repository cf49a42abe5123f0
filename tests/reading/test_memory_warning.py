"""A window beyond the memory of the machine or container: a line of the log, before the system kills."""

from __future__ import annotations

import pytest

from shoal.reading.schedule import memory_division
from shoal.storage.chunk_cache import directory
from shoal.stream.dataset import Dataset


@pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
def test_a_window_beyond_the_memory_is_logged_once(
    tars: Dataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ds = tars.shuffle(seed=1, window="100KB", chunk="6KiB").batch(5)
    held_bytes = ds.resolved.chunks_held_bytes
    monkeypatch.setattr(memory_division, "most_memory_bytes", lambda: held_bytes)
    next(iter(ds))
    assert caplog.records == []
    monkeypatch.setattr(memory_division, "most_memory_bytes", lambda: held_bytes - 1)
    for _ in range(2):
        next(iter(ds))
    [record] = caplog.records
    assert "smaller window=" in record.getMessage()
    next(iter(ds.partition(rank=0, world_size=2)))
    assert len(caplog.records) == 1
    next(iter(ds.reading(memory_limit="50KB")))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("files", "most_bytes"),
    [
        ({}, 0),
        ({"/proc/meminfo": ["MemTotal:  8 kB\n"]}, 8192),
        (
            {
                "/proc/meminfo": ["MemTotal:  8 kB\n"],
                "/proc/self/cgroup": ["0::/job/step\n"],
                "/sys/fs/cgroup/job/step/memory.max": ["max\n"],
                "/sys/fs/cgroup/job/memory.max": ["4000\n"],
            },
            4000,
        ),
        (
            {
                "/proc/self/cgroup": ["3:cpu,cpuacct:/a\n", "2:memory:/a\n"],
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": ["3000\n"],
            },
            3000,
        ),
        ({"/proc/self/cgroup": ["0::/\n"], "/sys/fs/cgroup/memory.max": ["5\n"]}, 5),
    ],
)
def test_the_memory_is_that_of_the_smallest_group(
    files: dict[str, list[str]], most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_lines", lambda path: files.get(path, []))
    assert directory.most_memory_bytes() == most_bytes
