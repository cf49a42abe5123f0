"""The memory of a joined stream: that of its left side, and as much for partners as the window has, at most."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.memory.pss import MIB, peak_of

import shoal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

STREAM = """
import sys, shoal
left = shoal.open(sys.argv[1])
ds = left.join(shoal.open(sys.argv[2]).rename(mask="bin")) if len(sys.argv) > 2 else left
ds = ds.shuffle(seed=0, window="16MiB", chunk="256KiB").batch(8)
print(sum(len(batch["__key__"]) for batch in ds))
"""
NUM_SAMPLES, SAMPLE_BYTES = 1501, 20_000


@pytest.fixture(scope="module")
def large_sides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 MB of samples, as much of partners in equal order and shuffled, and five times as much."""
    home = tmp_path_factory.mktemp("large")
    for name, (times, step) in {"left": (1, 1), "equal": (1, 1), "shuffled": (1, 7), "larger": (5, 1)}.items():
        body = bytes(SAMPLE_BYTES * times)
        samples = ({"__key__": f"{i * step % NUM_SAMPLES:05d}", "bin": body} for i in range(NUM_SAMPLES))
        shoal.pack.pack(samples, home / name, format="tar", shard_bytes="20MiB")
    return home


def test_partners_take_the_window_again_at_most(large_sides: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(large_sides / "cache"))
    alone = peak_of(STREAM, str(large_sides / "left")).peak_bytes
    for name, most_mib in {"equal": 16 + 8, "shuffled": 8, "larger": 16}.items():
        arguments = (str(large_sides / "left"), str(large_sides / name))
        peak_of(STREAM, *arguments)  # matches the keys
        peak = peak_of(STREAM, *arguments)
        assert peak.printed == f"{NUM_SAMPLES}\n"
        assert peak.peak_bytes - alone < most_mib * MIB, name
