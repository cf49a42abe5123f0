"""Counters of a settled stream equal the log of the server, read by read and byte by byte."""

from __future__ import annotations

import gzip
import itertools
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import write_tar

import shoal
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.index_files import save_index
from shoal.reading.cache import spilled_pieces
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.part_readers import divided_limits
from shoal.reading.schedule.memory_division import budget_of
from shoal.storage.files.local_store import LocalStore
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.testing import Fault
from shoal.testing.faults import FaultKind
from shoal.testing.range_server import Exchange, RangeServer

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:a window of"),
]

NUM_SAMPLES, SAMPLE_BYTES = 400, 900
# Not "reset": libcurl repeats a request by itself if the connection that it kept was reset.
FAILING: tuple[FaultKind, ...] = ("status", "reset_in_body", "truncate")
FAULTS: dict[str, Sequence[Fault]] = {
    "no fault": (),
    "failures": [Fault(kind, requests=range(3 + number, 10**6, 97)) for number, kind in enumerate(FAILING)],
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("log")
    for number in range(4):
        names = range(number * NUM_SAMPLES, (number + 1) * NUM_SAMPLES)
        write_tar(
            directory / f"{number}.tar", [{"__key__": b"%05d" % name, "bin": bytes(SAMPLE_BYTES)} for name in names]
        )
    for name, numbers in (("a", (0, 1)), ("b", (2, 3))):
        index = open_dataset([str(directory / f"{number}.tar") for number in numbers]).stream.opened.index
        save_index(index, directory / f"{name}.index", store=LocalStore())
    return directory


def opened(server: RangeServer, shards: Path, name: str) -> Dataset:
    """Return the dataset of two shards, which are known to be those of the index: no request asks for their size."""
    numbers = {"a": (0, 1), "b": (2, 3)}[name]
    ds = open_dataset([server.url_of(f"{number}.tar") for number in numbers], index=str(shards / f"{name}.index"))
    for shard in range(2):
        ds.stream.opened.check.check(shard)
    return ds


def settle(ds: Dataset) -> dict[str, Any]:
    """Return the counters, once all requests that were made ahead have been answered."""
    before: dict[str, Any] = {}
    names = ("num_requests", "num_reads", "read_bytes", "in_flight_bytes", "num_retries")
    while True:
        stats = {name: ds.stats()[name] for name in names}
        if stats == before and not stats["in_flight_bytes"]:
            return ds.stats()
        before = stats
        time.sleep(0.03)


def answered(server: RangeServer) -> list[Exchange]:
    return [seen for seen in list(server.exchanges) if seen.fault not in FAILING]


def reads_in(ds: Dataset, shard_names: dict[str, int], answers: list[Exchange], limit: int | None) -> tuple[int, int]:
    """Return the number and the bytes of the units that lie in answers, again where they were answered again."""
    num_reads = read_bytes = 0
    first_shard = 0
    resolved = ds.stream.resolved
    limits = divided_limits(resolved.parts, limit) if isinstance(resolved, ResolvedMixture) else [limit]
    for order, part_limit in zip(resolved.parts, limits, strict=True):
        units = budget_of(order, part_limit, is_remote=True).units
        _, shard, first_byte, end_byte, *_ = units.columns(np.arange(units.num_units))
        for seen in answers:
            is_in = shard + first_shard == shard_names[seen.path]
            is_in &= (first_byte >= seen.first_byte) & (end_byte <= seen.first_byte + seen.num_bytes)
            num_reads, read_bytes = num_reads + int(is_in.sum()), read_bytes + int((end_byte - first_byte)[is_in].sum())
        first_shard += order.index.num_shards
    return num_reads, read_bytes


SHARDS = {f"{number}.tar": number for number in range(4)}


def check_counts(shards: Path, order: str, batch_size: int, limit: int | None, fault: str, *, is_mixed: bool) -> None:
    """At each of some batches, reads and requests are those of the log."""
    with RangeServer(shards) as server:
        ds = opened(server, shards, "a")
        options: dict[str, Any] = {"window": "256KiB", "chunk": "64KiB"} if order == "window" else {}
        if is_mixed:
            ds = shoal.mix({"a": ds, "b": opened(server, shards, "b")}, seed=1)
        ds = ds.shuffle(order, seed=3, **options).batch(batch_size)
        ds = ds.reading(memory_limit=limit)
        server.clear()
        server.faults = FAULTS[fault]
        with iter(ds) as batches:
            for _ in itertools.islice(batches, 3):
                stats, log = settle(ds), list(server.exchanges)
                assert stats["num_requests"] == len(log)
                assert stats["num_retries"] == len(log) - len(answered(server))
                reads = reads_in(ds, SHARDS, answered(server), limit)
                assert (stats["num_reads"], stats["read_bytes"]) == reads


@pytest.mark.parametrize(
    ("order", "batch_size", "limit", "fault", "is_mixed"),
    [
        ("full", 1, None, "no fault", False),
        ("full", 37, 512 << 10, "failures", True),
        ("window", 100, None, "failures", True),
        ("window", 7, 512 << 10, "no fault", False),
        ("none", 20, 512 << 10, "failures", False),
        ("none", 64, None, "no fault", True),
    ],
)
def test_reads_and_requests_equal_the_log_at_every_batch(
    shards: Path, order: str, batch_size: int, limit: int | None, fault: str, *, is_mixed: bool
) -> None:
    """Each pair of values occurs."""
    check_counts(shards, order, batch_size, limit, fault, is_mixed=is_mixed)


@pytest.mark.drill
@settings(max_examples=30, deadline=None)
@given(
    order=st.sampled_from(["full", "window", "none"]),
    batch_size=st.integers(1, 100),
    limit=st.sampled_from([None, 512 << 10]),
    fault=st.sampled_from(sorted(FAULTS)),
    is_mixed=st.booleans(),
)
def test_reads_and_requests_equal_the_log_whatever_is_read(
    shards: Path, order: str, batch_size: int, limit: int | None, fault: str, *, is_mixed: bool
) -> None:
    check_counts(shards, order, batch_size, limit, fault, is_mixed=is_mixed)


@pytest.mark.parametrize("order", ["full", "window", "none"])
@pytest.mark.parametrize("has_checksums", [False, True], ids=["parsed", "checksummed"])
def test_requests_that_salvage_a_damaged_shard_are_counted(
    shards: Path, tmp_path: Path, order: str, *, has_checksums: bool
) -> None:
    shard = Path(shutil.copy2(shards / "0.tar", tmp_path))
    opened = open_dataset(str(shard)).stream.opened
    index = opened.index
    if has_checksums:
        checksums = extent_checksums(index, opened.paths, store=opened.store, check=opened.check.check)
        index = replace(index, extent_checksum=checksums)
    save_index(index, tmp_path / "a.index", store=LocalStore())
    status = shard.stat()
    with shard.open("r+b") as file:
        file.seek(100 * 1536 + 3)  # in a header
        file.write(b"!")
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    with RangeServer(tmp_path) as server:
        ds = open_dataset([server.url_of("0.tar")], index=str(tmp_path / "a.index")).reading(on_error="skip")
        options: dict[str, Any] = {"window": "256KiB", "chunk": "64KiB"} if order == "window" else {}
        ds.stream.opened.check.check(0)
        server.clear()
        for _ in (ds := ds.shuffle(order, seed=3, **options).batch(50)):
            pass
        stats = settle(ds)
        assert stats["num_skipped"] > 0
        assert stats["num_requests"] == len(server.exchanges)
        assert stats["requested_bytes"] == sum(seen.num_bytes for seen in server.exchanges)


@pytest.mark.parametrize("whole_bytes", [8 << 20, 4096], ids=["whole", "in_turn"])
def test_reads_of_spilled_pieces_equal_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_bytes: int
) -> None:
    monkeypatch.setattr(spilled_pieces, "_WHOLE_BYTES", whole_bytes)
    dice = np.random.default_rng(1)
    for name in "ab":
        lines = [b'{"id": %d, "text": "%s"}\n' % (i, dice.bytes(100).hex().encode()) for i in range(3000)]
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))
    index = open_dataset(str(tmp_path / "*.gz")).stream.opened.index
    save_index(index, tmp_path / "a.index", store=LocalStore())
    with RangeServer(tmp_path) as server:
        urls = [server.url_of(f"{name}.jsonl.gz") for name in "ab"]
        cache = {"directory": str(tmp_path / "cache"), "budget": "64MiB"}
        ds = open_dataset(urls, index=str(tmp_path / "a.index"), cache=cache).shuffle(seed=0, window="256KiB").batch(50)
        for shard in range(2):
            ds.stream.opened.check.check(shard)
        server.clear()
        with iter(ds) as batches:
            for number, _ in enumerate(itertools.islice(batches, 40)):
                if number % 5 and number != 39:
                    continue
                stats, log = settle(ds), list(server.exchanges)
                assert stats["num_requests"] == len(log)
                logged_bytes = sum(seen.num_bytes for seen in log)
                assert stats["read_bytes"] == stats["requested_bytes"] == logged_bytes
                assert stats["num_reads"] == len({seen.path for seen in log})
            assert stats["num_spills"] == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("order", ["full", "window"])
def test_requests_of_workers_equal_the_log_at_the_end(shards: Path, order: str) -> None:
    torch = pytest.importorskip("shoal.torch")
    with RangeServer(shards) as server:
        options: dict[str, Any] = {"window": "256KiB", "chunk": "64KiB"} if order == "window" else {}
        ds = opened(server, shards, "a").shuffle(order, seed=3, **options).batch(50)
        server.clear()
        for _ in torch.DataLoader(ds, num_workers=2, multiprocessing_context="fork"):
            pass  # a request counts when it begins, and the server notes it when it answers
        stats = ds.stats()
        looks = [seen for seen in server.exchanges if seen.num_bytes == 1]
        assert stats["num_requests"] == len(server.exchanges) - len(looks)
        assert stats["requested_bytes"] == sum(seen.num_bytes for seen in server.exchanges) - len(looks)
