"""What `Dataset.windows` keeps and refuses: columns, choices, damage, bytes and states."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from tests.stream.windowing.rows_of_tests import open_rows, write_rows

import shoal
from shoal.errors import ShardError, StateError, UsageError
from shoal.formats.tables.parquet import Parquet
from shoal.formats.windows.window_format import Windows
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.windowing.windowed_index import ROWS_IN_NO_WINDOW, windowed_index
from shoal.order.partition import Partition
from shoal.orders import Window
from shoal.reading.checks.damaged_samples import read_sample
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.resolved_order import ResolvedOrder
from shoal.storage.files.local_store import LocalStore
from shoal.stream.dataset import Dataset
from shoal.stream.derived import window_recipe
from shoal.stream.iterating.iterator_specs import WorkerSpec
from shoal.stream.iterating.pipeline_spec import PipelineSpec
from shoal.stream.workers import packed_work

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

SHARDS = [[20, 30, 3], [40, 2], [33]]
NUM_ROWS = 128


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("rows")
    for form in ("jsonl", "tar", "parquet"):
        write_rows(home / form, SHARDS, form)
    return home


def rows_in(home: Path, form: str = "jsonl", extent_bytes: int = 900) -> Dataset:
    return open_rows(home / form, form, extent_bytes)


def opened(ds: Dataset) -> Opened:
    return ds.stream.opened.one("the test")


def test_rows_in_no_window_are_counted_and_told(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="shoal"):
        windows = rows_in(home).windows(4)
    told = "windows of 4 rows in 6 episodes by episode_index (5 of 128 rows are in no window, 2 episodes too short)"
    assert told in repr(windows)
    assert told in caplog.text
    assert opened(windows).index.notes[ROWS_IN_NO_WINDOW] == 5
    assert "no window" not in repr(rows_in(home).windows(4, pad="edge"))


def test_columns_have_the_value_of_the_anchor_row(home: Path) -> None:
    rows = shoal.open(home / "jsonl", index_columns=["number", "size=text:len"])
    windows = rows.windows(4, stride=3)
    anchors = windows.index_column("anchor_row")
    for name in ("number", "size"):
        assert windows.index_column(name).tolist() == rows.index_column(name)[anchors].tolist()
    of_two = windows.select(episode_index=[1, 3])
    assert {int(window["episode_index"][0]) for window in of_two} == {1, 3}


def test_episodes_are_given_by_an_array_of_texts_or_by_shards(home: Path) -> None:
    rows = rows_in(home)
    names = [f"day {number // 10}" for number in range(53)] + ["late"] * 42 + ["last"] * 33
    windows = rows.windows(4, by=names)
    assert "in 8 episodes by episode" in repr(windows)
    assert windows.select(episode=windows.index_column("episode")[0]).num_samples == 7
    assert rows.windows(10, by=None).num_samples == 128 - 3 * 9
    assert rows.windows(10, by="shard").num_samples == 128 - 3 * 9


def test_an_episode_in_two_places_is_refused_with_both(home: Path) -> None:
    rows = rows_in(home)
    with pytest.raises(UsageError, match=r"episode 0 \(by=the array\).*rows 0 to 3 in s-000.*rows 8 to 11 in s-000"):
        rows.windows(2, by=np.arange(128) // 4 % 2)
    with pytest.raises(UsageError, match=r"'b'.*rows 50 to 52 in s-000.jsonl; and rows 53 to 54 in s-001.jsonl"):
        rows.windows(2, by=["a"] * 50 + ["b"] * 5 + ["c"] * 40 + ["d"] * 33)


@pytest.mark.parametrize("form", ["jsonl", "tar", "parquet"])
def test_windows_of_selected_rows_have_only_selected_rows(home: Path, form: str) -> None:
    rows = rows_in(home, form)
    whole = rows.windows(4)
    chosen = rows.select(np.arange(128) % 50 > 5).windows(4)
    kept = {number for number in range(128) if number % 50 > 5}
    expected = [
        number
        for number, anchor in enumerate(whole.index_column("anchor_row").tolist())
        if {*range(anchor, anchor + 4)} <= kept
    ]
    assert chosen.ids().tolist() == expected
    with pytest.raises(UsageError, match="selected before"):
        rows.select(np.arange(0, 128, 2)).windows(4)


def test_a_split_by_episode_shares_no_row(home: Path) -> None:
    parts = rows_in(home).windows(4).split({"a": 0.5, "b": 0.5}, by="episode_index")
    a, b = ({int(number) for window in part for number in window["number"]} for part in parts.values())
    assert a
    assert b
    assert not a & b


def test_windows_share_no_memory(home: Path) -> None:
    windows = [*rows_in(home).windows(3)]
    windows[0]["state"][1][0] = -1.0
    windows[0]["number"][1] = -1
    assert windows[1]["state"][0][0] == 1.0
    assert windows[1]["number"][0] == 1


@pytest.mark.parametrize("call", ["shuffle", "map", "batch", "sample", "filter", "windows"])
def test_windows_are_made_of_stored_rows(home: Path, call: str) -> None:
    arguments: dict[str, Any] = {
        "map": [str], "batch": [3], "filter": [bool], "sample": [np.ones(128)], "windows": [2], "shuffle": []
    }  # fmt: skip
    after = getattr(rows_in(home), call)(*arguments[call])
    with pytest.raises(UsageError, match=call):
        after.windows(3)


def test_joined_rows_are_refused_and_windows_are_joined(home: Path, tmp_path: Path) -> None:
    tasks = ({"episode": number, "task": f"task {number}"} for number in range(6))
    shoal.pack.pack(tasks, tmp_path / "tasks", format="jsonl")
    other = shoal.open(tmp_path / "tasks")
    rows = rows_in(home)
    with pytest.raises(UsageError, match=r"join\(\) behind windows"):
        rows.join(other, on=("episode_index", "episode")).windows(4)
    joined = rows.windows(4).join(other, on=("episode_index", "episode")).shuffle(seed=1)
    assert all(sample["task"] == f"task {sample['episode_index'][0]}" for sample in joined)


def test_projection_reaches_the_rows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    projected = Parquet.projected

    def spied(self: Parquet, names: Any) -> Any:
        asked.append([*names])
        return projected(self, names)

    monkeypatch.setattr(Parquet, "projected", spied)
    windows = rows_in(home, "parquet").windows(offsets={"state": [-1, 0]}, pad="edge")
    (batch,) = windows.columns("state_is_pad", "number").take(5).batch(5)
    assert asked[-1] == ["state", "number"]
    assert batch["state_is_pad"].tolist() == [[True, False]] + [[False, False]] * 4


def test_states_of_other_windows_are_refused(home: Path) -> None:
    rows = rows_in(home)
    state = rows.windows(5, stride=2).shuffle(seed=0).state_dict()
    with pytest.raises(StateError, match=r"-5rows-stride2; this dataset is .*-4rows"):
        rows.windows(4).shuffle(seed=0).load_state_dict(state)
    other_borders = rows.windows(4, by=None).shuffle(seed=0)
    with pytest.raises(StateError):
        other_borders.load_state_dict(rows.windows(4).shuffle(seed=0).state_dict())


def test_a_field_named_like_a_mask_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"is_pad": 1}\n' * 5)
    rows = shoal.open(tmp_path / "a.jsonl")
    assert rows.windows(2, by=None)[0] == {"is_pad": pytest.approx([1, 1])}
    with pytest.raises(UsageError, match="'is_pad'"):
        rows.windows(2, by=None, pad="edge")[0]


def test_padding_must_fit_the_type(home: Path) -> None:
    padded = rows_in(home, "parquet").windows(3, pad=0.5).columns("number", "is_pad")
    assert padded[0]["number"].tolist() == [0, 1, 2]
    with pytest.raises(UsageError, match=r"'number' is of type int64, which has no such number"):
        padded[19]


def test_padding_in_lists_has_the_types_of_the_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": null}\n{"x": 1}\n{"x": 2.5}\n{"x": true}\n')
    rows = shoal.open(tmp_path / "a.jsonl")
    windows = rows.windows(offsets={"x": [-2, 0, 9]}, by=None, pad=0)
    assert [[*map(repr, window["x"])] for window in windows][1] == ["None", "1", "False"]


# ---- damage


def damaged(home: Path, tmp_path: Path, number: int) -> Dataset:
    """The rows with one line that is no JSON, with episodes from an array."""
    write_rows(tmp_path / "jsonl", SHARDS, "jsonl")
    for path in (tmp_path / "jsonl").iterdir():
        path.write_bytes(path.read_bytes().replace(b'"number": %d,' % number, b"'number': %d;" % number))
    return open_rows(tmp_path / "jsonl", "jsonl", 900)


@pytest.mark.parametrize("reads_ahead", [True, False])
def test_windows_with_a_damaged_row_are_skipped_and_counted(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_ahead: bool
) -> None:
    monkeypatch.setattr(LocalStore, "reads_ahead", reads_ahead)
    episodes = rows_in(home).windows(1).index_column("episode_index")
    windows = damaged(home, tmp_path, 30).windows(4, by=episodes).shuffle(seed=2)
    with pytest.raises(ShardError, match=r"s-000\.jsonl"):
        list(windows)
    skipping = windows.reading(on_error="skip").with_ids()
    sound = {int(window["__id__"]) for window in skipping}
    anchors = windows.index_column("anchor_row")
    has_row = (anchors <= 30) & (anchors > 26)
    assert sound == set(np.flatnonzero(~has_row).tolist())
    assert skipping.stats()["num_skipped"] == 4


def test_windows_beside_a_damaged_row_group_are_delivered(tmp_path: Path) -> None:
    directory = write_rows(tmp_path / "rows", [[60]], "parquet", group_rows=10)
    (path,) = directory.iterdir()
    rows = shoal.open(directory)
    index = opened(rows).index
    begin, end = int(index.extent_first_byte[2]), int(index.extent_end_byte[2])
    windows = rows.windows(3, by=None)
    data = bytearray(path.read_bytes())
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)
    skipping = shoal.open(directory).windows(3, by=None).reading(on_error="skip").with_ids()
    sound = {int(window["__id__"]) for window in skipping}
    assert sound == {anchor for anchor in range(58) if anchor + 2 < 20 or anchor >= 30}
    assert skipping.stats()["num_skipped"] == windows.num_samples - len(sound)


# ---- bytes


@pytest.mark.parametrize("form", ["jsonl", "tar"])
def test_each_row_is_read_once_in_storage_order(home: Path, form: str) -> None:
    windows = rows_in(home, form).windows(4)
    index = opened(windows).index
    extent_bytes = index.extent_end_byte - index.extent_first_byte
    assert int(extent_bytes.sum()) <= 1.6 * int(index.shard_bytes.sum())
    small = windows.shuffle(Window(chunks=4, num_canonical_nodes=1), chunk=int(index.extent_decoded_bytes.mean()) + 1)
    large = windows.shuffle(seed=0)  # a chunk is a shard
    for ds, most_bytes in ((small.batch(8), extent_bytes.sum()), (large.batch(8), index.shard_bytes.sum())):
        assert sum(len(batch["number"]) for batch in ds) == windows.num_samples
        assert 0 < ds.stats()["read_bytes"] <= most_bytes
        assert ds.stats()["num_rereads"] == 0


def test_an_episode_that_ends_with_its_extent_has_no_halo(tmp_path: Path) -> None:
    directory = write_rows(tmp_path / "rows", [[10] * 6], "parquet", group_rows=10)
    rows = shoal.open(directory)
    windows = rows.windows(5)
    for name in ("extent_first_byte", "extent_end_byte", "extent_decoded_bytes"):
        assert np.array_equal(getattr(opened(windows).index, name), getattr(opened(rows).index, name))
    batches = windows.batch(4)
    assert len(list(batches)) == 9
    index = opened(rows).index
    assert batches.stats()["read_bytes"] == int((index.extent_end_byte - index.extent_first_byte).sum())


@pytest.mark.parametrize("form", ["jsonl", "tar", "parquet"])
def test_extents_begin_apart_and_have_checksums(home: Path, form: str) -> None:
    rows = rows_in(home, form, 300)
    source = opened(rows)
    sums = extent_checksums(source.index, source.paths, store=source.store, check=lambda _: None)
    summed = replace(source.index, extent_checksum=sums)
    for shape in ({"length": 9}, {"offsets": {"number": [-7, 7]}, "pad": "edge"}):
        form_of_windows = opened(rows.windows(**shape)).format
        assert isinstance(form_of_windows, Windows)
        index = windowed_index(summed, form_of_windows.table, {})
        assert index.extent_checksum is not None
        for shard, first, end, known in zip(
            index.extent_shard, index.extent_first_byte, index.extent_end_byte, index.extent_checksum, strict=True
        ):
            assert crc32(Path(source.paths[shard]).read_bytes()[first:end]) == known
        same_shard = index.extent_shard[1:] == index.extent_shard[:-1]
        assert (np.diff(index.extent_first_byte)[same_shard] > 0).all()
        assert (np.diff(index.extent_end_byte)[same_shard] >= 0).all()


def test_a_large_index_is_mapped_by_workers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_recipe, "_LARGE", 1)
    monkeypatch.setattr(packed_work, "_SMALL_ROWS", 1)
    windows = rows_in(home).windows(4)
    assert opened(windows).index_path is not None
    assert opened(windows).index.columns["anchor_row"].flags.writeable is False
    assert opened(windows).index.num_samples == windows.num_samples
    stream = windows.shuffle(seed=0).stream
    resolved = stream.resolved
    assert isinstance(resolved, ResolvedOrder)
    work = WorkerSpec(stream.opened, resolved, PipelineSpec(Partition(1, 1, batched=False), 0, ()), ReadingOptions())
    packed, _ = packed_work.pack(work)
    [arrived] = packed_work.unpack(packed)[0].opened.parts
    assert arrived.index is not opened(windows).index
    assert len(packed) < 20_000
    assert read_sample(arrived, 7)["number"].tolist() == windows[7]["number"].tolist()


def test_memory_limits_hold(home: Path) -> None:
    windows = rows_in(home).windows(4)
    least = int(opened(windows).index.extent_decoded_bytes.max())
    shuffled = windows.shuffle(Window(chunks=8, num_canonical_nodes=1), seed=0, chunk=least)
    limited = shuffled.reading(memory_limit=3 * least).batch(8)
    alone = [batch["number"].tolist() for batch in shuffled.batch(8)]
    assert [batch["number"].tolist() for batch in limited] == alone
    assert limited.stats()["num_rereads"] > 0
