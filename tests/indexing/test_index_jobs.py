"""The index as a job: units in any order, on any machine, killed, twice at once; then the index of one machine."""

from __future__ import annotations

import gzip
import itertools
import os
import pickle
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.forks import Fork
from tests.storage.servers import moto, s3_client, s3_options
from tests.stream.made import write_lines, write_tars

import shoal
from shoal.cli.main import main
from shoal.errors import ShardError, StorageError, UsageError
from shoal.indexing.jobs import job_units
from shoal.indexing.jobs.index_from_parts import IndexUnits
from shoal.indexing.jobs.index_job import IndexJob
from shoal.storage.files.local_store import LocalStore
from shoal.storage.memory_store import MemoryStore

COUNTS = [20, 0, 30, 10, 5, 5, 40, 1]


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two shards a unit."""
    monkeypatch.setattr(job_units, "_LEAST_SHARDS", 2)


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    return write_tars(tmp_path / "tars", COUNTS)


def index_here(source: object, target: Path, *words: str) -> bytes:
    """Return the bytes of the index that one machine makes."""
    assert main(["index", str(source), "--output", str(target), *words]) == 0
    return target.read_bytes()


def shipped(job: IndexJob, number: int) -> Any:
    return pickle.loads(pickle.dumps(job.task(number)))()


def finished(job: IndexJob) -> bytes:
    for number in job.missing():
        shipped(job, number)
    return Path(job.finish().path).read_bytes()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def hidden(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*") if path.name.startswith(".")]


def test_any_order_and_any_number_of_times(tmp_path: Path, tars: Path) -> None:
    """The law: units in any order, some twice, give the index of one machine, byte for byte."""
    expected = index_here(tars, tmp_path / "here.index")
    homes = itertools.count()

    @settings(max_examples=10, deadline=None)
    @given(data=st.data())
    def law(data: st.DataObject) -> None:
        home = tmp_path / f"home-{next(homes)}"
        job = shoal.plan_index(tars, to=home / "x.index")
        assert job.num_units == 4
        order = data.draw(st.permutations(range(job.num_units)))
        again = data.draw(st.lists(st.sampled_from(range(job.num_units)), max_size=3))
        scanned = [shipped(job, number) for number in [*order, *again]]
        assert sum(unit.num_samples for unit in scanned[: len(order)]) == sum(COUNTS)
        assert pickle.loads(pickle.dumps(job)).finish().num_samples == sum(COUNTS)
        assert (home / "x.index").read_bytes() == expected
        assert names(home) == ["x.index"]

    law()


def make(kind: str, directory: Path) -> Path:
    """Write a dataset of several shards, with one that is empty where that can be."""
    if kind == "tar":
        return write_tars(directory, COUNTS)
    if kind == "folder":
        directory.mkdir()
        for number in range(30):
            (directory / f"{number:02d}.jpg").write_bytes(b"x" * number)
        rows = "".join(f'{{"file_name": "{number:02d}.jpg", "label": {number}}}\n' for number in range(30))
        (directory / "metadata.jsonl").write_text(rows)
    elif kind == "jsonl.gz":
        for path in write_lines(directory, COUNTS).glob("*.jsonl"):
            path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
            path.unlink()
    else:
        texts = ({"text": f"document {number} " * (number % 40)} for number in range(400))
        shoal.pack.pack(texts, directory, format=kind, shard_bytes="8KiB")
        (directory / "shoal.index").unlink()
    return directory


@pytest.mark.parametrize("words", [(), ("--checksum",), ("--extent-bytes", "2KiB")])
@pytest.mark.parametrize("kind", ["tar", "jsonl", "jsonl.gz", "mds", "tfrecord", "folder"])
def test_the_index_of_one_machine(tmp_path: Path, kind: str, words: tuple[str, ...]) -> None:
    source, format = make(kind, tmp_path / "data"), "folder" if kind == "folder" else None  # noqa: A001
    expected = index_here(source, tmp_path / "here.index", *words, *(["--format", format] if format else []))
    extent_bytes = words[1] if "--extent-bytes" in words else "64KiB"
    to = tmp_path / "job.index"
    job = shoal.plan_index(source, to=to, format=format, checksum="--checksum" in words, extent_bytes=extent_bytes)
    assert job.num_units > 2
    assert finished(job) == expected


def test_indexes_of_other_tools_are_used_alike(tmp_path: Path, tars: Path) -> None:
    """Which kind of index lies beside the shards is decided once, and not by each unit."""
    shard = sorted(tars.glob("*.tar"))[2]
    shard.with_suffix(".tar.idx").write_bytes(b"")  # beside a shard that begins a unit, and not beside the first
    assert finished(shoal.plan_index(tars, to=tmp_path / "x")) == index_here(tars, tmp_path / "here.index")


def test_missing_units_are_named_and_nothing_is_written(tmp_path: Path, tars: Path) -> None:
    job = shoal.plan_index(tars)
    assert job.missing() == [0, 1, 2, 3]
    job.run(2)
    assert shoal.plan_index(tars).missing() == [0, 1, 3]  # planned again it is the same job
    with pytest.raises(UsageError, match=r"3 of 4 units are missing: 0-1, 3\n"):
        job.finish()
    assert not (tars / "shoal.index").exists()
    assert shoal.open(tars).num_samples == sum(COUNTS)  # the parts are not taken for shards
    finished(job)
    assert job.missing() == []
    assert job.finish() == pickle.loads(pickle.dumps(job)).finish()
    assert hidden(tars) == []
    with pytest.raises(UsageError, match="there is no unit 4"):
        job.task(4)


def test_a_task_has_its_own_shards_alone(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "lines", [1] * 200)
    job = shoal.plan_index(source)
    assert max(len(pickle.dumps(job.task(number))) for number in job.missing()) < len(pickle.dumps(job)) / 10


def test_a_task_that_comes_late_changes_nothing(tmp_path: Path, tars: Path) -> None:
    job = shoal.plan_index(tars)
    late = pickle.dumps(job.task(1))
    before = finished(job)
    assert pickle.loads(late)().num_shards == 2
    assert hidden(tars) == []
    assert (tars / "shoal.index").read_bytes() == before


@pytest.mark.parametrize("when", ["before its unit", "after its unit"])
@pytest.mark.parametrize("what", ["changed", "gone"])
def test_a_shard_that_changes_during_the_job(tars: Path, when: str, what: str) -> None:
    job = shoal.plan_index(tars)
    if when == "after its unit":
        for number in job.missing():
            shipped(job, number)
    shard = sorted(tars.glob("*.tar"))[2]
    if what == "changed":
        shard.write_bytes(shard.read_bytes() + b"\0" * 512)
    else:
        shard.unlink()
    with pytest.raises(StorageError, match=f"{shard.name}.*(changed since it was listed|no such|not there|No such)"):
        shipped(job, 1) if when == "before its unit" else job.finish()
    assert not (tars / "shoal.index").exists()


def test_two_jobs_for_one_place(tmp_path: Path, tars: Path) -> None:
    """One wins, and the other says so."""
    job, other = shoal.plan_index(tars), shoal.plan_index(tars, extent_bytes="4KiB")
    assert job.units.parts.plan != other.units.parts.plan
    first = finished(job)
    with pytest.raises(UsageError, match="another index has been written here"):
        finished(other)
    assert (tars / "shoal.index").read_bytes() == first
    again = shoal.plan_index(tars, extent_bytes="4KiB")  # knows of the other one, and replaces it
    assert again.missing() == []
    assert finished(again) != first
    assert hidden(tars) == []


def test_two_machines_at_once(tmp_path: Path, tars: Path) -> None:
    expected = index_here(tars, tmp_path / "here.index")
    together = threading.Barrier(2)

    def machine(job: IndexJob) -> bytes:
        together.wait()
        for number in range(job.num_units):
            job.run(number)
        return Path(job.finish().path).read_bytes()

    for _ in range(5):
        with ThreadPoolExecutor(2) as threads:
            assert set(threads.map(machine, [shoal.plan_index(tars) for _ in range(2)])) == {expected}
        assert hidden(tars) == []
        (tars / "shoal.index").unlink()


def test_a_damaged_part_is_made_again(tmp_path: Path, tars: Path) -> None:
    job = shoal.plan_index(tars)
    for number in job.missing():
        job.run(number)
    part = next((tars / ".shoal-index").rglob("000001.part"))
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    with pytest.raises(UsageError, match="1 of 4 units are missing: 1"):
        job.finish()
    assert job.missing() == [1]
    assert finished(job) == index_here(tars, tmp_path / "here.index")


def test_jobs_that_nobody_finished_are_removed_in_time(tars: Path) -> None:
    shoal.plan_index(tars, extent_bytes="4KiB").run(0)
    young = shoal.plan_index(tars, extent_bytes="8KiB")
    young.run(0)
    long_ago = time.time() - 8 * 86_400
    old = shoal.plan_index(tars, extent_bytes="4KiB").units.parts.plan
    for path in (tars / ".shoal-index" / old).iterdir():
        os.utime(path, (long_ago, long_ago))
    job = shoal.plan_index(tars)
    assert names(tars / ".shoal-index") == sorted([job.units.parts.plan, young.units.parts.plan])
    assert young.missing() == [1, 2, 3]


def test_errors_name_shard_and_byte(tars: Path) -> None:
    shard = sorted(tars.glob("*.tar"))[2]
    os.truncate(shard, 2500)
    job = shoal.plan_index(tars)
    with pytest.raises(ShardError) as caught:
        shipped(job, 1)
    with pytest.raises(ShardError) as here:
        shoal.open(tars)
    assert str(caught.value) == str(here.value)
    assert (caught.value.shard, caught.value.byte) == (shard.name, here.value.byte)
    assert job.missing() == [0, 1, 2, 3]


def test_shards_without_a_sample_are_refused(tmp_path: Path) -> None:
    job = shoal.plan_index(write_tars(tmp_path / "empty", [0, 0, 0]))
    with pytest.raises(UsageError, match="without a single sample"):
        finished(job)


def test_some_shards_of_a_directory_need_a_place(tmp_path: Path, tars: Path) -> None:
    with pytest.raises(UsageError, match="would hide other shards"):
        shoal.plan_index(f"{tars}/*.tar")
    with pytest.raises(UsageError, match="nothing is written over http"):
        shoal.plan_index(tars, to="http://localhost/x.index")
    job = shoal.plan_index(f"{tars}/*.tar", to=tmp_path)
    assert finished(job) == index_here(f"{tars}/*.tar", tmp_path / "here.index")
    with pytest.raises(UsageError, match="an index already"):
        shoal.plan_index(tmp_path / "shoal.index")


@pytest.mark.parametrize("place", ["s3", "memory"])
def test_in_an_object_store(tmp_path: Path, tars: Path, place: str) -> None:
    """The index is put on the condition that there is still what was there when the job was planned."""
    with moto() as endpoint:
        options = s3_options(endpoint) if place == "s3" else None
        if place == "s3":
            client = s3_client(endpoint)
            client.create_bucket(Bucket="index-jobs")
            for path in tars.glob("*.tar"):
                client.put_object(Bucket="index-jobs", Key=f"train/{path.name}", Body=path.read_bytes())
            url = "s3://index-jobs/train"
        else:
            url = f"memory://index-jobs-{time.time_ns()}/train"
            for path in tars.glob("*.tar"):
                MemoryStore().put(f"{url}/{path.name}", path.read_bytes())
        job = shoal.plan_index(url, storage_options=options)
        other = shoal.plan_index(url, storage_options=options, extent_bytes="2KiB")
        for number in job.missing():
            shipped(job, number) if place == "s3" else job.run(number)
        done = job.finish()
        assert done.num_samples == sum(COUNTS)
        for number in other.missing():
            other.run(number)
        with pytest.raises(UsageError, match="another index has been written here"):
            other.finish()
        assert job.finish() == done
        assert shoal.open(url, storage_options=options).stream.opened.index.fingerprint == done.fingerprint
        assert job.units.parts.missing(range(4)) == [0, 1, 2, 3]  # no part is left


@pytest.mark.parametrize(
    ("num_units", "pause_seconds"),
    [
        pytest.param(num_units, 0.002 * number, marks=[pytest.mark.drill] if number else [])
        for number in range(5)
        for num_units in range(4)
    ],
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_machine_killed_after_some_units(tmp_path: Path, tars: Path, num_units: int, pause_seconds: float) -> None:
    expected = index_here(tars, tmp_path / "here.index")
    job = shoal.plan_index(tars)
    tasks = [pickle.dumps(job.task(number)) for number in range(job.num_units)]
    done = [tmp_path / f"{number}.done" for number in range(job.num_units)]

    def run_all() -> None:
        for task, mark in zip(tasks, done, strict=True):
            pickle.loads(task)()
            mark.touch()

    machine = Fork(run_all)
    while not all(mark.exists() for mark in done[:num_units]):
        time.sleep(0.001)
    time.sleep(pause_seconds)
    assert machine.kill() in (0, -signal.SIGKILL)
    again = shoal.plan_index(tars)
    assert len(again.missing()) <= 4 - num_units
    assert finished(again) == expected
    assert hidden(tars) == []


def test_units_that_run_in_one_pass_leave_the_same_parts(tmp_path: Path, tars: Path) -> None:
    expected = index_here(tars, tmp_path / "here.index")
    for workers in (0, 2):
        job = shoal.plan_index(tars, to=tmp_path / f"{workers}.index")
        units: IndexUnits = job.units
        done = [unit.number for unit in units.run_side_by_side([3, 0, 2], workers=workers)]
        assert sorted(done) == [0, 2, 3]
        assert job.missing() == [1]
        assert finished(job) == expected


def drive(tars: Path) -> None:
    job = shoal.plan_index(tars)
    for number in job.missing():
        job.run(number)
    job.finish()


def check_finished(tars: Path, expected: bytes) -> None:
    """The index is that of one machine, and nothing else is left beside the shards."""
    assert (tars / "shoal.index").read_bytes() == expected
    assert hidden(tars) == []
    assert len(names(tars)) == len(COUNTS) + 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("verb", "number"), [("put", 2), ("put", 4), ("put", 5), ("delete", 1)])
@pytest.mark.parametrize("is_done", [False, True], ids=["before it", "after it"])
def test_a_driver_killed_at_a_write(tmp_path: Path, tars: Path, verb: str, number: int, *, is_done: bool) -> None:
    """At the second and the last part, at the index itself, and when the first part is removed."""
    expected = index_here(tars, tmp_path / "here.index")
    changed = getattr(LocalStore, verb)
    numbers = itertools.count(1)

    def drive_until_killed() -> None:
        def counted(store: LocalStore, *given: Any, **more: Any) -> Any:
            is_last = next(numbers) == number
            if is_last and not is_done:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = changed(store, *given, **more)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        setattr(LocalStore, verb, counted)
        drive(tars)

    assert Fork(drive_until_killed).exit_code() == -signal.SIGKILL
    drive(tars)
    check_finished(tars, expected)


@pytest.mark.drill
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_driver_killed_at_twenty_moments(tmp_path: Path, tars: Path) -> None:
    expected = index_here(tars, tmp_path / "here.index")
    began = time.monotonic()
    assert Fork(partial(drive, tars)).exit_code() == 0
    usual_seconds = time.monotonic() - began
    (tars / "shoal.index").unlink()
    dice = random.Random(7)
    for _ in range(20):
        driver = Fork(partial(drive, tars))
        time.sleep(dice.uniform(0, usual_seconds))
        assert driver.kill() in (0, -signal.SIGKILL)
    assert Fork(partial(drive, tars)).exit_code() == 0
    for path in tars.glob(".shoal.index.*.tmp"):  # a kill while the index is written leaves it: see `write_atomically`
        path.unlink()
    check_finished(tars, expected)
