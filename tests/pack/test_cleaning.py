"""What a job has left is removed once it is dead, and nothing that it did not make."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.calls import Calls
from tests.pack.contents import contents_of, record_of
from tests.pack.files import make_files

from shoal.errors import UsageError
from shoal.pack import clean, pack, plan


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_files(tmp_path / "in")


def test_an_unfinished_job_goes_and_what_is_not_its_own_stays(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    job = plan(source, out, shard_bytes=30_000)
    job.run(0)
    job.run(1)
    job.run(2)
    record_of(out, "shard-000001.tar").unlink()  # killed before it was recorded
    (out / "shard-000002.tar").write_bytes(b"others")
    (out / "shard-000003.tar").write_bytes(b"another")
    (out / "notes.txt").write_text("notes")
    (out / ".shoal-pack" / "foreign").write_text("foreign")
    before = contents_of(out)
    with pytest.raises(UsageError, match=r"a job wrote here \d+ s ago, and counts as dead after 86400 s"):
        clean(out)
    assert contents_of(out) == before | {name: data for name, data in contents_of(out).items() if "lock" in name}
    found = clean(out, grace_seconds=0)
    assert sorted(contents_of(out)) == [".shoal-pack/foreign", "notes.txt", "shard-000002.tar", "shard-000003.tar"]
    assert {"shard-000000.tar", "shard-000001.tar"} < set(found.removed)
    assert found.kept == ("shard-000002.tar",)
    with pytest.raises(UsageError, match="another job has taken this destination, or this job was removed"):
        job.run(3)


def test_what_is_finished_stays(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    job = plan(source, out, shard_bytes=30_000)
    part, record = None, out
    for number in range(job.num_units):
        job.run(number)
        part, record = job.out.journal.kept("shard-000000.tar"), record_of(out, "shard-000000.tar")
    job.finish()
    before = contents_of(out)
    assert clean(out, grace_seconds=0).removed == ()
    assert part is not None
    job.out.journal.keep(part)  # by a task that came late and was killed
    assert clean(out, grace_seconds=0).removed == (f".shoal-pack/{record.name}",)
    assert contents_of(out) == before


def test_in_memory(source: Path) -> None:
    job = plan(source, "memory://cleaned/a", shard_bytes=30_000)
    job.run(1)
    assert "shard-000001.tar" in clean("memory://cleaned/a", grace_seconds=0).removed
    assert contents_of("memory://cleaned/a") == {}


def test_by_command(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = Calls(capsys)
    plan(source, tmp_path / "out", shard_bytes=30_000).run(1)
    assert "counts as dead after" in calls.refused("pack", "--clean", tmp_path / "out")
    said = calls.json("pack", "--clean", tmp_path / "out", "--grace", "0")
    assert "shard-000001.tar" in said["removed"]
    assert calls.json("pack", "--clean", tmp_path / "out")["num_removed"] == 0
    assert "takes no SRC" in calls.refused("pack", source, "--clean", tmp_path / "out")
    assert "SRC and DST are missing" in calls.refused("pack", source)
    assert pack(source, tmp_path / "out").num_samples == 95
