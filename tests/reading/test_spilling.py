"""Chunks that are too large for the window and cannot be read sample by sample: spilled decoded, or refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count as counting
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from tests.formats.writers import tar_of
from tests.storage.test_chunk_cache_processes import used_bytes
from tests.stream.faraway import SOON, Distant, far_away, faulty
from tests.stream.made import described

import shoal
from shoal.errors import ShardError, UsageError
from shoal.indexing.index_files import save_index
from shoal.reading.cache import spilled_pieces
from shoal.reading.schedule import memory_ledger, read_requests
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.chunk_cache.directory import FOLDER
from shoal.testing import Fault, RangeServer

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

COUNTS = (5, 5, 180, 5, 5, 5, 160, 5, 5, 5)
LARGE = 340  # samples of the two large ones


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "shoal"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"id": i, "text": f"{i} " * 40, "ragged": [i] * (i % 4), "pair": [0.5 * i, 2.0], "gap": i if i % 3 else None}
        for i in range(first, first + count)
    ]


def lines_of(written: list[dict[str, Any]]) -> bytes:
    return gzip.compress("".join(json.dumps(row) + "\n" for row in written).encode(), mtime=0)


def tar_gz_of(written: list[dict[str, Any]]) -> bytes:
    return gzip.compress(tar_of({f"{row['id']:05d}.json": json.dumps(row).encode() for row in written}), mtime=0)


def parquet_of(written: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(written), sink)
    return sink.getvalue()


def arrow_of(written: list[dict[str, Any]]) -> bytes:
    sink, table = io.BytesIO(), pa.Table.from_pylist(written)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


WRITERS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "jsonl.gz": lines_of,
    "tar.gz": tar_gz_of,
    "parquet": parquet_of,
    "arrow": arrow_of,
}


def write(directory: Path, kind: str, counts: tuple[int, ...] = COUNTS) -> Path:
    directory.mkdir(exist_ok=True)
    first = 0
    for shard, count in enumerate(counts):
        (directory / f"{shard}.{kind}").write_bytes(WRITERS[kind](rows(first, count)))
        first += count
    return directory


@pytest.fixture(scope="module", params=[*WRITERS])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "data", request.param)


def each_with_two_kinds(*values: Any) -> list[Any]:
    """Pairs of a kind and a value; those that are drills have both in other pairs."""
    return [
        pytest.param(kind, value, marks=[pytest.mark.drill] if (row + column) % 2 else [])
        for row, value in enumerate(values)
        for column, kind in enumerate(WRITERS)
    ]


def mean_bytes(ds: shoal.Dataset) -> float:
    return float(ds.stream.opened.index.extent_decoded_bytes.mean())


def cached(source: Any, tmp_path: Path, budget: Any = "64MiB") -> shoal.Dataset:
    return shoal.open(source, cache={"directory": tmp_path / "cache", "budget": budget})


def narrow(ds: shoal.Dataset, chunks: float = 2.2) -> shoal.Dataset:
    """With a window that has room for two chunks of the mean size, and so not for the large ones; or for less."""
    return ds.shuffle(seed=1, window=int(chunks * mean_bytes(ds)))


def by_count(source: Any) -> shoal.Dataset:
    """The same order asked for in chunks: that promises no bytes."""
    return shoal.open(source).shuffle(shoal.orders.Window(chunks=2), seed=1)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return (str(value.dtype), value.tolist()) if isinstance(value, np.ndarray) else value


def delivered(ds: shoal.Dataset) -> list[Any]:
    return [plain(sample) for sample in ds]


@pytest.fixture(scope="module")
def expected(data: Path) -> list[Any]:
    """What is delivered where nothing is spilled."""
    return delivered(by_count(data))


@pytest.mark.parametrize(("data", "chunks"), each_with_two_kinds(2.2, 0.6), indirect=["data"])
def test_spilled_or_not_the_samples_are_the_same(
    data: Path, expected: list[Any], tmp_path: Path, chunks: float
) -> None:
    ds = narrow(cached(data, tmp_path), chunks)
    assert delivered(ds) == expected
    stats = ds.stats()
    large = ds.stream.opened.index.extent_decoded_bytes > chunks * mean_bytes(ds) / 2
    assert stats["num_spills"] == large.sum() == 2
    assert stats["num_spill_reads"] == LARGE
    assert stats["num_spill_bypasses"] == 0
    assert stats["spilled_bytes"] > 0.8 * ds.stream.opened.index.extent_decoded_bytes[large].sum()
    assert stats["peak_held_bytes"] < 3 * mean_bytes(ds)
    second = narrow(cached(data, tmp_path), chunks)
    assert delivered(second) == expected
    assert second.stats()["num_spills"] == 0
    assert second.stats()["read_bytes"] < stats["read_bytes"] / 2


@pytest.mark.parametrize("form", ["python", "numpy", "arrow", None])
def test_batches_are_the_same(tmp_path: Path, form: str | None) -> None:
    for kind in ("parquet", "jsonl.gz"):
        source = write(tmp_path / kind.replace(".", "-"), kind)
        if form == "arrow" and kind != "parquet":
            continue
        pair = [by_count(source).batch(16), narrow(cached(source, tmp_path)).batch(16)]
        with_form = [ds if form is None else ds.format(form) for ds in pair]
        for one, other in zip(*with_form, strict=True):
            assert one.equals(other) if form == "arrow" else plain(one) == plain(other)
        chosen = [ds.columns("ragged", "id").batch(8) for ds in (by_count(source), narrow(cached(source, tmp_path)))]
        assert delivered(chosen[0]) == delivered(chosen[1])


def test_ranks_share_what_is_spilled_and_states_go_on(data: Path, expected: list[Any], tmp_path: Path) -> None:
    expected_batches = delivered(by_count(data).batch(global_batch_size=12).partition(rank=1, world_size=3))
    ranks = [
        narrow(cached(data, tmp_path)).batch(global_batch_size=12).partition(rank=rank, world_size=3)
        for rank in range(3)
    ]
    batches = [delivered(rank) for rank in ranks]
    assert batches[1] == expected_batches
    assert sum(rank.stats()["num_spills"] for rank in ranks) == 2
    half = narrow(cached(data, tmp_path))
    begun = iter(half)
    first = [plain(next(begun)) for _ in range(100)]
    rest = narrow(cached(data, tmp_path))
    rest.load_state_dict(half.state_dict())
    assert first + delivered(rest) == expected


def test_with_a_limit_of_memory(data: Path, expected: list[Any], tmp_path: Path) -> None:
    ds = cached(data, tmp_path).shuffle(shoal.orders.Window(chunks=2), seed=1)
    large = int(ds.resolved.chunks.decoded_bytes.max())
    small = ds.reading(memory_limit=2 * large)
    assert delivered(small) == expected
    assert small.stats()["num_spills"] == 2
    assert small.stats()["peak_held_bytes"] <= 2 * large
    with pytest.raises(UsageError, match="memory_limit="):
        delivered(by_count(data).reading(memory_limit=2 * large))


# ---- the cache fails


def test_what_the_cache_lost_is_decoded_again(data: Path, expected: list[Any], tmp_path: Path) -> None:
    ds = narrow(cached(data, tmp_path))
    got = []
    for number, sample in enumerate(ds):
        got.append(plain(sample))
        if number % 30 == 15:
            for path in (tmp_path / "cache" / FOLDER / "chunks").iterdir():
                path.unlink()
    assert got == expected
    assert ds.stats()["num_spills"] > 2


def test_what_the_cache_cannot_take_is_decoded_in_memory(
    data: Path, expected: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "the disk is full")

    ds = narrow(cached(data, tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert delivered(ds) == expected
    assert ds.stats()["num_spill_bypasses"] == LARGE
    assert ds.stats()["num_spills"] == 0


def test_what_is_pushed_out_again_and_again_is_left_alone(
    data: Path, expected: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where jobs with other orders need the same cache: to decode for each sample would be the end of them."""
    ds = narrow(cached(data, tmp_path))
    cache = ds.stream.opened.cache
    assert cache is not None
    read_spilled = cache.read_spilled

    def forgetful(*args: Any, **more: Any) -> Any:
        for path in (tmp_path / "cache" / FOLDER / "chunks").iterdir():
            path.unlink()
        return read_spilled(*args, **more)

    monkeypatch.setattr(cache, "read_spilled", forgetful)
    assert delivered(ds) == expected
    assert ds.stats()["num_spills"] == 2 * spilled_pieces._MOST_SPILLS
    assert ds.stats()["num_spill_bypasses"] == LARGE - 2 * spilled_pieces._MOST_SPILLS


@pytest.mark.parametrize("ranks_here", [1, 2])
def test_two_of_the_largest_must_have_room(
    data: Path, tmp_path: Path, ranks_here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks_here))
    ds = narrow(cached(data, tmp_path)).partition(rank=0, world_size=2)
    decoded = np.sort(ds.stream.opened.index.extent_decoded_bytes)
    assert ds.stream.opened.cache is not None
    ds.stream.opened.cache._files.budget_bytes = int(decoded[-2:].sum())
    with pytest.raises(UsageError, match=r"(?s)windows of this machine.*the largest chunks alone take \d"):
        iter(ds)
    ds.stream.opened.cache._files.budget_bytes = int(1.2 * decoded[-2:].sum())
    iter(ds)


def test_a_budget_below_what_the_window_holds_is_refused(data: Path, tmp_path: Path) -> None:
    ds = narrow(cached(data, tmp_path), 0.3)
    ds.stream.opened.cache._files.budget_bytes = int(mean_bytes(ds))  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="windows of this machine"):
        iter(ds)


# ---- damage and faults


@pytest.mark.parametrize("kind", ["parquet", "jsonl.gz"])
def test_damage_loses_the_same_samples(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path / "data", kind)
    plain_ds, spilled = by_count(source), narrow(cached(source, tmp_path))
    path = source / f"2.{kind}"
    stored, status = path.read_bytes(), path.stat()
    path.write_bytes(stored[: len(stored) // 2] + bytes(50) + stored[len(stored) // 2 + 50 :])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ShardError) as caught:
        delivered(spilled)
    assert f"2.{kind}" in str(caught.value)
    skipping = [ds.reading(on_error="skip") for ds in (plain_ds, narrow(cached(source, tmp_path)))]
    assert delivered(skipping[0]) == delivered(skipping[1])
    assert skipping[0].stats()["num_skipped"] == skipping[1].stats()["num_skipped"] == COUNTS[2]
    assert spilled.stats()["num_spills"] + skipping[1].stats()["num_spills"] == 1, "what is damaged is not kept"


def test_samples_that_are_damaged_alone(tmp_path: Path) -> None:
    source = write(tmp_path / "data", "jsonl.gz")
    lines = gzip.decompress((source / "2.jsonl.gz").read_bytes()).split(b"\n")
    lines[50] = b"no JSON"
    (source / "2.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    skipping = [ds.reading(on_error="skip") for ds in (by_count(source), narrow(cached(source, tmp_path)))]
    assert delivered(skipping[0]) == delivered(skipping[1])
    assert skipping[0].stats()["skipped_ids"] == skipping[1].stats()["skipped_ids"] == [60]


@pytest.mark.parametrize(("data", "whole_bytes"), each_with_two_kinds(0, 1 << 30), indirect=["data"])
def test_from_far_away_with_faults(
    data: Path, expected: list[Any], tmp_path: Path, whole_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilled_pieces, "_WHOLE_BYTES", whole_bytes)
    store = faulty(
        Fault("reset", probability=0.1), Fault("status", probability=0.1), Fault("truncate", probability=0.1)
    )
    ds = narrow(cached(data, tmp_path))
    ds = far_away(ds, store, rule=SOON)
    assert delivered(ds) == expected
    stats = ds.stats()
    assert stats["num_spills"] == 2
    assert stats["num_retries"] > 0


@pytest.mark.parametrize(("data", "whole_bytes"), each_with_two_kinds(0, 1 << 30), indirect=["data"])
def test_bytes_that_are_lost_on_the_way_are_asked_for_again(
    data: Path, expected: list[Any], tmp_path: Path, whole_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With checksums every flipped byte shows, also of pieces that are spilled."""
    monkeypatch.setattr(spilled_pieces, "_WHOLE_BYTES", whole_bytes)
    ds = cached(data, tmp_path)
    index = ds.stream.opened.index
    crcs = np.array([crc32(_extent(data, index, e)) for e in range(index.num_extents)], dtype=np.uint32)
    ds = described(ds, source=replace(ds.stream.opened, index=replace(index, extent_checksum=crcs)))
    ds = far_away(narrow(ds), faulty(Fault("corrupt", probability=0.2)), rule=SOON)
    assert delivered(ds) == expected
    assert ds.stats()["num_corrupt"] > 0


@dataclass
class Watching(Distant):
    """Notes how many requests are under way when one for the large shard begins, and what is held of others."""

    at_a_time: list[int] = field(default_factory=list)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        if end_byte and Path(path).name.startswith("20."):
            self.at_a_time.append(self.now + 1)
        return super().read_range(path, first_byte, end_byte)


def test_parts_of_a_piece_come_at_a_time_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though what comes after it would fill the room."""
    monkeypatch.setattr(spilled_pieces, "_WHOLE_BYTES", 4096)
    monkeypatch.setattr(memory_ledger, "_LEAST_BYTES", 1 << 12)
    monkeypatch.setattr(read_requests, "_LEAST_REQUEST_BYTES", 1 << 10)
    monkeypatch.setattr(read_requests, "_MOST_REQUEST_BYTES", 1 << 10)
    source = write(tmp_path / "data", "arrow", (10,) * 20 + (500,) + (10,) * 20)
    over_bytes, reserve = [0], MemoryBudget.reserve

    def watched(ledger: MemoryBudget, num_bytes: int) -> None:
        reserve(ledger, num_bytes)
        over_bytes.append(ledger.ahead_bytes - ledger.ahead_limit_bytes)

    monkeypatch.setattr(MemoryBudget, "reserve", watched)
    ds = far_away(cached(source, tmp_path).shuffle(seed=1, window=60_000), store := Watching([0.001]))
    assert sorted(sample["id"] for sample in ds) == list(range(900))
    assert ds.stats()["num_spills"] == 1
    assert max(over_bytes) == 0
    assert statistics.median(store.at_a_time) >= 6, "of 8 that may be under way to begin with"


class Lossy(Distant):
    """The first answer to each request for more than ``least_bytes`` has a byte that is wrong."""

    least_bytes = 0

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        is_first = (path, first_byte, end_byte) not in self.requests
        data = super().read_range(path, first_byte, end_byte)
        middle = len(data) // 2
        is_wrong = is_first and len(data) > self.least_bytes
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if is_wrong else data


@pytest.mark.parametrize("whole_bytes", [0, 1 << 30])
def test_without_checksums_who_decodes_notices_and_no_cache_keeps_what_was_wrong(
    tmp_path: Path, whole_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilled_pieces, "_WHOLE_BYTES", whole_bytes)
    data = write(tmp_path / "data", "jsonl.gz")
    ds, store = narrow(cached(data, tmp_path)), Lossy()
    index = ds.stream.opened.index
    store.least_bytes = int(np.sort(index.extent_end_byte - index.extent_first_byte)[-3])
    ds = far_away(ds, store, rule=SOON)
    assert delivered(ds) == delivered(by_count(data))
    stats = ds.stats()
    assert (stats["num_corrupt"], stats["num_spills"]) == (2, 2)
    assert stats["num_cache_fills"] == index.num_extents - 2, "what is spilled is kept once"


def _extent(data: Path, index: Any, extent: int) -> bytes:
    stored = (data / index.shard_names[index.extent_shard[extent]]).read_bytes()
    return stored[index.extent_first_byte[extent] : index.extent_end_byte[extent]]


@pytest.fixture
def server(data: Path) -> Iterator[RangeServer]:
    with RangeServer({path.name: path.read_bytes() for path in data.iterdir()}) as running:
        yield running


def test_over_http_each_piece_comes_once(data: Path, expected: list[Any], server: RangeServer, tmp_path: Path) -> None:
    suffix = next(data.iterdir()).name.partition(".")[2]
    url = server.url_of(f"0.{suffix}").replace("/0.", "/{0..9}.")
    ds = narrow(cached(url, tmp_path))
    assert delivered(ds) == expected
    assert ds.stats()["num_spills"] == 2
    assert ds.stats()["requested_bytes"] <= 1.02 * ds.stream.opened.index.num_bytes


# ---- refused


def test_without_a_cache_it_is_refused_with_the_smallest_window_that_works(data: Path, tmp_path: Path) -> None:
    ds = narrow(shoal.open(data))
    with pytest.raises(UsageError, match=r"can only be decoded together, to .*half of the window") as caught:
        iter(ds)
    assert re.search(r"\b2\.\w+", caught.value.message)
    assert "cache= in shoal.open()" in caught.value.hint
    assert "repack" in caught.value.hint
    window = re.search(r'window="(\d+MiB)" or more', caught.value.hint)
    assert window is not None
    assert len(delivered(shoal.open(data).shuffle(seed=1, window=window[1]))) == sum(COUNTS)


def test_a_window_for_less_than_two_chunks_needs_a_cache(data: Path) -> None:
    with pytest.raises(UsageError, match="at least 2") as caught:
        narrow(shoal.open(data), 1.5)
    assert "cache=" in caught.value.hint
    window = re.search(r"window=(\d+) or more", caught.value.hint)
    assert window is not None
    assert len(delivered(shoal.open(data).shuffle(seed=1, window=int(window[1])))) == sum(COUNTS)


def test_a_limit_that_is_too_small_names_the_cache_where_it_would_help(data: Path) -> None:
    limited = narrow(shoal.open(data)).reading(memory_limit=1000)
    with pytest.raises(UsageError, match=r"(?s)memory_limit=1000.*; or cache= in shoal\.open"):
        iter(limited)


@pytest.mark.parametrize(("kind", "counts"), each_with_two_kinds((50, 50, 50, 80), (60, 60, 70), (200,), (200, 10)))
def test_what_has_room_or_nearly_is_not_refused(tmp_path: Path, counts: tuple[int, ...], kind: str) -> None:
    source = write(tmp_path / "data", kind, counts)
    ds = shoal.open(source)
    total = int(ds.stream.opened.index.extent_decoded_bytes.sum())
    windows = [total, 10 * total, None] + ([int(2.05 * mean_bytes(ds))] if len(counts) > 2 else [])
    for window in windows:
        assert len(list(ds.shuffle(seed=1, window=window))) == sum(counts)
        spilled = cached(source, tmp_path).shuffle(seed=1, window=window)
        assert len(list(spilled)) == sum(counts)
        if window is None or window >= total:
            assert spilled.stats()["num_spills"] == 0


def test_what_promises_no_bytes_is_not_refused(data: Path) -> None:
    assert len(delivered(by_count(data))) == sum(COUNTS)
    for order in ("none", "block", "buffer", "full"):
        next(iter(shoal.open(data).shuffle(order, seed=1)))
    wide = shoal.open(data).shuffle(seed=1, window="64MiB")
    begun = iter(wide)
    next(begun)
    resumed = narrow(shoal.open(data))
    resumed.load_state_dict(wide.state_dict())  # whose numbers win over the request in bytes
    assert len(delivered(resumed)) == sum(COUNTS) - 1


# ---- memory

SCRIPT = """
    import json, sys
    sys.path[:0] = {path!r}
    import pyarrow.parquet, shoal
    ds = shoal.open({data!r}, index={index!r}, cache={cache!r}).shuffle(seed=1, window="16MiB")
    def kib(name):
        return int(dict(line.split(":", 1) for line in open("/proc/self/status"))[name].split()[0])
    before, total = kib("VmRSS"), 0
    for number, sample in enumerate(ds):
        total += sample["id"]
        if number == 3000:
            break
    print(json.dumps({{"mib": (kib("VmHWM") - before) >> 10, "total": total, **ds.stats()}}))
"""


@pytest.mark.drill
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize("kind", ["parquet", "jsonl.gz"])
def test_the_peak_is_the_window_and_a_constant(tmp_path: Path, kind: str) -> None:
    dice = np.random.default_rng(1)
    data = tmp_path / "data"
    data.mkdir()
    for shard in range(2):
        if kind == "parquet":
            values = pa.FixedSizeListArray.from_arrays(pa.array(dice.random(6_000_000)), 600)
            table = pa.table({"id": np.arange(10_000), "values": values})
            pq.write_table(table, data / f"{shard}.parquet", row_group_size=10_000, compression="none")
        else:
            pad = "x" * 9000
            lines = "".join(json.dumps({"id": number, "pad": pad}) + "\n" for number in range(5000))
            (data / f"{shard}.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 1))
    opened = shoal.open(data).stream.opened
    assert (opened.index.extent_decoded_bytes > 40 << 20).all()
    index = save_index(opened.index, tmp_path / "x.index", store=opened.store)
    source = [str(Path(__file__).parents[2] / "src")]
    cache = {"directory": str(tmp_path / "cache"), "budget": "256MiB"}
    script = SCRIPT.format(path=source, data=str(data), index=index, cache=cache)
    command = [sys.executable, "-c", "\n".join(line[4:] for line in script.splitlines())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    measured = json.loads(done.stdout)
    print(measured)
    assert measured["num_spills"] == 2
    assert measured["mib"] <= 16 + 48


KILLED = """
import json, sys, warnings
sys.path[:0] = {path!r}
warnings.simplefilter("ignore")
import shoal
ds = shoal.open({data!r}, cache={cache!r}).shuffle(seed=int(sys.argv[1]) % 3, window={window})
ids = []
for sample in ds:
    assert sample["text"] == f"{{sample['id']}} " * 40
    ids.append(sample["id"])
print(json.dumps(ids == ds.ids().tolist()), flush=True)
"""


@pytest.mark.soak
def test_killed_at_random_nothing_wrong_is_read_and_nothing_left(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "parquet", (100, 100, 6000, 100, 5000, 100, 7000, 100, 100, 100))
    ds = shoal.open(data)
    budget = int(9 * mean_bytes(ds))
    cache = {"directory": str(tmp_path / "cache"), "budget": budget}
    source = [str(Path(__file__).parents[2] / "src")]
    script = KILLED.format(path=source, data=str(data), cache=cache, window=int(2.2 * mean_bytes(ds)))

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(next(numbers))]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    numbers, dice, num_kills, peak_bytes = counting(), random.Random(1), 40, 0
    folder = tmp_path / "cache" / FOLDER
    running = [start() for _ in range(4)]
    while running:
        time.sleep(0.3 * dice.random())
        peak_bytes = max(peak_bytes, used_bytes(folder) if folder.is_dir() else 0)
        if num_kills:
            victim = running.pop(dice.randrange(len(running)))
            victim.kill()
            victim.communicate()
            num_kills -= 1
            running.append(start())
        for process in [one for one in running if one.poll() is not None]:
            running.remove(process)
            said, complaints = process.communicate()
            assert (process.returncode, said) == (0, "true\n"), complaints
    assert 0 < peak_bytes <= budget
    again = ChunkCache(tmp_path / "cache", budget_bytes=budget)
    assert not list((folder / "filling").iterdir())
    with again._ledger.held() as book:
        counted = book.used_bytes
        again._ledger._count(book)
        assert book.used_bytes == counted
