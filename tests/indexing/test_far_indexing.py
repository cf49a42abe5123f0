"""Remote shards are indexed as if they lay here, for what the sizes of their members make it cost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.tar_reference import scan
from tests.formats.test_tar import FORMATS, MEMBERS, SIMPLE, archive
from tests.samples import write_tar
from tests.stream.far import Contents, FarStore, LargeTar, known_costs
from tests.stream.made import reading_threads, write_lines, write_tars

from shoal.errors import ShardError, StorageError
from shoal.formats.format_registry import format_named
from shoal.formats.shard_format import Format
from shoal.index.shard_scan import ShardScan
from shoal.index.table import Index
from shoal.indexing.build import build_index
from shoal.indexing.scan import costs, remote_scans
from shoal.indexing.scan.remote_scans import BLOCK_BYTES, ScanReads, ScanTraffic, scan_in_threads
from shoal.indexing.scan.scan_task import ScanTask
from shoal.storage.files.local_store import LocalStore
from shoal.storage.retry import RetryingStore, RetryRule
from shoal.storage.sources.source import Source, expand
from shoal.storage.store_of_url import open_store
from shoal.testing import Fault, RangeServer

MIB = 1 << 20
DATA = Path(__file__).parents[1] / "formats" / "data"


def source_of(objects: Mapping[str, Contents]) -> Source:
    paths = tuple(objects)
    return Source("list", "far", "far://", tuple(path.removeprefix("far://") for path in paths), paths)


def index_of(objects: Mapping[str, Contents], store: Any = None, *, format: str = "tar", **options: Any) -> Index:  # noqa: A002
    store = FarStore(objects) if store is None else store
    return build_index(source_of(objects), store=store, format=format_named(format), **options)


def scans_of(
    objects: Mapping[str, Contents], *, request_bytes: int = MIB, num_requests: int = 4, form: Format | None = None
) -> tuple[list[ShardScan], ScanTraffic]:
    """The scans of some tars, and what they took where a request is worth so many bytes."""
    reads = ScanReads(FarStore(objects), known_costs(request_bytes=request_bytes))
    tasks = [ScanTask(number, path, path, len(data), "") for number, (path, data) in enumerate(objects.items())]
    found = {}
    for task, result in scan_in_threads(
        tasks, form or format_named("tar"), reads, on_progress=lambda *_: None, num_requests=num_requests
    ):
        found[task.number] = result
    return [found[number] for number in range(len(tasks))], reads.traffic


def assert_same_scan(one: ShardScan, other: ShardScan) -> None:
    np.testing.assert_array_equal(one.sample_starts, other.sample_starts)
    np.testing.assert_array_equal(one.layout_crcs, other.layout_crcs)
    assert (one.head, one.notes) == (other.head, other.notes)


@pytest.fixture(params=["headers", "stream"])
def small_requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Requests so small that small archives take many; what one is worth in bytes, for either way."""
    monkeypatch.setattr(costs, "REACH_BYTES", 700)
    monkeypatch.setattr(remote_scans, "REACH_BYTES", 700)
    monkeypatch.setattr(remote_scans, "BLOCK_BYTES", 1500)
    return 1 if request.param == "headers" else 100 * MIB


def test_every_kind_of_tar_is_found_as_it_is_here(small_requests: int) -> None:
    archives = {f"{kind}-{mtime}": archive(SIMPLE, kind=kind, mtime=mtime) for kind in FORMATS for mtime in (0, 1)}
    archives["pax-times"] = archive(SIMPLE, mtime=1.5)
    archives["nasty"] = (DATA / "nasty.tar").read_bytes()
    archives["trailing"] = archives["ustar-0"] + b"x" * 5000
    found, traffic = scans_of(archives, request_bytes=small_requests)
    for result, data in zip(found, archives.values(), strict=True):
        assert_same_scan(result, scan(data))
    assert traffic.num_requests > 3 * len(archives)


@settings(deadline=None, max_examples=25)
@given(members=MEMBERS, kind=st.sampled_from(["gnu", "pax"]), request_bytes=st.sampled_from([1, 100 * MIB]))
def test_any_members(members: list[tuple[str, bytes, bytes]], kind: str, request_bytes: int) -> None:
    data = archive([(f"{name}{i}", load) for i, (name, load, _) in enumerate(members)], kind=kind, mtime=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "REACH_BYTES", 700)
        patch.setattr(remote_scans, "REACH_BYTES", 700)
        patch.setattr(remote_scans, "BLOCK_BYTES", 1500)
        found, _ = scans_of({"a": data}, request_bytes=request_bytes)
    assert_same_scan(found[0], scan(data))


@pytest.mark.parametrize("suffix", ["tar", "jsonl"])
def test_the_index_is_that_of_the_files(tmp_path: Path, suffix: str) -> None:
    write = write_tars if suffix == "tar" else write_lines
    directory = write(tmp_path / "data", [30, 1, 0, 47, 5] if suffix == "tar" else [30, 1, 47, 5])
    here = expand(directory, suffixes=(f".{suffix}",))
    expected = build_index(here, store=LocalStore(), format=format_named(suffix))
    objects = {f"far://{name}": Path(path).read_bytes() for name, path in zip(here.names, here.paths, strict=True)}
    found = index_of(objects, format=suffix)
    assert found.fingerprint == expected.fingerprint
    assert list(found.shard_names) == list(expected.shard_names)
    assert list(found.shard_versions) == [f'"{len(data)}"' for data in objects.values()]
    for column in ("shard_bytes", "extent_layout_crc", "sample_bytes"):
        np.testing.assert_array_equal(getattr(found, column), getattr(expected, column))
    assert not reading_threads()


# What a request is worth here: 1 MiB, as of 20 ms at 50 MB/s.
def test_large_members_cost_a_request_each() -> None:
    tars = {f"{number}.tar": LargeTar([10_000_000] * 12) for number in range(5)}
    found, traffic = scans_of(tars)
    assert [result.num_samples for result in found] == [12] * 5
    # The last request of a shard brings its end, too.
    assert traffic.num_requests == 5 * 13
    assert traffic.read_bytes <= 5 * 13 * (16 << 10)
    assert traffic.shard_bytes == sum(map(len, tars.values()))
    assert str(traffic) == f"headers only: read 1.0 MB of {traffic.shard_bytes / 1e6:,.1f} MB in 65 requests"


@pytest.mark.parametrize("member_bytes", [4096, 100_000])
def test_small_members_cost_the_bytes_in_large_requests(member_bytes: int) -> None:
    tars = {f"{number}.tar": LargeTar([member_bytes] * (20_000_000 // member_bytes)) for number in range(4)}
    found, traffic = scans_of(tars)
    assert [result.num_samples for result in found] == [20_000_000 // member_bytes] * 4
    whole = sum(map(len, tars.values()))
    # All four begin at once, and learn for themselves what their members are like: a few small requests each.
    assert 0.95 * whole <= traffic.read_bytes <= whole
    assert traffic.num_requests <= sum(-(-len(tar) // BLOCK_BYTES) + 4 for tar in tars.values())
    assert str(traffic).startswith("payloads too")


def test_the_way_changes_with_the_members() -> None:
    sizes = [4096] * 4000 + [10_000_000] * 40 + [4096] * 4000
    found, traffic = scans_of({"a.tar": LargeTar(sizes)}, num_requests=1)
    assert found[0].num_samples == 8040
    small_bytes = 8000 * 4608
    assert traffic.read_bytes < small_bytes + 20 * BLOCK_BYTES
    assert traffic.num_requests < small_bytes // BLOCK_BYTES + 40 + 40


def test_shards_are_scanned_side_by_side_and_within_limits() -> None:
    tars = {f"{number}.tar": LargeTar([3_000_000] * 4) for number in range(20)}
    store = FarStore(tars)
    gate = threading.Barrier(8, timeout=60)

    def before(path: str, first_byte: int, end_byte: int) -> None:
        del path, first_byte, end_byte
        if len(store.requests) <= 8:
            gate.wait()

    store.before = before  # type: ignore[method-assign]
    reads = ScanReads(store, known_costs())
    tasks = [ScanTask(number, path, path, len(data), "") for number, (path, data) in enumerate(tars.items())]
    results = scan_in_threads(tasks, format_named("tar"), reads, on_progress=lambda *_: None, num_requests=8)
    assert len(list(results)) == 20
    assert store.most_at_once == 8


def test_progress_rises_to_the_whole(caplog: pytest.LogCaptureFixture) -> None:
    tars = {f"far://{number}.tar": LargeTar([3_000_000] * 4) for number in range(6)}
    said: list[tuple[int, int, int]] = []
    traffic = ScanTraffic()
    with caplog.at_level(logging.INFO, logger="shoal"):
        index_of(tars, progress=lambda *numbers: said.append(numbers), traffic=traffic)
    whole = sum(map(len, tars.values()))
    assert said == sorted(said)
    assert said[-1] == (whole, whole, 24)
    assert f"far: {traffic}" in caplog.text


def test_an_error_names_shard_and_byte_and_ends_the_rest() -> None:
    tars: dict[str, Contents] = {f"far://{number}.tar": LargeTar([3_000_000] * 400) for number in range(6)}
    tars["far://bad.tar"] = archive([("a.x", b"1"), ("b.x", b"2")])[:1100]
    store = FarStore(tars)
    with pytest.raises(ShardError) as caught:
        index_of(tars, store)
    assert (caught.value.shard, caught.value.byte) == ("bad.tar", 1024)
    assert len(store.requests) < 7 * 400
    assert not reading_threads()


class Down(FarStore):
    """A server that answers nothing but 503 after a while."""

    def before(self, path: str, first_byte: int, end_byte: int) -> None:
        if first_byte > 5_000_000:
            msg = f"{path}: 503"
            raise StorageError(msg, transient=True)


def test_a_wait_for_another_try_ends_with_the_scan() -> None:
    """One shard is damaged while the requests of others wait, for a minute, to be made again."""
    tars: dict[str, Contents] = {f"far://{number}.tar": LargeTar([3_000_000] * 4) for number in range(6)}
    tars["far://bad.tar"] = LargeTar([600_000, 600_000])[:900_000]
    rule = RetryRule(first_pause_seconds=1e9, most_pause_seconds=1e9, deadline_seconds=1e12)
    store = RetryingStore(Down(tars), rule)
    with pytest.raises(ShardError, match=r"bad\.tar"):
        index_of(tars, store)
    assert not reading_threads()


def test_what_was_scanned_before_a_stop_is_not_scanned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.indexing.build.SMALL_REMOTE_BYTES", 1)
    tars = {f"far://{number}.tar": LargeTar([3_000_000] * 4) for number in range(6)}

    def stop(_done: int, _total: int, samples: int) -> None:
        if samples >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index_of(tars, progress=stop, cache_dir=tmp_path)
    assert not reading_threads()
    store = FarStore(tars)
    index = index_of(tars, store, cache_dir=tmp_path)
    assert len({path for path, _, _ in store.requests}) <= 3
    assert index.num_samples == 24
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_scan_goes_through_faults(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [{"__key__": b"%d" % i, "bin": bytes(9000)} for i in range(100)])
    data = (tmp_path / "a.tar").read_bytes()
    objects = {f"far://{number}.tar": data for number in range(4)}
    store = FarStore(objects)
    failed: set[object] = set()

    def before(path: str, first_byte: int, end_byte: int) -> None:
        if (path, first_byte) not in failed:
            failed.add((path, first_byte))
            msg = f"{path}: 503 for [{first_byte}, {end_byte})"
            raise StorageError(msg, transient=True)

    store.before = before  # type: ignore[method-assign]
    traffic = ScanTraffic()
    index = index_of(objects, RetryingStore(store, RetryRule(first_pause_seconds=1e-4)), traffic=traffic)
    assert index.num_samples == 400
    assert traffic.num_retries == len(failed) == traffic.num_requests
    assert "tried again" in str(traffic)


def test_over_http_through_faults(tmp_path: Path) -> None:
    """What the server counts is what the scan says it took."""
    directory = write_tars(tmp_path / "data", [60, 40, 80])
    here = expand(directory, suffixes=(".tar",))
    expected = build_index(here, store=LocalStore(), format=format_named("tar"))
    objects = {f"d/{name}": Path(path).read_bytes() for name, path in zip(here.names, here.paths, strict=True)}
    with RangeServer(objects) as server:
        source = f"{server.url}/d/s-{{000..002}}.tar"
        for faults in (
            (),
            (Fault("status", requests=[5]), Fault("reset_in_body", requests=[6]), Fault("truncate", requests=[8])),
        ):
            server.faults = faults
            server.clear()
            store = RetryingStore(open_store(source), RetryRule(first_pause_seconds=0.001))
            far = expand(source, suffixes=(".tar",), store=store)
            traffic = ScanTraffic()
            index = build_index(far, store=store, format=format_named("tar"), traffic=traffic)
            assert index.fingerprint == expected.fingerprint
            np.testing.assert_array_equal(index.extent_layout_crc, expected.extent_layout_crc)
            # One look at each shard before, and two for an index of other tools beside the first.
            assert server.num_requests() == 3 + 2 + traffic.num_requests + traffic.num_retries
            assert traffic.num_retries == len(faults)
            assert traffic.read_bytes == sum(map(len, objects.values()))
