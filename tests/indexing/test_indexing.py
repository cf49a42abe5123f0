from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ShardError, ShoalError, UsageError
from shoal.formats.format_registry import format_named
from shoal.index.index_file import encode
from shoal.index.table import Index
from shoal.indexing.build import build_index
from shoal.indexing.scan import processes
from shoal.indexing.scan.scan_task import ScanTask
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import Source, expand

PACKAGE_HOME = Path(__file__).parents[2] / "src"


def write_lines(path: Path, first: int, count: int, *, width: int = 40) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'{{"id": {number}, "pad": "{"x" * width}"}}\n' for number in range(first, first + count)))


def write_tar(path: Path, first: int, count: int) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(first, first + count):
            info = tarfile.TarInfo(f"{number:06d}.txt")
            info.size = 300
            tar.addfile(info, BytesIO(str(number).encode().ljust(300)))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    for number in range(6):
        write_lines(tmp_path / "data ü" / f"{number:03d}.jsonl", 1000 * number, 1000)
    return tmp_path / "data ü"


def index_of(source: Path | str, **options: object) -> Index:
    found = expand(source, suffixes=(".tar", ".jsonl"))
    name = "tar" if found.paths[0].endswith(".tar") else "jsonl"
    return build_index(found, store=LocalStore(), format=format_named(name), **options)  # type: ignore[arg-type]


def assert_equal(one: Index, other: Index) -> None:
    assert one.fingerprint == other.fingerprint
    assert one.shard_names == other.shard_names
    for column in ("shard_bytes", "extent_shard", "extent_first_byte", "extent_layout_crc", "sample_bytes"):
        assert np.array_equal(getattr(one, column), getattr(other, column))


def entries(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_inline_and_in_processes_agree(lines: Path, tmp_path: Path) -> None:
    inline = index_of(lines, workers=0)
    parallel = index_of(lines, workers=2, cache_dir=tmp_path / "cache")
    assert_equal(inline, parallel)
    assert int(inline.extent_num_samples.sum()) == 6000
    assert entries(tmp_path / "cache") == ["scans"]


def test_an_index_is_printed_by_its_counts(lines: Path) -> None:
    index = index_of(lines)
    assert repr(index) == f"<shoal index: 6000 samples in {index.num_extents} extents of 6 jsonl shards>"


def test_shards_keep_the_order_given(lines: Path, tmp_path: Path) -> None:
    index = index_of(f"{lines}/{{005,001,003}}.jsonl", workers=2, cache_dir=tmp_path / "cache")
    assert index.shard_names == ("005.jsonl", "001.jsonl", "003.jsonl")


def test_small_data_starts_no_process_and_keeps_nothing(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "start_python", pytest.fail)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(lines.parent / "cache"))
    index_of(lines)
    assert not (lines.parent / "cache").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_rises_to_the_whole(lines: Path, tmp_path: Path, workers: int) -> None:
    said: list[tuple[int, int, int]] = []
    index = index_of(lines, workers=workers, cache_dir=tmp_path / "c", progress=lambda *numbers: said.append(numbers))
    total = int(index.shard_bytes.sum())
    assert said == sorted(said)
    assert said[-1] == (total, total, 6000)
    assert len(said) >= 6


def test_an_error_in_a_worker_arrives_as_it_was_raised(tmp_path: Path) -> None:
    for number in range(4):
        write_tar(tmp_path / f"{number}.tar", 10 * number, 10)
    os.truncate(tmp_path / "2.tar", 2500)
    caught = []
    for workers in (0, 2):
        with pytest.raises(ShardError) as error:
            index_of(tmp_path / "2.tar", workers=workers, cache_dir=tmp_path / "cache")
        caught.append(error.value)
    assert str(caught[0]) == str(caught[1])
    assert caught[1].shard == "2.tar"
    assert caught[1].byte == caught[0].byte
    with pytest.raises(ShardError, match=r"^2\.tar"):
        index_of(tmp_path, workers=2, cache_dir=tmp_path / "cache")
    # The good ones are kept until the index is made.
    assert sum(name.endswith(".scan") for name in entries(tmp_path / "cache")) >= 1


def fake_worker(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_killed_worker_is_reported_with_its_signal_and_shard(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, sys; sys.stdin.buffer.read(16); os.kill(os.getpid(), 9)"
    monkeypatch.setattr(processes, "start_python", lambda *_, **__: fake_worker(code))
    with pytest.raises(ShoalError, match=r"00\d\.jsonl: the process that scanned this shard was killed by SIGKILL"):
        index_of(lines, workers=2, cache_dir=lines.parent / "cache")


def test_a_worker_that_cannot_start_is_reported(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "start_python", lambda *_, **__: fake_worker("import sys; sys.exit(3)"))
    with pytest.raises(ShoalError, match="ended with exit status 3") as caught:
        index_of(lines, workers=1, cache_dir=lines.parent / "cache")
    assert "SHOAL_INDEX_WORKERS=0" in caught.value.hint


def test_a_bug_in_a_worker_keeps_its_traceback(lines: Path) -> None:
    found = expand(lines / "000.jsonl", suffixes=(".jsonl",))
    wrong = Source(found.kind, found.typed, found.root, (7,), found.paths)  # type: ignore[arg-type]
    task = ScanTask(0, wrong.names[0], wrong.paths[0], "many", "")  # type: ignore[arg-type]
    with pytest.raises(ShoalError, match="TypeError") as caught:
        list(processes.scan_in_processes([task], format_named("jsonl"), num_workers=1, on_progress=lambda *_: None))
    assert "Traceback" in caught.value.__notes__[0]


@pytest.mark.parametrize("text", ["-1", "many"])
def test_wrong_number_of_workers(lines: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SHOAL_INDEX_WORKERS", text)
    with pytest.raises(UsageError, match="SHOAL_INDEX_WORKERS"):
        index_of(lines)
    with pytest.raises(UsageError, match="workers=-2"):
        index_of(lines, workers=-2)


def test_a_users_own_format_is_scanned_in_this_process(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(type(format_named("jsonl"))):  # type: ignore[misc]
        pass

    monkeypatch.setattr(processes, "start_python", pytest.fail)
    found = expand(lines, suffixes=(".jsonl",))
    index = build_index(found, store=LocalStore(), format=Own(), workers=2, cache_dir=lines.parent / "cache")
    assert int(index.extent_num_samples.sum()) == 6000


BUILD = """
import os, sys, time
from shoal.formats.format_registry import format_named
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import expand
from shoal.indexing.build import build_index

def progress(done, total, samples):
    print(done, total, samples, flush=True)
    time.sleep(float(os.environ["PAUSE"]))

found = expand(sys.argv[1], suffixes=(".jsonl",))
build_index(found, store=LocalStore(), format=format_named("jsonl"), workers=2, progress=progress)
"""


def start_build(lines: Path, mark: str, *, pause_seconds: float) -> subprocess.Popen[str]:
    environment = os.environ | {
        "SHOAL_CACHE_DIR": str(lines.parent / "cache"),
        "SHOAL_TEST_MARK": mark,
        "PAUSE": str(pause_seconds),
        "PYTHONPATH": str(PACKAGE_HOME),
    }
    command = [sys.executable, "-c", BUILD, str(lines)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def processes_with(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def wait_until_gone(mark: str) -> None:
    deadline = time.monotonic() + 10
    while processes_with(mark):
        assert time.monotonic() < deadline, processes_with(mark)
        time.sleep(0.02)


def test_a_killed_build_leaves_no_process_and_goes_on_where_it_was(lines: Path) -> None:
    mark = uuid.uuid4().hex
    with start_build(lines, mark, pause_seconds=0.2) as build:
        assert build.stdout is not None
        for _ in range(3):
            build.stdout.readline()
        build.kill()
    wait_until_gone(mark)
    kept = [name for name in entries(lines.parent / "cache") if name.endswith(".scan")]
    assert len(kept) >= 2
    (lines.parent / "cache" / kept[0]).write_bytes(b"torn")
    os.utime(lines / "000.jsonl")
    write_lines(lines / "005.jsonl", 5000, 1000, width=41)

    again = index_of(lines, workers=2, cache_dir=lines.parent / "cache")
    assert_equal(again, index_of(lines, workers=0))
    assert entries(lines.parent / "cache") == ["scans"]


def test_finished_scans_are_used_and_not_made_again(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = lines.parent / "cache"
    done = 0

    def stop_after_three(_done: int, _total: int, samples: int) -> None:
        nonlocal done
        done = samples
        if samples >= 3000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index_of(lines, workers=1, cache_dir=cache, progress=stop_after_three)
    assert done == 3000
    scanned = []
    start = processes.scan_in_processes

    def counted(tasks: list[ScanTask], *args: object, **options: object) -> object:
        scanned.extend(tasks)
        return start(tasks, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("shoal.indexing.build.scan_in_processes", counted)
    assert_equal(index_of(lines, workers=1, cache_dir=cache), index_of(lines, workers=0))
    assert len(scanned) == 3


@pytest.mark.parametrize(
    ("part_shards", "workers"),
    [(1, 0), (2, 2), (4, 0), *(pytest.param(*pair, marks=pytest.mark.drill) for pair in ((1, 2), (2, 0), (4, 2)))],
)
def test_parts_of_an_index_make_the_same(
    lines: Path, monkeypatch: pytest.MonkeyPatch, part_shards: int, workers: int
) -> None:
    write_lines(lines / "003.jsonl", 0, 0)
    whole = index_of(lines, workers=0)
    monkeypatch.setattr("shoal.indexing.build.PART_SHARDS", part_shards)
    assert b"".join(encode(index_of(lines, workers=workers))) == b"".join(encode(whole))
    monkeypatch.setattr("shoal.indexing.build.MANY_SAMPLES", whole.num_samples)
    assert index_of(lines, workers=0).sample_bytes is None
    monkeypatch.setattr("shoal.indexing.build.MANY_SAMPLES", whole.num_samples + 1)
    assert index_of(lines, workers=0).sample_bytes is not None


def test_scans_of_many_tiny_shards_are_not_kept(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = lines.parent / "cache"

    def stop(_done: int, _total: int, samples: int) -> None:
        if samples >= 2000:
            raise KeyboardInterrupt

    for many, kept in ((100, True), (2, False)):
        monkeypatch.setattr("shoal.indexing.build.MANY_SHARDS", many)
        with pytest.raises(KeyboardInterrupt):
            index_of(lines, workers=1, cache_dir=cache, progress=stop)
        assert any(name.endswith(".scan") for name in entries(cache)) == kept
        shutil.rmtree(cache, ignore_errors=True)


def test_ctrl_c_leaves_no_process(lines: Path) -> None:
    mark = uuid.uuid4().hex
    with start_build(lines, mark, pause_seconds=0.3) as build:
        assert build.stdout is not None
        assert build.stderr is not None
        build.stdout.readline()
        build.send_signal(signal.SIGINT)
        said = build.stderr.read()
    assert said.count("KeyboardInterrupt") == 1
    assert "scan_worker" not in said
    wait_until_gone(mark)


def test_a_cache_that_cannot_be_written_is_a_warning(
    lines: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    index = index_of(lines, workers=1, cache_dir=tmp_path / "file")
    assert int(index.extent_num_samples.sum()) == 6000
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_module_in_the_users_directory_does_not_become_the_workers(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    assert index_of(lines, workers=1, cache_dir=tmp_path / "cache").shard_names[0] == "000.jsonl"
