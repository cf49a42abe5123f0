"""Damaged samples that are skipped: nothing else is missing, no order moves, and every rank keeps step."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.made import (
    at,
    batches_of,
    check_sample,
    described,
    flat,
    ids_of,
    open_finely,
    repeats_of,
    write_lines,
    write_tars,
)

from shoal.errors import ShardError, StorageError, UsageError
from shoal.index.table import locate
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.index_files import save_index
from shoal.orders import Block, Buffer, Full, Sequential, Window
from shoal.pipeline import quarantine as skips
from shoal.reading.checks import checked_reads
from shoal.reading.fetcher import Fetcher
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.units import extent_read
from shoal.stats.counters import Counters
from shoal.storage.files import atomic_writes
from shoal.storage.files.local_store import LocalStore
from shoal.storage.retry import RetryControl, retry_control
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ORDERS = [Sequential(), Full(), Window(chunks=6, num_canonical_nodes=2), Block(chunks=4), Buffer(samples=30)]
NUM = 61


class Shards:
    """Shards of 61 samples, some of which can be damaged for a while."""

    def __init__(self, directory: Path, write: Callable[[Path, Sequence[int]], Path]) -> None:
        self.directory = directory
        self.whole = open_finely(write(directory / "data", [20, 33, 8]), extent_bytes=9000)
        self.is_tar = write is write_tars
        opened = self.whole.stream.opened
        self.checksums = extent_checksums(opened.index, opened.paths, store=opened.store, check=opened.check.check)

    def open(self, *, sizes: bool = True, checksums: bool = False) -> Dataset:
        """The dataset, to be read anew."""
        index = self.whole.stream.opened.index
        if not sizes:
            index = replace(index, sample_bytes=None)
        if checksums:
            index = replace(index, extent_checksum=self.checksums)
        path = save_index(index, self.directory / "fine.index", store=self.whole.stream.opened.store)
        return open_dataset(self.directory / "data", index=path)

    @contextmanager
    def damaged(self, ids: Sequence[int], *, at_end: bool = False) -> Iterator[None]:
        """Damage these samples so that nothing about the files tells."""
        opened = self.whole.stream.opened
        numbers, first_bytes, end_bytes = locate(opened.index, list(ids))
        before = {shard: Path(opened.paths[shard]).read_bytes() for shard in set(numbers.tolist())}
        after = {shard: bytearray(data) for shard, data in before.items()}
        for shard, first, end in zip(numbers.tolist(), first_bytes.tolist(), end_bytes.tolist(), strict=True):
            after[shard][end - 1 if at_end else first + 3 * self.is_tar] ^= 0x55
        self._write(after)
        try:
            yield
        finally:
            self._write(before)

    def _write(self, shards: dict[int, Any]) -> None:
        for shard, data in shards.items():
            path = Path(self.whole.stream.opened.paths[shard])
            times = path.stat()
            path.write_bytes(data)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture(scope="module")
def tar_shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return Shards(tmp_path_factory.mktemp("tars"), write_tars)


@pytest.fixture(scope="module")
def line_shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return Shards(tmp_path_factory.mktemp("lines"), write_lines)


@pytest.fixture(params=["tar_shards", "line_shards"])
def shards(request: pytest.FixtureRequest) -> Shards:
    found: Shards = request.getfixturevalue(request.param)
    return found


def skipping(ds: Dataset, quarantine: Path | None = None, memory_limit: int | None = None) -> Dataset:
    return ds.reading(on_error="skip", quarantine=quarantine, memory_limit=memory_limit)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_what_is_damaged_is_left_out_and_nothing_else(order: Any, threads: bool, shards: Shards) -> None:
    damaged = [0, 7, 19, 20, 44, 60]
    with shards.damaged(damaged):
        ds = shards.open().shuffle(order, seed=3)
        vars(ds.stream.opened.store)["reads_ahead"] = not threads
        ds = skipping(ds)
        expected = [number for number in ds.ids().tolist() if number not in damaged]
        assert ids_of(ds) == expected
        stats = ds.stats()
        assert (stats["num_skipped"], sorted(stats["skipped_ids"])) == (6, damaged)
        assert (stats["num_samples"], stats["num_filtered"]) == (NUM - 6, 0)
        with pytest.raises(ShardError):
            list(shards.open().shuffle(order, seed=3))


@pytest.mark.parametrize("sizes", [True, False])
def test_without_sizes_a_damaged_sample_takes_its_extent_along(sizes: bool, tar_shards: Shards) -> None:
    index = tar_shards.whole.stream.opened.index
    extent = int(np.searchsorted(index.extent_first_sample, 30, side="right")) - 1
    around = set(range(int(index.extent_first_sample[extent]), int(index.extent_first_sample[extent + 1])))
    assert len(around) > 1
    with tar_shards.damaged([30]):
        for order in (Sequential(), Full()):
            ds = skipping(tar_shards.open(sizes=sizes).shuffle(order, chunk=None if order.name == "full" else "40KiB"))
            assert set(range(NUM)) - set(ids_of(ds)) == ({30} if sizes else around)


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("chunk", ["9KB", "40KB"])
def test_a_wrong_checksum_costs_the_extent(
    chunk: str, is_remote: bool, tar_shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_reads, "_MOST_MISMATCHES", 2)
    index = tar_shards.whole.stream.opened.index
    extent = int(np.searchsorted(index.extent_first_sample, 30, side="right")) - 1
    around = set(range(int(index.extent_first_sample[extent]), int(index.extent_first_sample[extent + 1])))
    with tar_shards.damaged([30], at_end=True):  # in the padding of a member, which no format looks at
        for batch in (None, 1):
            ds = tar_shards.open(checksums=True).shuffle(Window(chunks=4), seed=1, chunk=chunk)
            monkeypatch.setattr(ds.stream.opened.store, "reads_ahead", not is_remote)
            if not is_remote:
                assert sorted(ids_of(ds)) == list(range(NUM))  # a file of this machine is believed
            ds = ds.reading(on_error="skip", verify="arrival" if is_remote else "always")
            if batch is None:
                assert set(range(NUM)) - set(ids_of(ds)) == around
                assert set(ds.stats()["skipped_ids"]) == around
            else:
                found = [pairs_of(one)[0] for one in ds.batch(1)]
                assert not around & {number for number, _ in found}
                assert sum(again for _, again in found) == len(around)
    assert len(around) > 1


def test_what_lies_damaged_far_away_is_found_out_once(tar_shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not anew for each sample of an extent, where each is read with all of it."""
    ds = tar_shards.open(checksums=True)
    monkeypatch.setattr(ds.stream.opened.store, "reads_ahead", False)
    index, counters = ds.stream.opened.index, Counters()
    traffic = RequestStats(counters)
    read = extent_read(index, int(np.searchsorted(index.extent_first_sample, 30, side="right")) - 1)

    def num_attempts() -> int:
        before = counters.num_corrupt
        with (
            retry_control(RetryControl(lambda _: False, lambda _: None)),
            pytest.raises(ShardError, match="of 5 attempts"),
        ):
            checked_reads.read_unit(ds.stream.opened, read, stats=traffic)
        return counters.num_corrupt - before

    with tar_shards.damaged([30], at_end=True):
        assert [num_attempts() for _ in range(3)] == [5, 1, 1]
    checked_reads.read_unit(ds.stream.opened, read, stats=traffic)
    with tar_shards.damaged([30], at_end=True):
        assert num_attempts() == 5


def test_a_line_that_swallowed_its_end_costs_one_sample(line_shards: Shards) -> None:
    with line_shards.damaged([11], at_end=True):
        ds = skipping(line_shards.open())
        with pytest.raises(ShardError, match="the index says that a line ends here"):
            list(line_shards.open())
        assert ids_of(ds) == [number for number in range(NUM) if number != 11]


def test_an_unusual_sample_beside_a_damaged_one_is_kept(tmp_path: Path) -> None:
    """What is no plain member makes its whole chunk be looked through, in which another sample is damaged."""
    import io
    import tarfile

    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(6):
            member = tarfile.TarInfo(f"{number}{'é' * 80 if number == 3 else ''}.txt")
            member.size = 4
            tar.addfile(member, io.BytesIO(b"text"))
    index = open_dataset(path).stream.opened.index
    kept = save_index(index, tmp_path / "x.index", store=open_dataset(path).stream.opened.store)
    data, times = bytearray(path.read_bytes()), path.stat()
    data[3] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    ds = open_dataset(path, index=kept).reading(on_error="skip")
    assert [sample["__key__"][0] for sample in ds] == ["1", "2", "3", "4", "5"]


# ---- ranks, batches, states


def run_of(ds: Dataset, rank: int, world_size: int, start: dict[str, Any]) -> tuple[list[Any], list[tuple[int, int]]]:
    """All batches of a rank, and where it was after each."""
    part = ds.partition(rank=rank, world_size=world_size)
    part.load_state_dict(start)
    iterator = iter(part)
    found, places = [], []
    for batch in iterator:
        found.append(batch)
        places.append(at(iterator))
    return found, places


@settings(max_examples=12)
@given(
    damaged=st.sets(st.integers(0, NUM - 1), max_size=30) | st.integers(0, 40).map(lambda a: set(range(a, a + 21))),
    world_size=st.integers(1, 5),
    batch=st.integers(1, 9),
    order=st.sampled_from(ORDERS),
    remainder=st.sampled_from(["keep", "pad", "drop"]),
    begin=st.integers(0, NUM - 1),
    with_file=st.booleans(),
    memory_limit=st.sampled_from([None, 12_000, 20_000]),
)
@pytest.mark.parametrize("is_tar", [True, False])
def test_every_rank_keeps_step(
    is_tar: bool,
    damaged: set[int],
    world_size: int,
    batch: int,
    order: Any,
    remainder: str,
    begin: int,
    with_file: bool,
    memory_limit: int | None,
    tar_shards: Shards,
    line_shards: Shards,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    shards = tar_shards if is_tar else line_shards
    file = tmp_path_factory.mktemp("quarantine") / "bad.jsonl"
    chunk = None if order.name == "full" else "9KB"
    whole = shards.open().shuffle(order, seed=5, chunk=chunk).batch(batch, remainder=remainder)
    start = whole.state_at(begin)
    clean = [run_of(whole, rank, world_size, start) for rank in range(world_size)]
    due = {number for batches, _ in clean for full in batches for number, again in pairs_of(full) if not again}
    met = {number for batches, _ in clean for full in batches for number, _ in pairs_of(full)}
    with shards.damaged(sorted(damaged)):
        for _ in range(2):  # the second time, the file knows
            ds = shards.open().shuffle(order, seed=5, chunk=chunk).batch(batch, remainder=remainder)
            ds = skipping(ds, file if with_file else None, memory_limit)
            delivered: list[int] = []
            for rank, (batches, clean_places) in enumerate(clean):
                found, places = run_of(ds, rank, world_size, start)
                assert places == clean_places
                for got, full in zip(found, batches, strict=True):
                    expected = [pair for pair in pairs_of(full) if pair[0] not in damaged]
                    if expected:
                        assert pairs_of(got) == expected
                    else:
                        assert [again for _, again in pairs_of(got)] == [True]
                        assert pairs_of(got)[0][0] not in damaged
                    delivered += [number for number, again in pairs_of(got) if not again]
            assert sorted(delivered) == sorted(due - damaged)
            assert listed(file) == ((damaged & met) if with_file else set())


def pairs_of(batch: dict[str, Any]) -> list[tuple[int, bool]]:
    return list(zip(batches_of([batch])[0], repeats_of(batch), strict=True))


def listed(file: Path) -> set[int]:
    if not file.exists():
        return set()
    return {json.loads(line)["id"] for line in file.read_text().splitlines()}


@pytest.mark.parametrize("batch", [None, 6])
def test_a_run_resumes_exactly_with_and_without_the_file(batch: int | None, shards: Shards, tmp_path: Path) -> None:
    damaged = [3, 4, 5, 6, 7, 8, 9, 30, 31, 59]

    def stream(quarantine: Path | None) -> Dataset:
        ds = skipping(shards.open().shuffle("full", seed=2), quarantine)
        return ds if batch is None else ds.batch(batch)

    def told(ds: Any) -> list[Any]:
        return ids_of(ds) if batch is None else [pairs_of(found) for found in ds]

    with shards.damaged(damaged):
        expected = told(stream(None))
        for stop in (1, 3, 8):
            for first, second in [(None, None), (None, "b"), ("a", None), ("a", "a")]:
                ds = stream(None if first is None else tmp_path / first)
                iterator = iter(ds)
                begun = [next(iterator) for _ in range(stop)]
                rest = stream(None if second is None else tmp_path / second)
                rest.load_state_dict(ds.state_dict())
                assert told(begun) + told(rest) == expected


def test_a_batch_of_damage_holds_the_nearest_sample_before_it(tar_shards: Shards) -> None:
    with tar_shards.damaged(range(10, 20)):
        batches = list(skipping(tar_shards.open().batch(5)))
    assert [pairs_of(batch) for batch in batches[2:4]] == [[(9, True)], [(9, True)]]


def test_all_damaged_is_an_error(tar_shards: Shards) -> None:
    with tar_shards.damaged(range(NUM)):
        with pytest.raises(UsageError, match="all 61 samples of the epoch are damaged"):
            next(iter(skipping(tar_shards.open()).batch(5)))
        assert list(skipping(tar_shards.open())) == []


def test_filters_and_damage_together(tar_shards: Shards) -> None:
    with tar_shards.damaged([1, 2, 5]):
        ds = skipping(tar_shards.open().filter(lambda sample: int(sample["cls"]) % 2 == 0)).batch(4)
        assert batches_of(ds)[:3] == [[0], [4, 6], [8, 10]]
        assert ds.stats()["num_skipped"] == 3
        assert ds.stats()["num_filtered"] == NUM // 2 - 2
        assert ds.stats()["num_samples"] == NUM // 2 + 1 - 1


# ---- decode


def test_what_cannot_be_decoded_is_damaged(tar_shards: Shards, tmp_path: Path) -> None:
    def odd(data: bytes) -> int:
        if int(data) % 10 == 3:
            msg = "no three"
            raise LookupError(msg)
        return int(data)

    ds = tar_shards.open().decode({"cls": odd})
    with pytest.raises(LookupError):
        list(ds)
    file = tmp_path / "bad.jsonl"
    found = skipping(ds, file)
    assert [sample["cls"] for sample in found] == [number for number in range(NUM) if number % 10 != 3]
    assert listed(file) == set(range(3, NUM, 10))
    assert json.loads(file.read_text().splitlines()[0])["error"] == "LookupError: no three"
    assert len(list(skipping(ds, file).batch(7))) == -(-NUM // 7)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), ImportError("x"), NameError("x"), ConnectionResetError("x"), TimeoutError("x"), UsageError("x")],
)
def test_errors_that_say_nothing_of_the_data_are_raised(error: Exception, tar_shards: Shards) -> None:
    def failing(_: bytes) -> Any:
        raise error

    with pytest.raises(type(error)):
        list(skipping(tar_shards.open().decode({"cls": failing})))


@pytest.mark.parametrize("verb", ["map", "filter"])
def test_errors_of_functions_are_never_skipped(verb: str, tar_shards: Shards) -> None:
    def failing(sample: Any) -> Any:
        raise ShardError("mine", shard="a.tar", byte=3)

    ds = getattr(tar_shards.open(), verb)(failing)
    with pytest.raises(ShardError, match="mine"):
        list(skipping(ds))
    with pytest.raises(UsageError, match="needs samples that are dicts"):
        list(skipping(tar_shards.open().to_tuple("cls").map(lambda s: s).map(tuple).decode()))


@pytest.mark.parametrize("order", ["none", "full"])
def test_storage_and_changed_shards_are_never_skipped(order: str, tmp_path: Path) -> None:
    data = write_tars(tmp_path / "data", [20, 20])
    index = open_dataset(data).stream.opened.index
    kept = save_index(index, tmp_path / "x.index", store=open_dataset(data).stream.opened.store)
    victim = sorted(data.iterdir())[1]
    ds = open_dataset(data, index=kept).shuffle(order)
    victim.write_bytes(victim.read_bytes()[2048:] + bytes(2048))
    with pytest.raises(ShardError, match="not the one that was indexed"):
        list(skipping(ds))
    victim.unlink()
    with pytest.raises(StorageError):
        list(skipping(ds))


def test_a_sample_asked_for_by_id_is_never_skipped(shards: Shards) -> None:
    with shards.damaged([4]):
        ds = skipping(shards.open())
        with pytest.raises(ShardError):
            ds[4]
        assert check_sample(ds[5]) == 5
        assert ds.ids().tolist() == list(range(NUM))


# ---- the quarantine file


def test_the_file_says_what_and_where(shards: Shards, tmp_path: Path) -> None:
    file = tmp_path / "new" / "bad.jsonl"
    with shards.damaged([4, 25]):
        ds = skipping(shards.open(), file)
        list(ds)
        list(ds)  # known by now
        list(skipping(shards.open(), file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == [4, 25]
    index = shards.whole.stream.opened.index
    shard, first, end = (int(column[0]) for column in locate(index, [25]))
    assert (
        lines[1].items()
        >= {
            "dataset": index.fingerprint,
            "shard": index.shard_names[shard],
            "first_byte": first,
            "end_byte": end,
            "byte": first,
        }.items()
    )
    assert "\n" not in lines[1]["error"]
    assert lines[1]["error"]
    assert ds.stats()["num_skipped"] == 4
    assert ds.stats()["skipped_ids"] == [4, 25]


class Watched(LocalStore):
    """A store that remembers what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads_ahead = False
        self.read: list[tuple[str, int, int]] = []

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        self.read.append((path, first_byte, end_byte))
        return super().read_range(path, first_byte, end_byte)


@pytest.mark.parametrize("order", ["none", "full"])
def test_what_is_listed_is_not_read(
    order: str, shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bad.jsonl"
    fingerprint = shards.whole.stream.opened.index.fingerprint
    listed_ids = [0, 3, 8, 21, *range(40, 55)]
    file.write_text("".join(json.dumps({"dataset": fingerprint, "id": number}) + "\n\n" for number in listed_ids))
    for on_error in ("raise", "skip"):
        ds = shards.open().shuffle(order, chunk=None if order == "full" else "8KiB")
        store = Watched()
        ds = described(ds, source=replace(ds.stream.opened, store=store))
        reading = ds.reading(on_error=on_error, quarantine=file)
        assert ids_of(reading) == [number for number in ds.ids().tolist() if number not in listed_ids]
        assert reading.stats()["num_skipped"] == len(listed_ids)
        numbers, first_bytes, end_bytes = locate(ds.stream.opened.index, range(40, 55))
        spared = 0
        for number, first, end in zip(numbers.tolist(), first_bytes.tolist(), end_bytes.tolist(), strict=True):
            path = ds.stream.opened.paths[number]
            spared += not any(where == path and begin < end and stop > first for where, begin, stop in store.read)
        assert spared == 15 if order == "full" else spared > 5


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("batch", [None, 7])
@pytest.mark.parametrize("verb", [None, "map", "columns"])
def test_samples_that_reading_loses_are_an_error(
    verb: str | None,
    batch: int | None,
    is_listed: bool,
    tar_shards: Shards,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = Fetcher.runs

    def without_last(*arguments: Any) -> Iterator[list[Any]]:
        yield from list(runs(*arguments))[:-1]

    monkeypatch.setattr(Fetcher, "runs", without_last)
    ds = tar_shards.open().shuffle("block", seed=1)
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps({"dataset": ds.stream.opened.index.fingerprint, "id": 3}) + "\n")
    ds = ds.reading(copy=False, quarantine=file if is_listed else None)
    ds = ds.map(dict) if verb == "map" else ds.columns("cls") if verb else ds
    with pytest.raises((RuntimeError, ValueError), match=r"StopIteration|shorter|longer|were read"):
        list(ds.batch(batch) if batch else ds)


def test_a_file_of_other_datasets_is_let_be(shards: Shards, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps({"dataset": "another", "id": 3}) + "\n")
    assert ids_of(shards.open().reading(quarantine=file)) == list(range(NUM))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("what is this", "line 2 of the quarantine file"),
        ('{"dataset": "x"}', "names no sample of a dataset"),
        ('["dataset", "id"]', "names no sample of a dataset"),
        ('{"dataset": "x", "id": true}', "names no sample of a dataset"),
        ('{"dataset": "FINGERPRINT", "id": 61}', "names sample 61; there are 61"),
        ("[" * 100_000, "line 2 of the quarantine file"),
    ],
)
def test_a_file_that_is_none_is_refused(line: str, message: str, tar_shards: Shards, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("\n" + line.replace("FINGERPRINT", tar_shards.whole.stream.opened.index.fingerprint) + "\n")
    with pytest.raises(UsageError, match=message):
        iter(tar_shards.open().reading(quarantine=file))


def test_a_missing_file_is_a_slip_unless_it_is_to_be_made(tar_shards: Shards, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        iter(tar_shards.open().reading(quarantine=tmp_path / "none.jsonl"))
    assert ids_of(skipping(tar_shards.open(), tmp_path / "none.jsonl")) == list(range(NUM))
    # A run without damage leaves a file without lines, for a later run to be given.
    assert (tmp_path / "none.jsonl").read_text() == ""
    assert ids_of(tar_shards.open().reading(quarantine=tmp_path / "none.jsonl")) == list(range(NUM))


def test_a_file_that_cannot_be_written_is_an_error(tar_shards: Shards, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="could not"):
        iter(skipping(tar_shards.open(), tmp_path / "file" / "bad.jsonl"))  # before anything is damaged


def test_the_list_in_stats_is_bounded(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skips, "MOST_LISTED", 5)
    with shards.damaged(range(20, 40)):
        ds = skipping(shards.open())
        list(ds)
        list(ds)
    assert ds.stats()["skipped_ids"] == [20, 21, 22, 23, 24]
    assert ds.stats()["num_skipped"] == 40


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    path = str(tmp_path / "lines")
    children = []
    for child in range(4):
        process = os.fork()
        if process == 0:
            for number in range(200):
                atomic_writes.append_line(path, f"{child} {number} " + "x" * 3000)
            os._exit(0)
        children.append(process)
    assert all(os.waitpid(process, 0)[1] == 0 for process in children)
    lines = atomic_writes.read_lines(path)
    assert lines is not None
    assert lines.pop() == ""
    assert sorted(lines) == sorted(f"{child} {number} " + "x" * 3000 for child in range(4) for number in range(200))


def test_files_of_lines_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert atomic_writes.read_lines(str(tmp_path / "none")) is None
    with pytest.raises(StorageError):
        atomic_writes.read_lines(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"ab\xff")
    with pytest.raises(StorageError, match="byte 2 is not UTF-8"):
        atomic_writes.read_lines(str(tmp_path / "binary"))
    monkeypatch.setattr(atomic_writes, "_MOST_FILE_BYTES", 2)
    with pytest.raises(StorageError, match="more than 2 bytes"):
        atomic_writes.read_lines(str(tmp_path / "binary"))
    monkeypatch.setattr(os, "write", lambda *_: 1)
    with pytest.raises(StorageError) as caught:
        atomic_writes.append_line(str(tmp_path / "full"), "words")
    assert caught.value.errno == errno.ENOSPC


def test_reading_is_asked_once_and_changes_no_order(tar_shards: Shards) -> None:
    ds = tar_shards.open().shuffle(seed=1).batch(4)
    reading = skipping(ds)
    with pytest.raises(UsageError, match="reading\\(\\) was called before"):
        reading.reading()
    assert reading.ids().tolist() == ds.ids().tolist()
    assert reading.state_dict() == ds.state_dict()
    assert flat(batches_of(reading)) == flat(batches_of(ds))
    assert reading.state_dict() == ds.state_dict()
