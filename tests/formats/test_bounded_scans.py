"""Scans in bounded memory, whatever a shard is decompressed to; and what samples of nearly nothing take to be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.formats.writers import COMPRESS

from shoal.formats.format_registry import format_named
from shoal.formats.shard_format import Span
from shoal.testing.known_shards import measured

SOME_CASES = [
    "jsonl.gz of large lines",
    "csv.gz of a quote that never closes",
    "tfrecord.gz of one record",
    "tar.gz of one member",
    "tar.gz that is cut short",
]


@pytest.mark.parametrize("cases", [SOME_CASES, pytest.param([], marks=pytest.mark.drill)], ids=["some", "all"])
def test_scans_take_64_mib_of_whatever_is_inside(cases: list[str]) -> None:
    for library in ("brotli", "zstandard", "google_crc32c"):
        pytest.importorskip(library)
    if not Path("/proc/self/statm").exists():
        pytest.skip("the address space is counted as Linux does it")
    command = [sys.executable, "-m", "tests.formats.bounded_scans", *cases]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize(("name", "line"), [("text.gz", b"1\n"), ("csv.gz", b"1\n")])
def test_samples_of_two_bytes_are_read_in_some_bytes_each(name: str, line: bytes) -> None:
    num_samples = 200_000
    data = COMPRESS["gz"]((b"a\n" if name == "csv.gz" else b"") + line * num_samples)
    reader = format_named(name)
    found = reader.scan(lambda first, end: data[first:end], len(data), shard="a")
    assert found.num_samples == num_samples
    records, used_bytes = measured(lambda: reader.parse(data, Span("a", 0, num_samples, None, found.head)))
    assert list(records.sample(num_samples - 1).values()) in (["1"], [1])
    assert used_bytes < 40 * num_samples + (16 << 20)
