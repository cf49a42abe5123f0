"""Units of a repacking as they are sent to other machines: with their part of the source, and no file of this one."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.pack.contents import contents_of

import shoal
from shoal.pack import pack, plan_repack, repack
from shoal.pack.writer import Writer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_index_of_this_machine_is_not_asked_for(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many samples, workers of this machine map the file of the index; others cannot."""
    monkeypatch.setattr("shoal.stream.workers.packed_work._SMALL_ROWS", 1000)
    (tmp_path / "in").mkdir()
    for shard in range(2):
        (tmp_path / "in" / f"{shard}.jsonl").write_text("".join(f"{number}\n" for number in range(1500)))
    assert shoal.open(tmp_path / "in").num_samples == 3000  # makes the index, in the cache
    every: list[dict[str, Any]] = [{}, {"mix": True, "memory": "8MiB"}]
    for options in every:
        home = tmp_path / f"out-{len(options)}"
        job = plan_repack(tmp_path / "in", home, shard_bytes="8KB", **options)
        shipped = [pickle.dumps(job.task(number)) for number in job.missing()]
        whole = pickle.dumps(job)
        shutil.move(cache, tmp_path / "gone")
        assert all(str(cache).encode() + b"/" not in data for data in shipped)
        for data in shipped[1:]:
            pickle.loads(data)()
        pickle.loads(whole).run(0)
        shutil.move(tmp_path / "gone", cache)
        assert job.finish().num_samples == 3000


def test_a_unit_has_its_own_shards_alone(tmp_path: Path) -> None:
    def largest(num_samples: int, **options: Any) -> int:
        home = tmp_path / f"{num_samples}{len(options)}"
        rows = ({"x": number, "text": f"text of {number}"} for number in range(num_samples))
        pack(rows, home / "in", format="jsonl", shard_bytes="4KiB", columns=["x"])
        job = plan_repack(home / "in", home / "out", shard_bytes="4KiB", **options)
        return max(len(pickle.dumps(job.task(number))) for number in job.missing())

    assert largest(4000) < 1.2 * largest(500)
    assert largest(4000, balance="x") < 1.2 * largest(500, balance="x")


@pytest.mark.parametrize("name", ["tar", "parquet", "mds"])
def test_units_without_keys_and_with_heads(tmp_path: Path, name: str) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow")
    with Writer(tmp_path / "in", format=name if name != "tar" else "jsonl", shard_bytes="2KiB") as writer:
        for number in range(300):
            writer.write({"text": f"text of {number}", "n": number})
    options: dict[str, Any] = {"format": name, "shard_bytes": "3KiB"} | ({"decode": True} if name == "tar" else {})
    repack(tmp_path / "in", tmp_path / "here", num_workers=1, **options)
    job = plan_repack(tmp_path / "in", tmp_path / "there", **options)
    assert job.num_units > 2
    for number in reversed(job.missing()):
        pickle.loads(pickle.dumps(job.task(number)))()
    job.finish()
    assert contents_of(tmp_path / "there") == contents_of(tmp_path / "here")
    if name == "tar":
        assert shoal.open(tmp_path / "there")[299]["__key__"] == "000000299"
