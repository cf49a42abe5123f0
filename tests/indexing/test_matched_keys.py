"""Keys of two datasets are matched as a dict would match them, in any memory; alignments survive kills and damage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.forks import Fork

from shoal.errors import StorageError
from shoal.indexing.alignment.alignment import NO_PARTNER, RunCollector
from shoal.indexing.alignment.kept_alignments import KeptAlignment, kept_alignment, load_alignment
from shoal.indexing.alignment.matched_keys import HashedKeys, MatchCounts, MatchedKeys
from shoal.order.seeds import key, keys

NAME = "0" * 32
HIGH, LOW = key(0, 0, "high"), key(0, 0, "low")


def hashed(values: NDArray[np.int64], *, size: int = 700, shared_bits: bool = False) -> Iterator[HashedKeys]:
    """The hashes of numbers; with ``shared_bits``, any three neighbouring numbers share the first 64 bits."""
    for first in range(0, len(values), size):
        part = values[first : first + size]
        high = keys(HIGH, part // 3 if shared_bits else part)
        yield HashedKeys(np.arange(first, first + len(part)), high, keys(LOW, part))


def matched(left: Any, right: Any, *, memory_bytes: int = 1 << 20, **how: Any) -> MatchedKeys:
    left, right = np.asarray(left, np.int64), np.asarray(right, np.int64)
    sizes: Any = {"num_left": len(left), "num_right": len(right), "directory": tempfile.gettempdir()}
    return MatchedKeys(hashed(left, **how), hashed(right, **how), **sizes, memory_bytes=memory_bytes)


def partners_of(matches: MatchedKeys) -> list[int]:
    try:
        return [partner for block in matches.blocks() for partner in block.tolist()]
    finally:
        matches.close()


def as_dicts_match(left: list[int], right: list[int]) -> tuple[list[int], MatchCounts]:
    first: dict[int, int] = {}
    for number, value in enumerate(right):
        first.setdefault(value, number)
    partners = [first.get(value, NO_PARTNER) for value in left]
    num_matched = sum(partner >= 0 for partner in partners)
    num_unused = len(first.keys() - set(left))
    return partners, MatchCounts(len(left), num_matched, num_unused, len(right) - len(first))


values = st.lists(st.integers(0, 40), max_size=60)


@given(values, values, st.sampled_from([1 << 8, 1 << 11, 1 << 20]), st.booleans())
def test_keys_are_matched_as_a_dict_matches_them(
    left: list[int], right: list[int], memory_bytes: int, shared_bits: bool
) -> None:
    matches = matched(left, right, memory_bytes=memory_bytes, size=7, shared_bits=shared_bits)
    partners, counts = as_dicts_match(left, right)
    assert matches.counts == counts
    assert all(right[first] == right[again] and first < again for first, again in matches.doubles)
    assert bool(matches.doubles) == (counts.num_doubles > 0)
    assert partners_of(matches) == partners


def test_little_memory_gives_the_same_matches() -> None:
    """A hundred buckets and blocks, and a peak far below the keys."""
    rng = np.random.default_rng(0)
    left, right = rng.permutation(200_000), rng.permutation(300_000)[:150_000]
    tracemalloc.start()
    try:
        matches = matched(left, right, memory_bytes=512 << 10, size=10_000)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 << 20, "of 8 MiB of keys"
    assert partners_of(matches) == as_dicts_match(left.tolist(), right.tolist())[0]


@given(st.lists(st.sampled_from([-1, 0, 1, 2, 3, 7]), max_size=30), st.integers(1, 5))
def test_runs_say_what_the_array_says(partners: list[int], size: int) -> None:
    collector = RunCollector(len(partners))
    for first in range(0, len(partners), size):
        collector.add(np.array(partners[first : first + size], dtype=np.int64))
    runs = collector.runs
    assert runs is not None
    assert runs.partners(np.arange(len(partners))).tolist() == partners
    ends = [(partners[i] < 0) != (partners[i - 1] < 0) or (partners[i] >= 0 and partners[i] != partners[i - 1] + 1)
            for i in range(1, len(partners))]  # fmt: skip
    assert len(runs.first_ids) == bool(partners) + sum(ends), "no run could be longer"


def kept(left: Any, right: Any, *, name: str = NAME) -> KeptAlignment:
    return kept_alignment(name, lambda _: matched(left, right))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


def test_equal_order_is_one_run_and_disorder_an_array() -> None:
    same = kept(range(50_000), range(50_000))
    assert same.alignment.runs is not None
    assert len(same.alignment.runs.first_ids) == 1
    assert Path(same.path).stat().st_size == 512 + 16
    mixed = np.random.default_rng(0).permutation(50_000)
    other = kept(range(50_000), mixed, name="1" * 32)
    assert other.alignment.runs is None
    assert Path(other.path).stat().st_size == 512 + 4 * 50_000
    assert (mixed[other.alignment.partners(np.arange(50_000))] == np.arange(50_000)).all()


def test_a_kept_alignment_is_not_made_again() -> None:
    first = kept([5, 6, 7], [7, 5, 5])
    again = kept_alignment(NAME, lambda _: pytest.fail("made again"))
    assert (again.counts, again.doubles, again.path) == (first.counts, first.doubles, first.path)
    assert again.alignment.partners(np.arange(3)).tolist() == [1, -1, 0]


def test_a_damaged_file_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    path = Path(kept([5, 6, 7], [7, 5]).path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:-1] + b"\1", b"x" * len(whole), whole[:8]):
        path.unlink()
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match="damaged"):
            load_alignment(str(path), confirms=True)
        assert kept([5, 6, 7], [7, 5]).alignment.partners(np.arange(3)).tolist() == [1, -1, 0]
        assert path.read_bytes() == whole
    assert "made again" in caplog.text


def test_without_a_cache_the_alignment_is_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", "/dev/null/cache")
    alignment = kept([5, 6, 7], [7, 5])
    assert not alignment.path
    assert alignment.alignment.partners(np.arange(3)).tolist() == [1, -1, 0]
    assert "in memory" in caplog.text


def _kept_slowly(left: int) -> None:
    rng = np.random.default_rng(1)
    kept(rng.permutation(left), rng.permutation(left))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_kill_at_any_moment_leaves_nothing_wrong(tmp_path: Path) -> None:
    """A killed process leaves no half alignment, and the next one removes what it left."""
    began = time.monotonic()
    assert Fork(partial(_kept_slowly, 100_000)).exit_code() == 0
    whole_seconds = time.monotonic() - began
    directory = tmp_path / "cache" / "alignments"
    whole = (directory / f"{NAME}.alignment").read_bytes()
    for part in range(1, 12):
        (directory / f"{NAME}.alignment").unlink(missing_ok=True)
        fork = Fork(partial(_kept_slowly, 100_000))
        time.sleep(whole_seconds * part / 10)
        os.kill(fork.pid, signal.SIGKILL)
        fork.exit_code()
        if (directory / f"{NAME}.alignment").exists():
            assert (directory / f"{NAME}.alignment").read_bytes() == whole
    (directory / f"{NAME}.alignment").unlink(missing_ok=True)
    _kept_slowly(100_000)
    assert (directory / f"{NAME}.alignment").read_bytes() == whole
    assert sorted(path.suffix for path in directory.iterdir()) == [".alignment", ".lock"]


_MANY = """
import sys
from tests.indexing.test_matched_keys import matched
import numpy as np
import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rng = np.random.default_rng(0)
count = 1_000_000
left, right = rng.permutation(count), rng.permutation(count)
keys_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
matches = matched(left, right, memory_bytes=8 << 20, size=50_000)
num_matched = sum(int((block >= 0).sum()) for block in matches.blocks())
print(num_matched, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before - keys_kib)
"""


def test_a_million_keys_take_the_memory_that_was_allowed() -> None:
    """48 MB of hashes, in 8 MiB and what numpy takes beside."""
    result = subprocess.run([sys.executable, "-c", _MANY], capture_output=True, text=True, check=True)
    num_matched, peak_kib = map(int, result.stdout.split())
    assert num_matched == 1_000_000
    assert peak_kib < 16 << 10
