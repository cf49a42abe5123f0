"""LeRobot datasets by name: rows, references to frames, texts and splits of both layouts, and errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.robots import CAMERAS, FPS, TASKS, number_in, write_robot

import shoal
from shoal.errors import IndexFileError, ShardError, ShoalError, SourceError
from shoal.formats.tables.episode_rows import FRAME
from shoal.testing import Fault, RangeServer

pytest.importorskip("av")

LENGTHS = (7, 12, 3, 9, 1, 14)
NUM_ROWS = sum(LENGTHS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module", params=["v3.0", "v2.1"])
def robot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot(tmp_path_factory.mktemp("robot"), LENGTHS, version=request.param)


@pytest.fixture
def copy(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot(tmp_path / "robot", (3, 5), episodes_per_file=1)


def test_rows_have_texts_and_references(robot: Path) -> None:
    ds = shoal.open(f"lerobot://{robot}")
    rows = list(ds)
    assert [row["index"] for row in rows] == list(range(NUM_ROWS)) == [ds[i]["index"] for i in range(NUM_ROWS)]
    assert [row["task"] for row in rows] == [TASKS[row["episode_index"] % 2] for row in rows]
    assert np.array_equal([row["observation.state"][1] for row in rows], -np.arange(NUM_ROWS))
    for camera in CAMERAS:
        assert {row[camera].dtype for row in rows} == {FRAME}
    first = rows[7][CAMERAS[0]]
    begins = 7 / FPS if len(ds.stream.opened.paths) == 2 else 0.0
    assert first["seconds"] == pytest.approx(begins)


def test_batches_have_the_values_of_samples(robot: Path) -> None:
    ds = shoal.open(f"lerobot://{robot}")
    (batch,) = ds.batch(NUM_ROWS)
    for row, sample in enumerate(ds):
        assert sample.keys() == batch.keys()
        assert all(np.array_equal(batch[name][row], value) for name, value in sample.items())


def test_every_frame_is_that_of_its_row(robot: Path) -> None:
    frames = shoal.open(f"lerobot://{robot}").decode_frames()
    for row in frames.shuffle(seed=1):
        assert [number_in(row[camera]) for camera in CAMERAS] == [row["index"]] * 2


@pytest.mark.parametrize("names", [("task",), (CAMERAS[1], "index"), ("action", "index"), ("episode_index", "task")])
def test_columns_decode_what_they_need(robot: Path, names: tuple[str, ...]) -> None:
    ds = shoal.open(f"lerobot://{robot}")
    whole = list(ds)
    chosen = ds.columns(*names)
    assert [list(row) for row in chosen] == [list(names)] * NUM_ROWS
    for some in (list(chosen), [chosen[i] for i in range(NUM_ROWS)]):
        assert all(np.array_equal(one[name], row[name]) for one, row in zip(some, whole, strict=True) for name in names)


def test_a_directory_is_recognised(robot: Path) -> None:
    assert [row["task"] for row in shoal.open(robot)] == [row["task"] for row in shoal.open(f"lerobot://{robot}")]
    raw = shoal.open(f"{robot}/data/*/*.parquet")
    assert raw.num_samples == NUM_ROWS
    assert "task" not in raw[0]


def test_splits_are_episodes(robot: Path) -> None:
    val = shoal.open(f"lerobot://{robot}", split="val")
    assert [row["index"] for row in val] == list(range(NUM_ROWS - 14, NUM_ROWS))
    assert shoal.open(f"lerobot://{robot}", split="train").num_samples == NUM_ROWS - 14
    assert shoal.open(f"lerobot://{robot}", split=["train", "val"]).num_samples == NUM_ROWS
    with pytest.raises(SourceError, match=r"no split 'vall'; the splits in meta/info.json are train, val"):
        shoal.open(f"lerobot://{robot}", split="vall")


def test_the_layouts_give_the_same(tmp_path: Path) -> None:
    one, other = (write_robot(tmp_path / version, (4, 6), version=version) for version in ("v3.0", "v2.1"))
    rows = [list(shoal.open(f"lerobot://{root}").decode_frames()) for root in (one, other)]
    for new, old in zip(*rows, strict=True):
        assert new.keys() == old.keys()
        assert all(np.array_equal(new[name], old[name]) for name in new if name not in CAMERAS)
        assert all(number_in(new[name]) == number_in(old[name]) for name in CAMERAS)


def test_a_dataset_without_videos_is_rows(copy: Path) -> None:
    info = json.loads((copy / "meta/info.json").read_text())
    info["features"] = {name: value for name, value in info["features"].items() if name not in CAMERAS}
    (copy / "meta/info.json").write_text(json.dumps(info))
    shutil.rmtree(copy / "videos")
    assert [row["index"] for row in shoal.open(f"lerobot://{copy}")] == list(range(8))


def test_opening_again_reads_no_video(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="shoal"):
        shoal.open(f"lerobot://{copy}")
        assert "the keyframes of 4 videos" in caplog.text
        caplog.clear()
        shoal.open(f"lerobot://{copy}")
        assert "keyframes" not in caplog.text


def test_an_index_belongs_to_its_videos(copy: Path) -> None:
    path = shoal.open(f"lerobot://{copy}").stream.opened.index_path
    assert path is not None
    assert shoal.open(f"lerobot://{copy}", index=path).num_samples == 8
    video = next(copy.glob("videos/*/*/file-000.mp4"))
    video.write_bytes(video.read_bytes() + bytes(8))
    with pytest.raises(IndexFileError, match="lerobot"):
        shoal.open(f"lerobot://{copy}", index=path)


def test_over_http_without_listings_and_with_faults(copy: Path) -> None:
    objects = {f"b/{path.relative_to(copy)}": path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    faults = [Fault("status", requests=range(3, 400, 7), status=503), Fault("reset", requests=range(5, 400, 11))]
    with RangeServer(objects, faults=faults) as server:
        frames = shoal.open(f"lerobot://{server.url_of('b')}", storage_options={"deadline_seconds": 60}).decode_frames()
        stream = frames.shuffle(seed=0)
        for row in stream:
            assert [number_in(row[camera]) for camera in CAMERAS] == [row["index"]] * 2
    stats = stream.stats()
    assert stats["num_retries"] > 0
    assert stats["num_requests"] > stats["num_video_reads"] > 0
    assert stats["requested_bytes"] >= stats["video_bytes"] > 0
    assert stats["in_flight_bytes"] == 0


def _without_episodes(root: Path) -> None:
    shutil.rmtree(root / "meta/episodes")


def _without_a_video(root: Path) -> None:
    next(root.glob("videos/*/*/*.mp4")).unlink()


def _with_half_a_video(root: Path) -> None:
    video = next(root.glob("videos/*/*/*.mp4"))
    video.write_bytes(video.read_bytes()[: video.stat().st_size // 2])


def _of_version(version: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        info = json.loads((root / "meta/info.json").read_text())
        (root / "meta/info.json").write_text(json.dumps(info | {"codebase_version": version}))

    return change


def _with_an_episode_twice(root: Path) -> None:
    (path,) = root.glob("meta/episodes/*/*.parquet")
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), path)


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        (lambda root: (root / "meta/info.json").unlink(), SourceError, "there is no meta/info.json"),
        (lambda root: (root / "meta/info.json").write_text("{"), SourceError, "not the description"),
        (_of_version("v1.6"), SourceError, "codebase_version is 'v1.6'"),
        (_of_version("v4.0"), SourceError, "codebase_version is 'v4.0'"),
        (_without_episodes, SourceError, "no files in meta/episodes"),
        (_with_an_episode_twice, SourceError, "3 episodes are described"),
        (_without_a_video, ShoalError, "mp4"),
        (_with_half_a_video, ShardError, "mp4"),
    ],
)
def test_what_is_missing_is_said(
    copy: Path, change: Callable[[Path], None], error: type[ShoalError], what: str
) -> None:
    change(copy)
    with pytest.raises(error, match=what):
        shoal.open(f"lerobot://{copy}")


def test_versions_are_not_of_robots(copy: Path) -> None:
    with pytest.raises(SourceError, match="version="):
        shoal.open(f"lerobot://{copy}", version=3)


def test_a_row_of_another_dataset_is_an_error(copy: Path) -> None:
    path = copy / "data/chunk-000/file-001.parquet"
    table = pq.read_table(path)
    number = table.column_names.index("episode_index")
    pq.write_table(table.set_column(number, "episode_index", pa.array([99] * table.num_rows)), path)
    with pytest.raises(ShardError, match="an episode of \\[99\\] has no video") as raised:
        list(shoal.open(f"lerobot://{copy}"))
    assert raised.value.shard == "data/chunk-000/file-001.parquet"
