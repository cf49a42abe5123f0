"""What indexing will take is told before it is done: by the listing, and by a few requests."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.far import Contents, FarStore, KnownCosts, LargeTar

from shoal.errors import StorageError
from shoal.formats.folder.reader import Folder
from shoal.formats.format_registry import format_named
from shoal.formats.shard_format import Format, ReadBytes
from shoal.index.shard_scan import ShardScan
from shoal.indexing.indexing_estimate import IndexingEstimate, estimate_indexing
from shoal.indexing.scan.first_requests import MOST_REQUESTS
from shoal.indexing.scan.remote_scans import ScanReads, ScanTraffic, scan_in_threads
from shoal.indexing.scan.scan_task import ScanTask
from shoal.storage.files.local_store import LocalStore

MIB = 1 << 20
MOST_LOOKED_BYTES = 3 * 4 * MIB


def tasks_of(objects: Mapping[str, Contents]) -> list[ScanTask]:
    return [ScanTask(number, path, path, len(data), "") for number, (path, data) in enumerate(objects.items())]


def estimate_of(objects: Mapping[str, Contents], form: str | Format = "tar", **options: Any) -> IndexingEstimate:
    store: Any = options.pop("store", None) or FarStore(objects)
    chosen = format_named(form) if isinstance(form, str) else form
    return estimate_indexing(tasks_of(objects), store=store, format=chosen, **options)


def traffic_of(objects: Mapping[str, Contents], form: str = "tar") -> ScanTraffic:
    """What scanning takes, at the costs that are assumed of a store."""
    reads = ScanReads(FarStore(objects), KnownCosts())
    list(scan_in_threads(tasks_of(objects), format_named(form), reads, on_progress=lambda *_: None))
    return reads.traffic


def parquet(num_rows: int, row_group_size: int = 1000) -> bytes:
    out = io.BytesIO()
    columns = {"n": list(range(num_rows)), "t": [f"{number} " * 20 for number in range(num_rows)]}
    pq.write_table(pa.table(columns), out, row_group_size=row_group_size, compression="none")
    return out.getvalue()


def many(num_shards: int, num_bytes: int, suffix: str = ".tar") -> list[ScanTask]:
    return [ScanTask(number, f"{number}{suffix}", f"{number}{suffix}", num_bytes, "") for number in range(num_shards)]


@settings(deadline=None, max_examples=12)
@given(
    member_bytes=st.sampled_from([10_000, 40_000, 300_000, 700_000, 3_000_000, 50_000_000]),
    num_members=st.sampled_from([1, 2, 3, 8, 9, 20, 50]),
    num_shards=st.sampled_from([1, 2, 5, 33]),
    spread=st.sampled_from([1, 3]),
)
def test_what_a_scan_takes_lies_within_the_estimate(
    member_bytes: int, num_members: int, num_shards: int, spread: int
) -> None:
    shards = {}
    for number in range(num_shards):
        shards[f"{number}.tar"] = LargeTar([member_bytes] * (num_members * (1 + number % spread)))
    found, real = estimate_of(shards, looks=True), traffic_of(shards)
    # A scan finds out how its shard is best read by a few small requests, or by some bytes too many.
    requests, own_bytes = 8 * num_shards, 2 * MIB * num_shards
    assert found.least.num_requests - requests <= real.num_requests <= found.most.num_requests + requests
    assert found.least.read_bytes - own_bytes <= real.read_bytes <= found.most.read_bytes + own_bytes
    assert found.least.seconds <= found.most.seconds
    assert found.least.read_bytes <= found.most.read_bytes <= found.num_bytes == real.shard_bytes


@settings(deadline=None, max_examples=12)
@given(
    member_bytes=st.integers(1_200_000, 12_000_000),
    num_members=st.integers(20, 400),
    num_shards=st.sampled_from([1, 3]),
)
def test_headers_that_are_read_side_by_side_are_counted(member_bytes: int, num_members: int, num_shards: int) -> None:
    shards = {f"{number}.tar": LargeTar([member_bytes] * num_members) for number in range(num_shards)}
    found, real = estimate_of(shards, looks=True), traffic_of(shards)
    assert found.least.num_requests - 8 * num_shards <= real.num_requests <= found.most.num_requests + 8 * num_shards
    # How far the first header of a walk is from where it is looked for depends on the sizes.
    slack = num_members * num_shards * member_bytes // 16
    assert found.least.read_bytes - slack <= real.read_bytes <= found.most.read_bytes + slack
    assert set(found.ways) <= {"headers", "all bytes"}


def test_headers_that_are_read_side_by_side_take_less_time() -> None:
    [one, ten] = (estimate_of({"a.tar": LargeTar([4_000_000] * n)}, looks=True) for n in (250, 2500))
    assert one.most.seconds < 250 * 0.1 / 4
    assert ten.most.seconds < 2500 * 0.1 / 16


@pytest.mark.parametrize("form", ["jsonl", "csv", "text"])
def test_all_bytes_of_lines_are_read(form: str) -> None:
    shards = {f"{number}.{form}": b"12345678,1234567\n" * 300_000 for number in range(3)}
    found, real = estimate_of(shards, form, looks=True), traffic_of(shards, form)
    assert found.least.read_bytes == found.most.read_bytes == found.num_bytes
    assert real.read_bytes == found.num_bytes
    assert abs(found.most.num_requests - real.num_requests) <= 3 * 4


def test_footers_are_read_whatever_lies_before_them() -> None:
    shards = {f"{number}.parquet": parquet(30_000) for number in range(4)}
    assert min(map(len, shards.values())) > 2 * MIB
    found, real = estimate_of(shards, "parquet", looks=True), traffic_of(shards, "parquet")
    assert found.least.num_requests == found.most.num_requests == real.num_requests
    assert found.most.read_bytes == real.read_bytes < found.num_bytes / 10
    assert found.ways == {"footers": 4}


def test_batches_behind_a_footer_are_counted() -> None:
    table = pa.table({"t": ["text " * 600] * 12_000})
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    shards = {f"{number}.arrow": out.getvalue() for number in range(3)}
    found, real = estimate_of(shards, "arrow", looks=True), traffic_of(shards, "arrow")
    assert real.num_requests > 3 * 12
    assert found.least.num_requests <= real.num_requests <= found.most.num_requests


def test_a_look_is_a_few_requests_of_three_shards() -> None:
    shards = {f"{number}.tar": LargeTar([3_000_000] * 40) for number in range(50)}
    store = FarStore(shards)
    found = estimate_of(shards, store=store, looks=True)
    looked = {path for path, _, _ in store.requests}
    assert found.num_looked == len(looked) == 3
    assert len(store.requests) == 3 * MOST_REQUESTS
    assert store.read_bytes <= MOST_LOOKED_BYTES
    assert not store.stats


def test_nothing_is_read_if_the_listing_decides() -> None:
    store = FarStore({})
    tar = format_named("tar")
    small = estimate_indexing(many(8, 10 * MIB), store=store, format=tar)
    assert not small.takes_long
    large = estimate_indexing(many(40_000, 10 * MIB), store=store, format=tar)
    assert large.takes_long
    assert (large.least.num_requests, large.ways) == (40_000, {"unknown": 40_000})
    packed = estimate_indexing(many(1000, 1 << 30, ".tar.gz"), store=store, format=format_named("tar.gz"), looks=True)
    assert packed.takes_long
    assert packed.least.read_bytes == packed.most.read_bytes == 1000 << 30
    assert estimate_indexing(many(100, 1 << 30), store=store, format=tar, looks=False).takes_long
    assert not store.requests


def test_the_listing_leaves_open_what_a_look_decides() -> None:
    large = {f"{number}.tar": LargeTar([200_000_000] * 10) for number in range(20)}
    assert estimate_of(large, looks=False).takes_long
    found = estimate_of(large)
    assert (found.num_looked, found.takes_long, found.ways) == (3, False, {"headers": 20})
    small = {f"{number}.tar": LargeTar([100_000] * 2000) for number in range(20)}
    found = estimate_of(small)
    assert (found.num_looked, found.takes_long, found.ways) == (3, True, {"all bytes": 20})
    assert found.most.read_bytes == found.num_bytes


def test_machines_agree_whatever_their_network() -> None:
    shards = {f"{number}.tar": LargeTar([1_500_000] * 300) for number in range(32)}
    slow = FarStore(shards)
    slow.before = lambda *_: time.sleep(0.02)  # type: ignore[method-assign]
    fast_one, slow_one = estimate_of(shards, looks=True), estimate_of(shards, looks=True, store=slow)
    assert fast_one.usual_seconds == slow_one.usual_seconds
    assert fast_one.most.num_requests == slow_one.most.num_requests
    assert fast_one.least.seconds < slow_one.least.seconds
    assert slow_one.least.seconds >= 0.6 * 300 * 0.02  # the headers of a shard follow each other


def test_the_latency_and_bandwidth_that_are_known_are_used() -> None:
    found = estimate_indexing(
        many(64, 100 * MIB, ".tar.gz"),
        store=FarStore({}), format=format_named("tar.gz"), bytes_per_second=10 * MIB, request_seconds=0.5,
    )  # fmt: skip
    assert found.least.seconds == found.most.seconds == pytest.approx(640)


def test_the_longest_shard_is_waited_for() -> None:
    uneven = {f"{number}.tar": LargeTar([2_000_000] * (2000 if number == 7 else 10)) for number in range(32)}
    even = {f"{number}.tar": LargeTar([2_000_000] * 72) for number in range(32)}
    one = estimate_of(uneven, looks=True, request_seconds=0.02)
    assert one.least.seconds > 6 * estimate_of(even, looks=True, request_seconds=0.02).most.seconds / 2


def test_the_shards_that_are_looked_at_stand_for_equal_bytes() -> None:
    shards: dict[str, Contents] = {f"{number}.tar": LargeTar([100]) for number in range(100)}
    shards["large.tar"] = LargeTar([50_000_000] * 100)
    store = FarStore(shards)
    found = estimate_of(shards, store=store, looks=True)
    assert {path for path, _, _ in store.requests} == {"large.tar"}
    assert found.most.num_requests < 500


def test_indexes_of_other_tools_spare_the_scan() -> None:
    store, tar = FarStore({}), format_named("tar")
    tasks = [
        ScanTask(number, f"{number}.tar", f"{number}.tar", 1 << 30, "", index=(f"{number}.idx", 8 * 1000))
        for number in range(100)
    ]
    found = estimate_indexing(tasks, store=store, format=tar, looks=True)
    assert (found.ways, found.num_looked, found.takes_long) == ({"index of another tool": 100}, 0, False)
    assert found.most.read_bytes < 100 * 400_000
    assert not store.requests


def test_a_scan_by_an_index_takes_what_is_estimated() -> None:
    """Of members so far apart that each comparison is a request, and of shards so small that all of them is read."""
    for member_bytes, count in ((3_000_000, 60), (10_000, 100)):
        starts = np.arange(count + 1) * (512 + -(-member_bytes // 512) * 512)
        tar, beside = LargeTar([member_bytes] * count), starts.astype("<u8").tobytes()
        objects: dict[str, Contents] = {f"{number}.tar": tar for number in range(40)}
        tasks = [replace(task, index=(f"{task.path}.idx", len(beside))) for task in tasks_of(objects)]
        found = estimate_indexing(tasks, store=FarStore({}), format=format_named("tar"))
        reads = ScanReads(FarStore({**objects, **{f"{path}.idx": beside for path in objects}}), KnownCosts())
        list(scan_in_threads(tasks, format_named("tar"), reads, on_progress=lambda *_: None))
        # Scans side by side learn of each other how shards are best read, so some take a request more.
        assert found.most.num_requests / 2 <= reads.traffic.num_requests <= 1.1 * found.most.num_requests
        assert found.most.read_bytes / 2 <= reads.traffic.read_bytes <= 1.1 * found.most.read_bytes


def test_files_of_this_machine_are_read_without_requests(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(LargeTar([100_000] * 200)[:])
    size = (tmp_path / "a.tar").stat().st_size
    task = ScanTask(0, "a.tar", str(tmp_path / "a.tar"), size, "")
    tar = format_named("tar")
    found = estimate_indexing([task], store=LocalStore(), format=tar, looks=True)
    assert (found.num_looked, found.most.num_requests, found.takes_long) == (1, 0, False)
    assert found.most.read_bytes < size / 10
    assert "requests" not in str(found)
    large = estimate_indexing(many(1000, 1 << 30, ".jsonl.gz"), store=LocalStore(), format=format_named("jsonl.gz"))
    assert large.takes_long
    options: dict[str, Any] = {"store": LocalStore(), "format": format_named("jsonl.gz")}
    by_one, by_eight = (estimate_indexing(many(1000, 1 << 30), processors=n, **options) for n in (1, 8))
    assert by_one.least.seconds == pytest.approx(8 * by_eight.least.seconds)
    assert by_one.usual_seconds == by_eight.usual_seconds


def test_files_that_are_samples_are_not_read() -> None:
    found = estimate_indexing(many(10**5, 1 << 20, ".jpg"), store=FarStore({}), format=Folder(), looks=True)
    assert (found.most.num_requests, found.most.read_bytes, found.takes_long) == (0, 0, False)


def test_shards_that_cannot_be_scanned_do_not_stop_the_estimate() -> None:
    shards = {f"{number}.tar": b"no tar at all" * 500_000 for number in range(3)}
    found = estimate_of(shards, looks=True)
    assert found.most.read_bytes <= found.num_bytes


def test_a_shard_that_is_not_there_is_an_error() -> None:
    class Gone(FarStore):
        def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
            msg = f"{path}: no such object"
            raise StorageError(msg)

    store: Any = Gone({})
    with pytest.raises(StorageError, match="no such object"):
        estimate_indexing(many(3, 1 << 30), store=store, format=format_named("tar"), looks=True)


class ReadsAll(Format):
    """A format of a user's own that reads a shard in one go, and hides what goes wrong meanwhile."""

    name, suffixes = "all", (".all",)

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        try:
            read(0, num_bytes)
        except Exception as error:
            msg = f"{shard}: something is wrong"
            raise RuntimeError(msg) from error
        raise AssertionError

    def parse(self, buffer: object, span: object) -> Any:
        raise NotImplementedError


def test_a_format_of_ones_own_is_not_read_whole() -> None:
    shards = {f"{number}.all": LargeTar([1_000_000] * 50) for number in range(3)}
    store = FarStore(shards)
    found = estimate_of(shards, ReadsAll(), store=store, looks=True)
    assert found.least.read_bytes == found.num_bytes
    assert store.read_bytes <= MOST_LOOKED_BYTES


def test_an_error_of_a_format_is_raised() -> None:
    class Broken(ReadsAll):
        def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
            raise RuntimeError(shard)

    with pytest.raises(RuntimeError):
        estimate_of({"a.all": LargeTar([1_000_000] * 50)}, Broken(), looks=True)


def test_no_shards_take_no_time() -> None:
    none: Sequence[ScanTask] = []
    found = estimate_indexing(none, store=FarStore({}), format=format_named("tar"), looks=True)
    assert (found.num_shards, found.most.seconds, found.takes_long) == (0, 0.0, False)
