"""The demonstration shows what is so, on fewer files than the real one."""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.cli.demo import demo
from shoal.cli.demo.demo import Scale, show
from shoal.cli.demo.demo_data import FileSet, SourceFile, find_files, pack
from shoal.cli.demo.demo_report import resumed_text
from shoal.cli.demo.demo_run import Resumed, resume_elsewhere
from shoal.cli.main import main
from shoal.errors import UsageError

SMALL = Scale(num_shards=4, extent_bytes=16 << 10, window="2560KiB", num_epochs=10, global_batch=24)
NUM_FILES = 1280


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> FileSet:
    """A standard library of 32 packages of 40 modules."""
    root = tmp_path_factory.mktemp("library")
    for number in range(NUM_FILES):
        path = root / f"package{number // 40:02d}" / f"module{number % 40:02d}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {number}\n" * (900 + number % 13))
    return find_files(root)


def test_files_are_found_sorted_and_others_left_out(tmp_path: Path) -> None:
    for name in ("json/decoder.py", "abc.py", "json/big.py", "site-packages/x.py", "json/__pycache__/decoder.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x" * (5000 if "big" in name else 10))
    (tmp_path / "link.py").symlink_to(tmp_path / "abc.py")
    files = find_files(tmp_path, largest_bytes=1000)
    assert [(file.name, file.package) for file in files.files] == [("abc.py", "modules"), ("json/decoder.py", "json")]
    assert (files.num_large, files.num_unreadable, files.num_bytes) == (1, 0, 20)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="everything is readable here")
def test_an_unreadable_file_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x")
    (tmp_path / "a.py").chmod(0)
    assert find_files(tmp_path).num_unreadable == 1


def test_every_file_is_one_sample_whatever_its_name(tmp_path: Path) -> None:
    names = ["a.py", "a.txt", "a_txt.txt", "b.c.d.PY", "noext", ".hidden", "__phello__/__init__.py", "x.package"]
    (tmp_path / "in/__phello__").mkdir(parents=True)
    files = []
    for name in sorted(names):
        (tmp_path / "in" / name).write_bytes(name.encode())
        files.append(SourceFile(str(tmp_path / "in" / name), name, len(name)))
    pack(files, tmp_path / "out", num_shards=1)
    samples = list(shoal.open(tmp_path / "out").partition(rank=0, world_size=1))
    assert len(samples) == len(names)
    contents = [
        [value for field, value in sample.items() if field not in {"__key__", "package"} and field[:2] != "__"]
        for sample in samples
    ]
    assert contents == [[file.name.encode()] for file in files]
    assert [sample["package"].decode() for sample in samples] == [file.package for file in files]


def test_shards_are_the_same_bytes_every_time_and_about_equal(library: FileSet, tmp_path: Path) -> None:
    for place in ("a", "b"):
        pack(library.files, tmp_path / place, num_shards=4)
    shards = sorted((tmp_path / "a").iterdir())
    assert [shard.name for shard in shards] == [f"stdlib-00000{number}.tar" for number in range(4)]
    for shard in shards:
        assert shard.read_bytes() == (tmp_path / "b" / shard.name).read_bytes()
        with tarfile.open(shard) as tar:
            assert {member.mtime for member in tar} == {0}
    sizes = [shard.stat().st_size for shard in shards]
    assert max(sizes) < 1.2 * min(sizes)


def test_the_numbers_say_that_a_window_mixes(
    library: FileSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = show(library, tmp_path / "shards", picture=tmp_path / "a.png", as_json=True, scale=SMALL)
    record = json.loads(capsys.readouterr().out)
    assert code == 0
    assert record["resumed_exactly"]
    assert record["num_equal_batches"] == record["num_batches_after"] == 27
    rows = {row["order"]: row for row in record["orders"]}
    assert list(rows) == ["none", "buffer", "window", "full"]
    ratios = {name: row["variance_ratios"]["64"] for name, row in rows.items()}
    assert ratios["none"] > ratios["buffer"] > 2 * ratios["window"]
    assert ratios["full"] == pytest.approx(1.0, abs=0.15)
    assert rows["none"]["correlation"] == pytest.approx(1.0)
    assert rows["window"]["distinct_per_batch"] <= record["expected_distinct_per_batch"] + 0.2
    # The same memory, by what the window really held.
    assert record["buffer_record_bytes"] == pytest.approx(rows["window"]["held_bytes"], rel=0.02)
    assert len(json.dumps(record["state"])) < 1024


def test_the_text_is_short_and_the_picture_is_there(
    library: FileSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert show(library, tmp_path / "shards", picture=tmp_path / "a.png", as_json=False, scale=SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 120
    assert any("27 of 27 global batches" in line for line in lines)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_without_matplotlib_all_but_the_picture_is_there(
    library: FileSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "has_matplotlib", lambda: False)
    assert show(library, tmp_path / "shards", picture=tmp_path / "a.png", as_json=False, scale=SMALL) == 0
    assert "pip install matplotlib" in capsys.readouterr().out
    assert not (tmp_path / "a.png").exists()


@pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")  # a few chunks make the same point
def test_any_world_size_takes_up_where_one_rank_stopped(library: FileSet, tmp_path: Path) -> None:
    pack(library.files, tmp_path, num_shards=3)
    for world_size in (1, 2, 5):
        resumed = resume_elsewhere(
            lambda: shoal.open(tmp_path).shuffle(seed=7, window="1MiB"), global_batch=33, world_size=world_size
        )
        assert resumed.exact
        assert resumed.num_before + resumed.num_after == NUM_FILES


def test_a_resumed_run_that_differs_is_called_so(
    monkeypatch: pytest.MonkeyPatch, library: FileSet, tmp_path: Path
) -> None:
    pack(library.files, tmp_path, num_shards=3)
    honest = shoal.Dataset.load_state_dict

    def load(self: shoal.Dataset, state: dict[str, object]) -> None:
        # One sample off, as a loader that counts wrongly would be.
        honest(self, self.state_at(int(str(state["position"])) + 1))

    monkeypatch.setattr(shoal.Dataset, "load_state_dict", load)
    resumed = resume_elsewhere(lambda: shoal.open(tmp_path).shuffle("full"), global_batch=32, world_size=2)
    assert not resumed.exact
    assert not resumed.every_sample_once
    assert "NOT THE SAME" in resumed_text(resumed)


def test_the_verdict_needs_both_equal_batches_and_every_sample() -> None:
    good = Resumed({}, 48, 3, 10, 10, 5, 5, every_sample_once=True)
    assert good.exact
    assert not replace(good, num_equal_batches=4).exact
    assert not replace(good, every_sample_once=False).exact


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["demo", str(tmp_path), "--picture", str(tmp_path / "a.png")]) == 2
    assert "thesis.txt" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("picture", ["a.txt", "nowhere/a.png"])
def test_a_picture_that_cannot_be_is_refused_before_the_work(tmp_path: Path, picture: str) -> None:
    assert main(["demo", "--picture", str(tmp_path / picture)]) == 2


def test_too_few_files_are_refused(library: FileSet, tmp_path: Path) -> None:
    few = replace(library, files=library.files[:9])
    with pytest.raises(UsageError, match="9 files"):
        show(few, tmp_path / "shards", picture=tmp_path / "a.png", as_json=True, scale=SMALL)


def test_keys_of_ids_are_those_of_the_files(library: FileSet, tmp_path: Path) -> None:
    pack(library.files, tmp_path, num_shards=2)
    dataset = shoal.open(tmp_path)
    for number in np.linspace(0, NUM_FILES - 1, 7).astype(int).tolist():
        assert dataset[number]["__key__"] == f"lib/{library.files[number].name.removesuffix('.py')}"
