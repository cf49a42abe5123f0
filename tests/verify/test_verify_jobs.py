"""A verification as a job: units in any order, on any machine, killed; then the report of one machine."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.servers import moto, s3_client, s3_options
from tests.stream.made import write_tars

import shoal
from shoal.cli.main import main
from shoal.errors import UsageError
from shoal.indexing.jobs import job_units
from shoal.testing import RangeServer
from shoal.verify.open_to_verify import open_to_verify, verify
from shoal.verify.verify_job import VerifyJob
from shoal.verify.verify_report import VerifyReport


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two shards a unit."""
    monkeypatch.setattr(job_units, "_LEAST_SHARDS", 2)


def sound(directory: Path, kind: str) -> Path:
    """Write nine shards or more, with an index that has checksums of samples, of extents, or none."""
    if kind.startswith("tar"):
        write_tars(directory, [20, 30, 0, 10, 5, 5, 40, 1, 9])
        main(["index", str(directory), "--extent-bytes", "4KiB", *(["--checksum"] if kind == "tar sums" else [])])
    else:
        texts = ({"text": f"document {number}", "id": number} for number in range(1000))
        shoal.pack.pack(texts, directory, format=kind, shard_bytes="4KiB")
    return directory


def damage(shards: list[Path], kind: str) -> None:
    first, second, third, fourth = shards[1], shards[3], shards[4], shards[-1]
    if kind in ("flipped", "all"):
        data = bytearray(first.read_bytes())
        data[len(data) // 3] ^= 4
        data[len(data) // 2] ^= 4
        first.write_bytes(data)
    if kind in ("cut", "all"):
        os.truncate(second, second.stat().st_size * 2 // 3)
    if kind in ("missing", "all"):
        third.unlink()
    if kind in ("unknown", "all"):
        shutil.copy(shards[0], shards[0].with_stem("another"))
    if kind in ("touched", "all"):
        os.utime(fourth, (1, 1))


def report_of(job: VerifyJob) -> VerifyReport:
    for number in job.missing():
        pickle.loads(pickle.dumps(job.task(number)))()
    return job.finish()


@pytest.mark.parametrize("hurt", ["nothing", "flipped", "cut", "missing", "unknown", "touched", "all"])
@pytest.mark.parametrize("kind", ["tar", "tar sums", "jsonl", "mds"])
def test_the_report_of_one_machine(tmp_path: Path, kind: str, hurt: str) -> None:
    source = sound(tmp_path / "data", kind)
    damage(sorted(path for path in source.iterdir() if path.suffix in (".tar", ".jsonl", ".mds")), hurt)
    expected = verify(open_to_verify(source))
    job = shoal.plan_verify(source)
    assert job.num_units >= 4
    assert report_of(job) == expected
    assert bool(expected.damages) == (hurt not in ("nothing", "touched")) or kind == "tar"
    assert not [path for path in source.rglob("*") if path.name.startswith(".")]


def test_any_order_and_any_number_of_times(tmp_path: Path) -> None:
    source = sound(tmp_path / "data", "jsonl")
    damage(sorted(source.glob("*.jsonl")), "all")
    expected = verify(open_to_verify(source))
    places = itertools.count()

    @settings(max_examples=10, deadline=None)
    @given(data=st.data())
    def law(data: st.DataObject) -> None:
        job = shoal.plan_verify(source, to=tmp_path / f"parts-{next(places)}")
        order = data.draw(st.permutations(range(job.num_units)))
        again = data.draw(st.lists(st.sampled_from(range(job.num_units)), max_size=3))
        for number in [*order, *again]:
            assert pickle.loads(pickle.dumps(job.task(number)))().num_shards in (1, 2)
        assert pickle.loads(pickle.dumps(job)).finish() == expected

    law()


def test_missing_units_are_named(tmp_path: Path) -> None:
    source = sound(tmp_path / "data", "tar sums")
    job = shoal.plan_verify(source)
    job.run(1)
    assert shoal.plan_verify(source).missing() == [0, 2, 3, 4]
    with pytest.raises(UsageError, match=r"4 of 5 units are missing: 0, 2-4\n"):
        job.finish()
    with pytest.raises(UsageError, match="there is no unit 5"):
        job.task(5)
    late = job.task(0)
    assert report_of(job).damages == []
    late()
    assert not (source / ".shoal-verify").exists()


def test_a_part_that_was_damaged_is_made_again(tmp_path: Path) -> None:
    job = shoal.plan_verify(sound(tmp_path / "data", "tar sums"))
    for number in job.missing():
        job.run(number)
    part = next((tmp_path / "data" / ".shoal-verify").rglob("000002.part"))
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(UsageError, match="are missing: 2"):
        job.finish()
    assert job.missing() == [2]


def test_reports_of_yesterday_do_not_count(tmp_path: Path) -> None:
    """Bytes may rot without a change of time or size."""
    source = sound(tmp_path / "data", "tar sums")
    job = shoal.plan_verify(source)
    job.run(1)
    yesterday = time.time() - 90_000
    for path in (source / ".shoal-verify").rglob("*"):
        os.utime(path, (yesterday, yesterday))
    assert shoal.plan_verify(source).missing() == [0, 1, 2, 3, 4]


def test_a_task_has_the_index_of_its_own_shards_alone(tmp_path: Path) -> None:
    texts = ({"text": f"document {number}", "id": number} for number in range(20_000))
    shoal.pack.pack(texts, tmp_path / "data", format="jsonl", shard_bytes="4KiB")
    job = shoal.plan_verify(tmp_path / "data")
    assert job.num_units > 50
    assert max(len(pickle.dumps(job.task(number))) for number in (0, 7)) < len(pickle.dumps(job)) / 20


def test_shards_that_can_only_be_read(tmp_path: Path) -> None:
    source = sound(tmp_path / "data", "tar sums")
    damage(sorted(source.glob("*.tar")), "flipped")
    with RangeServer(source) as server:
        with pytest.raises(UsageError, match="cannot be written here"):
            shoal.plan_verify(f"{server.url}/shoal.index")
        job = shoal.plan_verify(f"{server.url}/shoal.index", to=tmp_path / "parts")
        report = report_of(job)
    assert [one.kind for one in report.damages] == ["checksum"] * len(report.damages)
    assert report.damages


def test_in_an_object_store(tmp_path: Path) -> None:
    source = sound(tmp_path / "data", "jsonl")
    damage(sorted(source.glob("*.jsonl")), "all")
    with moto() as endpoint:
        client = s3_client(endpoint)
        client.create_bucket(Bucket="verify-jobs")
        for path in source.iterdir():
            client.put_object(Bucket="verify-jobs", Key=f"train/{path.name}", Body=path.read_bytes())
        options = s3_options(endpoint)
        job = shoal.plan_verify("s3://verify-jobs/train", storage_options=options)
        expected = verify(open_to_verify("s3://verify-jobs/train", storage_options=options))
        assert report_of(job) == expected
        keys = [item["Key"] for item in client.list_objects_v2(Bucket="verify-jobs")["Contents"]]
        assert len(keys) == len(list(source.iterdir()))


KILLED = """
import pickle, sys
sys.path[:0] = {path!r}
for number in range(5):
    pickle.load(open(f"{{sys.argv[1]}}/{{number}}.task", "rb"))()
    print(number, flush=True)
"""


@pytest.mark.drill
@pytest.mark.slow
def test_machines_killed_at_any_moment(tmp_path: Path) -> None:
    source: Any = sound(tmp_path / "data", "tar sums")
    damage(sorted(source.glob("*.tar")), "all")
    expected = verify(open_to_verify(source))
    for trial in range(10):
        job = shoal.plan_verify(source)
        for number in range(job.num_units):
            (tmp_path / f"{number}.task").write_bytes(pickle.dumps(job.task(number)))
        code = KILLED.format(path=[str(Path(shoal.__file__).parents[1])])
        child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(trial % 5):
            child.stdout.readline()
        child.kill()
        child.wait()
        child.stdout.close()
        again = shoal.plan_verify(source)
        assert len(again.missing()) <= 5 - trial % 5
        assert report_of(again) == expected
