"""A packing as a job: units in any order, on any machine, killed, twice at once; then one commit, or nothing."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pack.contents import contents_of, record_of
from tests.pack.files import make_files
from tests.pack.forks import begin_fork, end_of_fork
from tests.samples import write_jsonl
from tests.storage.servers import moto, s3_client, s3_options

import shoal
from shoal.errors import SourceError, UsageError
from shoal.pack import PackJob, pack, plan, plan_repack, repack
from shoal.pack.output.journal import Journal
from shoal.storage.files.local_store import LocalStore

OPTIONS: dict[str, Any] = {"shard_bytes": 30_000, "shuffle": True, "seed": 3, "columns": ["length"]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_files(tmp_path / "in")


def test_any_order_and_any_number_of_times(tmp_path: Path, source: Path) -> None:
    """The law: units in any order, some twice, give the bytes of one process."""
    calm = pack(source, tmp_path / "calm", num_workers=1, **OPTIONS)
    expected = contents_of(tmp_path / "calm")
    homes = iter(range(1000))

    @settings(max_examples=10, deadline=None)
    @given(data=st.data())
    def law(data: st.DataObject) -> None:
        out = tmp_path / f"out-{next(homes)}"
        job = plan(source, out, **OPTIONS)
        order = data.draw(st.permutations(range(job.num_units)))
        again = data.draw(st.lists(st.sampled_from(range(job.num_units)), max_size=3))
        made = [pickle.loads(pickle.dumps(job)).run(number) for number in [*order, *again]]
        assert [one.digest for one in made[: len(order)]] == [calm.shards[number].digest for number in order]
        assert job.finish().fingerprint == calm.fingerprint
        assert contents_of(out) == expected

    law()


def test_nothing_is_there_before_the_last_unit_and_missing_units_are_named(tmp_path: Path, source: Path) -> None:
    job = plan(source, tmp_path / "out", **OPTIONS)
    assert job.num_units > 3
    assert job.missing() == list(range(job.num_units))
    for number in range(2, job.num_units):
        job.run(number)
        with pytest.raises(SourceError, match="not finished"):
            shoal.open(tmp_path / "out")
    with pytest.raises(UsageError, match=rf"2 of {job.num_units} units are missing: 0-1\n"):
        job.finish()
    assert not (tmp_path / "out" / "shoal.index").exists()
    assert job.missing() == [0, 1]
    job.run(1)
    job.run(0)
    assert job.finish().num_samples == shoal.open(tmp_path / "out").num_samples == 95
    assert job.missing() == []
    with pytest.raises(UsageError, match="there is no unit"):
        job.run(job.num_units)


def test_a_job_planned_again_makes_only_what_is_missing(tmp_path: Path, source: Path) -> None:
    plan(source, tmp_path / "out", **OPTIONS).run(1)
    job = plan(source, tmp_path / "out", **OPTIONS)
    assert [job.run(number).done_before for number in range(job.num_units)] == [
        number == 1 for number in range(job.num_units)
    ]
    first = job.finish()
    done = plan(source, tmp_path / "out", **OPTIONS)
    assert done.num_units == len(first.shards)
    assert done.run(0).digest == first.shards[0].digest
    assert done.finish().fingerprint == first.fingerprint


def test_tasks_are_units_that_carry_no_more_than_they_need(tmp_path: Path, source: Path) -> None:
    expected = pack(source, tmp_path / "calm", num_workers=1, **OPTIONS)
    job = plan(source, tmp_path / "out", **OPTIONS)
    shipped = [pickle.dumps(job.task(number)) for number in job.missing()]
    assert max(map(len, shipped)) < len(pickle.dumps(job))
    digests = [pickle.loads(task)().digest for task in shipped]
    assert digests == [shard.digest for shard in expected.shards]
    with pytest.raises(UsageError, match="there is no unit"):
        job.task(job.num_units)
    job.finish()
    with pytest.raises(UsageError, match="finished"):
        plan(source, tmp_path / "out", **OPTIONS).task(0)


def test_two_machines_at_once(tmp_path: Path, source: Path) -> None:
    """Both run all units at the same time, and both finish."""
    expected = pack(source, tmp_path / "calm", num_workers=1, **OPTIONS)
    jobs = [plan(source, tmp_path / "out", **OPTIONS) for _ in range(2)]
    together = threading.Barrier(2)

    def machine(job: PackJob) -> str:
        together.wait()
        for number in range(job.num_units):
            job.run(number)
        return job.finish().fingerprint

    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(machine, jobs)) == {expected.fingerprint}
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "calm")


def test_a_record_that_another_machine_replaces_while_it_is_read(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is late with a unit writes the record of its shard again, with the same bytes."""
    job = plan(source, tmp_path / "out", **OPTIONS)
    made = [job.run(number) for number in range(job.num_units)]
    read_range = LocalStore.read_range
    replaced: set[str] = set()

    def replaced_meanwhile(self: LocalStore, path: str, first_byte: int, end_byte: int) -> bytes:
        if path.endswith(".part") and path not in replaced:
            replaced.add(path)
            self.reader(path)  # opens the file that is about to lose its name
            Path(f"{path}.tmp").write_bytes(Path(path).read_bytes())
            Path(f"{path}.tmp").replace(path)
        return read_range(self, path, first_byte, end_byte)

    monkeypatch.setattr(LocalStore, "read_range", replaced_meanwhile)
    assert [shard.digest for shard in job.finish().shards] == [shard.digest for shard in made]
    assert len(replaced) == job.num_units


def test_a_task_that_comes_late_changes_nothing(tmp_path: Path, source: Path) -> None:
    job = plan(source, tmp_path / "out", **OPTIONS)
    late = pickle.loads(pickle.dumps(job))
    for number in range(job.num_units):
        job.run(number)
    made = job.finish()
    before = contents_of(tmp_path / "out")
    assert late.run(2).digest == made.shards[2].digest
    assert late.finish().fingerprint == made.fingerprint
    assert contents_of(tmp_path / "out") == before


def test_a_task_that_was_writing_when_the_job_was_committed(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = plan(source, tmp_path / "out", **OPTIONS)
    for number in range(1, job.num_units):
        job.run(number)
    keep = Journal.keep

    def committed_first(self: Journal, part: Any) -> None:
        monkeypatch.setattr(Journal, "keep", keep)
        job.run(0)
        job.finish()
        keep(self, part)

    monkeypatch.setattr(Journal, "keep", committed_first)
    pickle.loads(pickle.dumps(job)).run(0)
    assert sorted(contents_of(tmp_path / "out")) == [
        *(f"shard-{number:06d}.tar" for number in range(job.num_units)),
        "shoal.index",
    ]


def test_of_two_jobs_one_wins_and_the_other_says_so(tmp_path: Path, source: Path) -> None:
    loser = plan(source, tmp_path / "out", **OPTIONS)
    winner = plan(source, tmp_path / "out", **{**OPTIONS, "seed": 4})  # nothing was made, so it may take over
    for run in (lambda: loser.run(0), loser.finish, loser.missing):
        with pytest.raises(UsageError, match="another job has taken this destination"):
            run()
    for number in range(winner.num_units):
        winner.run(number)
    with pytest.raises(UsageError, match="seed was 4, is 3"):
        plan(source, tmp_path / "out", **OPTIONS)
    winner.finish()
    before = contents_of(tmp_path / "out")
    with pytest.raises(UsageError, match="another job has taken this destination"):
        loser.run(0)
    assert contents_of(tmp_path / "out") == before


def test_planning_again_leaves_alone_what_others_are_writing(tmp_path: Path, source: Path) -> None:
    plan(source, tmp_path / "out", **OPTIONS)
    journal = tmp_path / "out" / ".shoal-pack"
    record, shard, old = (
        journal / ".shard-000000.tar.1.made.ab.tmp",
        journal / "shard-000000.tar.ab.tmp",
        journal / "b.tmp",
    )
    for path in (record, shard, old):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    plan(source, tmp_path / "out", **OPTIONS)
    assert record.exists()
    assert shard.exists()
    assert not old.exists()


def test_input_that_is_not_the_same_each_time_is_an_error_that_names_the_shard(tmp_path: Path, source: Path) -> None:
    job = plan(source, tmp_path / "out", **OPTIONS)
    other = b"bytes that another attempt made"
    (tmp_path / "out" / "shard-000001.tar").write_bytes(other)
    with pytest.raises(UsageError, match=r"shard-000001\.tar: a shard of this name exists with other bytes"):
        job.run(1)
    assert (tmp_path / "out" / "shard-000001.tar").read_bytes() == other
    assert 1 in job.missing()


def test_a_shard_that_was_published_by_a_task_that_died_is_taken(tmp_path: Path, source: Path) -> None:
    job = plan(source, tmp_path / "out", **OPTIONS)
    job.run(1)
    record_of(tmp_path / "out", "shard-000001.tar").unlink()
    before = (tmp_path / "out" / "shard-000001.tar").stat()
    assert not job.run(1).done_before
    assert (tmp_path / "out" / "shard-000001.tar").stat().st_ino == before.st_ino


def test_a_record_that_a_crash_of_the_machine_emptied_is_of_a_missing_unit(tmp_path: Path, source: Path) -> None:
    job = plan(source, tmp_path / "out", **OPTIONS)
    for number in range(job.num_units):
        job.run(number)
    (record,) = (tmp_path / "out" / ".shoal-pack").glob("shard-000002.tar.*.part")
    record.write_bytes(b"")
    assert job.missing() == [2]
    job.run(2)
    pack(source, tmp_path / "calm", num_workers=1, **OPTIONS)
    job.finish()
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "calm")


def test_counts_must_add_up(tmp_path: Path, source: Path) -> None:
    job = plan(source, tmp_path / "out", **OPTIONS)
    for number in range(job.num_units):
        job.run(number)
    part = job.out.journal.kept("shard-000001.tar")
    assert part is not None
    job.out.journal.keep(replace(part, metadata={**part.metadata, "skipped": [["one", "too many"]]}))
    with pytest.raises(UsageError, match=r"shard-000001\.tar: \d+ inputs were planned, but \d+ packed or skipped"):
        job.finish()
    assert not (tmp_path / "out" / "shoal.index").exists()


def test_a_shard_without_samples_is_allowed(tmp_path: Path, source: Path) -> None:
    names = [path.name for path in (source / "dog").iterdir()]
    options: dict[str, Any] = {"shard_bytes": 1_000, "on_error": "skip", "format": "jsonl"}
    job = plan(source, tmp_path / "out", **options)
    for name in sorted(names)[:40]:
        (source / "dog" / name).write_bytes(b"\xff\xfe")  # jsonl holds no bytes; and it has changed since
    made = [job.run(number) for number in range(job.num_units)]
    assert min(one.num_samples for one in made) == 0
    assert job.finish().num_samples == 55 == shoal.open(tmp_path / "out").num_samples


@pytest.mark.parametrize("options", [{"format": "tar"}, {"mix": True, "memory": "160KiB"}, {"format": "parquet"}])
def test_shards_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    old = write_jsonl(tmp_path / "a.jsonl", num_docs=600)
    repack(old, tmp_path / "calm", shard_bytes=20_000, num_workers=1, **options)
    job = plan_repack(old, tmp_path / "out", shard_bytes=20_000, **options)
    for number in np.random.default_rng(0).permutation(job.num_units).tolist():
        pickle.loads(pickle.dumps(job)).run(number)
    job.finish()
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "calm")


MACHINE = """
import pickle, sys
job = pickle.load(open(sys.argv[1], "rb"))
for number in range(job.num_units):
    job.run(number)
"""


def test_two_machines_that_are_killed_at_some_steps(tmp_path: Path) -> None:
    source, out = make_files(tmp_path / "in", classes={"a": 60, "b": 60}), tmp_path / "out"
    pack(source, tmp_path / "calm", num_workers=1, shard_bytes=8_000)
    job = plan(source, out, shard_bytes=8_000)

    def run_all() -> None:
        for number in range(job.num_units):
            job.run(number)

    machines = [begin_fork(run_all, dies_at=step) for step in (5, 6)]
    assert [end_of_fork(machine) for machine in machines] == [-signal.SIGKILL] * 2
    assert not (out / "shoal.index").exists()
    missing = job.missing()
    assert 1 < len(missing) < job.num_units
    for number in missing:
        job.run(number)
    plan(source, out, shard_bytes=8_000).finish()
    assert contents_of(out) == contents_of(tmp_path / "calm")


@pytest.mark.parametrize(
    "num_kills", [pytest.param(3, marks=pytest.mark.drill), pytest.param(40, marks=pytest.mark.soak)]
)
def test_machines_that_are_killed_at_any_moment(tmp_path: Path, num_kills: int) -> None:
    source = make_files(tmp_path / "in", classes={"a": 300, "b": 300})
    pack(source, tmp_path / "calm", num_workers=1, shard_bytes=8_000)
    job = plan(source, tmp_path / "out", shard_bytes=8_000)
    (tmp_path / "job").write_bytes(pickle.dumps(job))
    words = [sys.executable, "-c", MACHINE, str(tmp_path / "job")]
    began = time.monotonic()
    (tmp_path / "timed.job").write_bytes(pickle.dumps(plan(source, tmp_path / "timed", shard_bytes=8_000)))
    subprocess.run([*words[:3], str(tmp_path / "timed.job")], check=True)
    whole_seconds = time.monotonic() - began
    moments = np.random.default_rng(0)
    for _ in range(num_kills):
        machines = [subprocess.Popen(words) for _ in range(2)]
        time.sleep(whole_seconds * moments.uniform(0.3, 1))
        for machine in machines:
            machine.kill()
            machine.wait()
        assert not (tmp_path / "out" / "shoal.index").exists()
    subprocess.run(words, check=True)
    plan(source, tmp_path / "out", shard_bytes=8_000).finish()
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "calm")


def test_in_an_object_store_with_conditional_writes(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    expected = pack(source, tmp_path / "calm", num_workers=1, **OPTIONS)
    with moto() as endpoint:
        client, options = s3_client(endpoint), s3_options(endpoint)
        client.create_bucket(Bucket="jobs")
        job = plan(source, "s3://jobs/a", storage_options=options, **OPTIONS)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(pickle.loads(pickle.dumps(job)).run, [*range(job.num_units)] * 2))
        client.put_object(Bucket="jobs", Key="a/other", Body=b"")
        assert job.finish().fingerprint == expected.fingerprint
        listed = [entry["Key"] for entry in client.list_objects_v2(Bucket="jobs")["Contents"]]
        assert sorted(listed) == sorted([f"a/{name}" for name in contents_of(tmp_path / "calm")] + ["a/other"])
        other = plan(source, "s3://jobs/b", storage_options=options, **OPTIONS)
        client.put_object(Bucket="jobs", Key="b/shard-000000.tar", Body=b"other bytes")
        with pytest.raises(UsageError, match="with other bytes"):
            other.run(0)
