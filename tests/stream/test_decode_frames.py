"""Frames through streams: windows, laws of delivery and resume, workers, counts and damage."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.robots import CAMERAS, FPS, number_in, write_robot

import shoal
from shoal.errors import ShardError, UsageError
from shoal.stream.dataset import Dataset

pytest.importorskip("av")
pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

LENGTHS = (7, 12, 3, 9, 1, 14, 20)
NUM_ROWS = sum(LENGTHS)
FIRSTS = np.concatenate([[0], np.cumsum(LENGTHS)])
TOP, WRIST = CAMERAS
OFFSETS = {TOP: [-3, -1, 0], "action": range(4)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot(tmp_path_factory.mktemp("robot"), LENGTHS)


@pytest.fixture
def rows(root: Path) -> Dataset:
    return shoal.open(f"lerobot://{root}")


def windows(rows: Dataset) -> Dataset:
    return rows.windows(offsets=OFFSETS, pad="edge").decode_frames(max_concurrency=3)


def check_window(window: dict[str, Any]) -> int:
    """The anchor row of a window, whose frames and actions are checked."""
    index = int(window["index"])
    episode = int(np.searchsorted(FIRSTS, index, side="right")) - 1
    for name, offsets, values in (
        (TOP, OFFSETS[TOP], [number_in(frame) for frame in window[TOP]]),
        ("action", OFFSETS["action"], window["action"][:, 0].tolist()),
    ):
        wanted = index + np.array(offsets)
        inside = np.clip(wanted, FIRSTS[episode], FIRSTS[episode + 1] - 1)
        assert values == inside.tolist()
        assert np.array_equal(window[f"{name}_is_pad"], wanted != inside)
    assert number_in(window[WRIST]) == index
    return index


def indices_in(batches: Any) -> list[int]:
    """The anchor rows in batches, each checked; repeats are left out."""
    found: list[int] = []
    for batch in batches:
        names = [name for name in batch if name != "__pad__"]
        numbers = np.flatnonzero(~repeats_in(batch))
        found += [check_window({name: batch[name][number] for name in names}) for number in numbers]
    return found


def repeats_in(batch: dict[str, Any]) -> Any:
    return batch.get("__pad__", np.zeros(len(batch["index"]), dtype=bool))


def test_windows_have_the_frames_of_their_rows(rows: Dataset) -> None:
    ds = windows(rows)
    assert sorted(check_window(window) for window in ds.shuffle(seed=2)) == list(range(NUM_ROWS))
    assert [check_window(ds[number]) for number in range(NUM_ROWS)] == list(range(NUM_ROWS))


@pytest.mark.parametrize("world_size", [1, 3])
def test_ranks_deliver_each_window_once(rows: Dataset, world_size: int) -> None:
    stream = windows(rows).shuffle(seed=3).batch(4)
    parts = [list(stream.partition(rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert sorted(itertools.chain(*map(indices_in, parts))) == list(range(NUM_ROWS))


@pytest.mark.parametrize("stop", [1, 4])
def test_a_resumed_run_continues_on_other_ranks(rows: Dataset, stop: int) -> None:
    def stream(rank: int, world_size: int, size: int) -> Dataset:
        return windows(rows).shuffle(seed=3).batch(size).partition(rank=rank, world_size=world_size)

    ranks = [stream(rank, 2, 4) for rank in range(2)]
    before = [list(itertools.islice(ds, stop)) for ds in ranks]
    state = ranks[0].state_dict()
    after = []
    for rank in range(3):
        ds = stream(rank, 3, 2)
        ds.load_state_dict(state)
        after.append(list(ds))
    delivered = [index for batches in (*before, *after) for index in indices_in(batches)]
    assert sorted(delivered) == list(range(NUM_ROWS))


def test_frames_that_several_fields_need_are_decoded_once(rows: Dataset) -> None:
    twice = rows.map(lambda row: {**row, "again": row[TOP], "both": np.array([row[TOP], row[TOP]])}).decode_frames()
    stream = twice.take(5)
    for row in stream:
        assert [number_in(row[name]) for name in (TOP, "again")] == [row["index"]] * 2
        assert row["both"].shape == (2, *row[TOP].shape)
    stats, plain = stream.stats(), rows.decode_frames().take(5)
    list(plain)
    assert stats["num_decoded_frames"] == plain.stats()["num_decoded_frames"]
    assert (stats["num_frames"], plain.stats()["num_frames"]) == (5 * 5, 5 * 2)


def test_counts_are_those_of_the_run(rows: Dataset, root: Path) -> None:
    stream = windows(rows).shuffle(seed=1)
    assert len(list(stream)) == NUM_ROWS
    stats = stream.stats()
    assert stats["num_frames"] == NUM_ROWS * (len(OFFSETS[TOP]) + 1)
    assert stats["num_decoded_frames"] >= stats["num_frames"] // 2
    total = sum(path.stat().st_size for path in root.rglob("*.mp4"))
    assert 0 < stats["video_bytes"] <= total  # all is kept, and nothing is read twice
    assert stats["served_video_bytes"] > 0
    assert stats["num_video_reads"] <= stats["num_frames"]
    less = rows.decode_frames(keep=1).shuffle(seed=1)
    list(less)
    assert less.stats()["video_bytes"] > total


def test_renamed_and_mixed_cameras_are_decoded(rows: Dataset) -> None:
    renamed = rows.rename(top=TOP).decode_frames()
    assert number_in(renamed[9]["top"]) == 9
    other = rows.columns("index", TOP).decode_frames()
    mixed = shoal.mix({"a": other, "b": other}, weights={"a": 1, "b": 1}, epoch_size=20).shuffle(seed=0)
    for sample in mixed:
        assert number_in(sample[TOP]) == sample["index"]
    assert mixed.stats()["num_frames"] == 20


def test_damage_is_skipped_and_counted(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    ds = shoal.open(f"lerobot://{copy}")
    video = copy / "videos" / TOP / "chunk-000" / "file-001.mp4"
    data = bytearray(video.read_bytes())
    middle = data.index(b"mdat") + 4
    data[middle + 900 : middle + 1100] = bytes(200)
    video.write_bytes(data)
    frames = shoal.open(f"lerobot://{copy}").decode_frames()
    with pytest.raises(ShardError, match=r"the packets of the group at \d") as raised:
        list(frames)
    assert raised.value.shard == f"videos/{TOP}/chunk-000/file-001.mp4"
    assert any("in the sample with id" in note for note in raised.value.__notes__)
    skipping = frames.reading(on_error="skip").batch(5)
    delivered = [index for batch in skipping for index in batch["index"][~repeats_in(batch)].tolist()]
    stats = skipping.stats()
    assert 0 < stats["num_skipped"] < LENGTHS[3] + LENGTHS[4] + LENGTHS[5]
    assert sorted(delivered + stats["skipped_ids"]) == list(range(ds.num_samples))


def rewritten(root: Path, copy: Path, column: str, number: int, value: Any) -> Dataset:
    """A copy of the dataset with another value in one row of the first file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(root, copy)
    path = min((copy / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[number] = value
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, column, pa.array(values, table.schema.field(place).type)), path)
    return shoal.open(f"lerobot://{copy}")


@pytest.mark.parametrize("seconds", [float("nan"), None, float("inf")])
def test_a_row_whose_time_is_no_number_has_no_frame(seconds: float | None, root: Path, tmp_path: Path) -> None:
    rows = rewritten(root, tmp_path / "copy", "timestamp", 3, seconds)
    with pytest.raises(ShardError, match="no frame within"):
        rows.decode_frames()[3]
    skipping = rows.decode_frames().reading(on_error="skip")
    assert [row["index"] for row in skipping] == [number for number in range(NUM_ROWS) if number != 3]
    assert skipping.stats()["skipped_ids"] == [3]


@pytest.mark.parametrize(("column", "value"), [("episode_index", None), ("episode_index", 99), ("task_index", None)])
def test_windows_beside_a_row_without_a_video_are_decoded(column: str, value: Any, root: Path, tmp_path: Path) -> None:
    rows = rewritten(root, tmp_path / "copy", column, 10, value)
    with pytest.raises(ShardError, match=r"data/chunk-000/file-000\.parquet"):
        rows[10]
    windows = rows.windows(offsets={TOP: [-1, 0], WRIST: [0, 1]}, by=None).decode_frames()
    skipping = windows.reading(on_error="skip").with_ids()
    for window in skipping:
        assert [number_in(frame) for frame in window[TOP]] == [window["index"] - 1, window["index"]]
        assert [number_in(frame) for frame in window[WRIST]] == [window["index"], window["index"] + 1]
    anchors = windows.index_column("anchor_row")[skipping.stats()["skipped_ids"]]
    assert anchors.tolist() == [9, 10, 11]
    batches = [*rows.windows(offsets={TOP: [-1, 0]}, by=None).reading(on_error="skip").batch(4)]
    assert all(batch[TOP].dtype == batch[WRIST].dtype for batch in batches)


def test_arguments_are_checked(rows: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="batch"):
        rows.batch(4).decode_frames()
    with pytest.raises(UsageError, match="tolerance"):
        rows.decode_frames(tolerance=0)
    with pytest.raises(UsageError, match="keep"):
        rows.decode_frames(keep="much")
    with pytest.raises(UsageError, match="max_concurrency"):
        rows.decode_frames(max_concurrency=0)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="refer to none"):
        shoal.open(tmp_path / "a.jsonl").decode_frames()
    far = rows.map(lambda row: {**row, TOP: _moved(row[TOP])}).decode_frames()
    with pytest.raises(ShardError, match=r"no frame within 0\.0001 s"):
        far[3]
    assert number_in(rows.map(lambda row: {**row, TOP: _moved(row[TOP])}).decode_frames(tolerance=0.06)[3][TOP]) in (
        3,
        4,
    )


def _moved(frame: Any) -> Any:
    moved = np.array(frame)
    moved["seconds"] += 0.4 / FPS
    return moved[()]
