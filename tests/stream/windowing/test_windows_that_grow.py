"""Windows of a dataset that grows: they follow their rows, and a state goes on with the rows that it knew."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.cli.main import main
from shoal.errors import StateError, UsageError
from shoal.formats.windows.row_offsets import WindowShape
from shoal.indexing.opened_dataset import Known, Opened
from shoal.pipeline.sample_columns import added_columns, column_scan
from shoal.stream.dataset import Dataset
from shoal.stream.derived.window_recipe import WindowRecipe
from shoal.stream.generations.recovered_datasets import recovered_part

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ROWS, LENGTH = 7, 3


class Recordings:
    """A directory in which shards with two episodes of ``ROWS`` rows each arrive, in any order of names."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.arrivals: list[str] = []

    def arrive(self, *names: str, first_episode: int | None = None) -> None:
        for name in names:
            first = 2 * len(self.arrivals) if first_episode is None else first_episode
            self.arrivals.append(name)
            rows = (
                {"robot": f"r{99 - each}", "n": each * ROWS + row} for each in (first, first + 1) for row in range(ROWS)
            )
            hidden = self.directory / f".{name}.tmp"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
            hidden.rename(self.directory / name)

    def paths(self, number: int | None = None) -> list[str]:
        """The first shards that arrived."""
        return [str(self.directory / name) for name in self.arrivals[:number]]


@pytest.fixture
def recordings(tmp_path: Path) -> Recordings:
    recordings = Recordings(tmp_path / "data")
    recordings.arrive("d.jsonl", "b.jsonl")
    return recordings


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this machine another one, without the cached indexes of the machine before."""
    numbers = itertools.count()
    return lambda: monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / f"cache-{next(numbers)}"))


def windows(source: Any, *, by: Any = "robot", size: int = 4, **how: Any) -> Dataset:
    return shoal.open(source, **how).windows(LENGTH, by=by).shuffle(seed=5, window="24KiB").batch(size)


def taken(ds: Dataset, num_batches: int | None = None, *, crosses: bool = False) -> list[int]:
    """The first rows of the windows of some batches, or of all that are left of an epoch."""
    firsts: list[int] = []
    for batch in itertools.islice(ds, num_batches):
        assert (np.diff(batch["n"], axis=1) == 1).all()
        assert all(len(set(episodes // ROWS)) == 1 for episodes in batch["n"]) or crosses
        repeats = batch.get("__pad__", np.zeros(len(batch["n"]), dtype=bool))
        firsts += batch["n"][~repeats, 0].tolist()
    return firsts


def order_of(paths: Sequence[str], epoch: int) -> list[int]:
    """The first rows of the windows of an epoch over exactly these shards."""
    ds = windows(list(paths))
    ds.set_epoch(epoch)
    return taken(ds)


def loaded(ds: Dataset, state: dict[str, Any]) -> Dataset:
    ds.load_state_dict(json.loads(json.dumps(state)))
    return ds


def opened(ds: Dataset) -> Opened:
    return ds.stream.opened.one("the test")


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The shards of each scan of the column of episodes."""
    scanned: list[tuple[str, ...]] = []
    scan = column_scan.scan_columns

    def recorded(rows: Opened, *arguments: Any, **how: Any) -> Any:
        scanned.append(tuple(rows.index.shard_names))
        return scan(rows, *arguments, **how)

    monkeypatch.setattr(added_columns, "scan_columns", recorded)
    return scanned


def test_followed_windows_grow_between_epochs(recordings: Recordings, scanned: list[tuple[str, ...]]) -> None:
    ds = windows(recordings.directory, follow=True)
    first = taken(ds, 2)
    recordings.arrive("c.jsonl", "a.jsonl")
    first += taken(loaded(ds, ds.state_dict()))
    assert first == order_of(sorted(recordings.paths(2)), 0)
    grown = [*sorted(recordings.paths(2)), *sorted(recordings.paths()[2:])]
    assert taken(ds) == order_of(grown, 1)
    assert ds.stats()["num_new_shards"] == 2
    assert ds.state_dict()["shards"] == [2, 4]
    assert scanned[:2] == [("b.jsonl", "d.jsonl"), ("a.jsonl", "c.jsonl")]  # rows that are known are not read again
    assert ds.num_samples == opened(ds).index.num_samples == 4 * 2 * (ROWS - LENGTH + 1)


def test_windows_of_an_index_file_grow_when_the_file_does(
    recordings: Recordings, scanned: list[tuple[str, ...]]
) -> None:
    index, old = recordings.directory / "grown.index", recordings.paths()
    assert main(["index", *old, "--output", str(index)]) == 0
    followed, extended = windows(index, follow=True), windows(index)
    assert taken(followed) == taken(extended)
    recordings.arrive("a.jsonl")
    grown = recordings.paths()
    assert main(["index", *grown, "--append", "--output", str(index)]) == 0
    assert taken(followed) == taken(extended.extended(index)) == order_of(grown, 1)
    assert scanned[:3] == [("d.jsonl", "b.jsonl"), ("a.jsonl",), ("a.jsonl",)]


@pytest.mark.parametrize("way", ["nothing", "directory", "list", "index", "dataset"])
def test_extended_windows_are_those_of_the_larger_dataset(recordings: Recordings, way: str) -> None:
    old = sorted(recordings.paths())
    ds = windows(recordings.directory)
    first = taken(ds, 2)
    recordings.arrive("a.jsonl")
    grown = [*old, *recordings.paths()[2:]]
    index = recordings.directory / "grown.index"
    if way == "index":
        assert main(["index", *old, "--output", str(index)]) == 0
        assert main(["index", *grown, "--append", "--output", str(index)]) == 0
    source: Any = {
        "nothing": None, "directory": recordings.directory, "list": grown, "index": index,
        "dataset": shoal.open(grown).windows(LENGTH, by="robot"),
    }[way]  # fmt: skip
    ds = ds.extended(source)
    assert ds.state_dict()["next"]["shards"] == [2, 3]
    state = ds.state_dict()
    assert first + taken(ds) == order_of(old, 0)
    assert taken(ds) == order_of(grown, 1)
    recordings.arrive("c.jsonl")
    resumed = loaded(windows(recordings.directory, size=3), state)
    assert taken(resumed) == order_of(old, 0)[8:]
    assert taken(resumed) == order_of(grown, 1)


@pytest.mark.parametrize("by", ["robot", None])
def test_a_state_goes_on_with_the_rows_that_it_knew_at_any_world_size(
    recordings: Recordings, elsewhere: Any, by: str | None
) -> None:
    ds = windows(recordings.directory, by=by)
    taken(ds, 2, crosses=by is None)
    state = ds.state_dict()
    left = taken(loaded(ds, state), crosses=by is None)
    recordings.arrive("c.jsonl")
    elsewhere()
    several = [windows(recordings.directory, by=by, size=2).partition(rank=rank, world_size=2) for rank in range(2)]
    ranks = [loaded(rank, state) for rank in several]
    assert "as of the loaded state: the first 2 of 3 shards by time" in repr(ranks[0])
    for due in (left, taken(windows(recordings.paths(2), by=by), crosses=by is None)):
        assert sorted(n for rank in ranks for n in taken(rank, crosses=by is None)) == sorted(due)


def test_choices_of_rows_and_of_windows_are_made_again(recordings: Recordings, elsewhere: Any) -> None:
    """A choice of rows is made among the rows of the larger dataset, not among its windows."""
    order = [1, 0, 2, 3]  # the shards by name, and then as they arrive

    def chosen(**how: Any) -> Dataset:
        rows = shoal.open(recordings.directory, index_columns=["n"], **how).select(n=lambda n: n % ROWS > 0).skip(2)
        windows = rows.windows(LENGTH, by="robot")
        return windows.select(anchor_row=lambda row: row % 2 == 0).shuffle(seed=1).batch(2)

    def due(num_shards: int) -> list[int]:
        rows = [shard * 2 * ROWS + row for shard in order[:num_shards] for row in range(2 * ROWS)]
        left = {place for place, n in enumerate(rows) if n % ROWS > 0} - {1, 2}
        firsts = [place for place, n in enumerate(rows) if n % ROWS + LENGTH <= ROWS]
        return sorted(rows[place] for place in firsts if place % 2 == 0 and {*range(place, place + LENGTH)} <= left)

    ds = chosen(follow=True)
    taken(ds, 1)
    state, left = ds.state_dict(), taken(loaded(ds, ds.state_dict()))
    for num_shards, name in ((3, "e.jsonl"), (4, "f.jsonl")):
        recordings.arrive(name)
        assert sorted(taken(ds)) == due(num_shards)
    elsewhere()
    ds = loaded(chosen(), state)
    assert taken(ds) == left
    assert sorted(taken(ds)) == due(2)


def test_windows_that_grow_keep_their_cache(recordings: Recordings, tmp_path: Path) -> None:
    ds = windows(recordings.directory, follow=True, cache=tmp_path / "chunks")
    taken(ds)
    recordings.arrive("a.jsonl")
    taken(ds)
    assert opened(ds).index.num_shards == 3
    assert opened(ds).cache is not None


def test_no_row_is_read_to_compare_a_candidate(recordings: Recordings, scanned: list[tuple[str, ...]]) -> None:
    rows = opened(shoal.open(recordings.directory))
    assert WindowRecipe(WindowShape(length=LENGTH), "robot").fingerprint(rows) == ""
    assert not scanned
    part = opened(windows(recordings.directory))
    assert part.derivation is not None
    assert part.derivation.recipe.fingerprint(part.derivation.rows) == part.index.fingerprint


def test_a_rank_takes_the_shards_that_another_rank_names(recordings: Recordings) -> None:
    decided = opened(windows(recordings.paths(2))).index
    recordings.arrive("a.jsonl")
    seen = pickle.loads(pickle.dumps(opened(windows(recordings.directory))))
    known = Known.of(decided, with_names=True)
    recovered = recovered_part(seen, known)
    assert recovered.words == "the shards that another rank names"
    assert recovered.opened.index.columns.keys() == decided.columns.keys()
    assert [shoal_sample["n"].tolist() for shoal_sample in _all(recovered.opened)] == [
        sample["n"].tolist() for sample in shoal.open(recordings.paths(2)).windows(LENGTH, by="robot")
    ]


def _all(part: Opened) -> Dataset:
    from shoal.stream.dataset_spec import DatasetSpec

    return Dataset(DatasetSpec.of(part))


def test_windows_may_follow_extended(recordings: Recordings) -> None:
    old = sorted(recordings.paths())
    rows = shoal.open(recordings.directory).shuffle(seed=5, window="24KiB")
    taken_rows = next(iter(rows))
    assert taken_rows["n"] >= 0
    recordings.arrive("a.jsonl")
    begun = shoal.open(old)
    next(iter(begun))
    grown = begun.extended(recordings.directory)
    ds = grown.windows(LENGTH, by="robot").shuffle(seed=5, window="24KiB").batch(4)
    assert taken(ds) == order_of(old, 0)
    assert taken(ds) == order_of([*old, *recordings.paths()[2:]], 1)


def test_a_mixture_grows_with_its_windows(recordings: Recordings, elsewhere: Any, tmp_path: Path) -> None:
    other = Recordings(tmp_path / "other")
    other.arrive("x.jsonl")

    def mixed(size: int = 4, **how: Any) -> Dataset:
        sources = {
            "arm": shoal.open(recordings.directory, **how).windows(LENGTH, by="robot"),
            "leg": shoal.open(other.directory).windows(LENGTH, by=None),
        }
        mixture = shoal.mix(sources, weights={"arm": 2, "leg": 1}, ends="all")
        return mixture.shuffle(seed=1, window="64KiB").batch(size)

    ds = mixed(follow=True)
    taken(ds, 1, crosses=True)
    state = ds.state_dict()
    left = taken(loaded(ds, state), crosses=True)
    recordings.arrive("c.jsonl")
    assert {*taken(ds, crosses=True)} == {*range(6 * ROWS)} - _in_no_window(6)
    elsewhere()
    resumed = loaded(mixed(), state)
    assert taken(resumed, crosses=True) == left


def _in_no_window(num_episodes: int) -> set[int]:
    """The rows that begin no window of an episode; a window of the other source may cross its only border."""
    ends = range(ROWS, (num_episodes + 1) * ROWS, ROWS)
    return {end - back for end in ends for back in range(1, LENGTH) if end != ROWS}


def test_an_episode_that_goes_on_in_a_new_shard_is_an_error(recordings: Recordings) -> None:
    ds = windows(recordings.directory, follow=True)
    taken(ds)
    recordings.arrive("e.jsonl", first_episode=3)
    with pytest.raises(UsageError, match=r"rows of the episode 'r96' .* two places: .* in b.jsonl; and .* in e.jsonl"):
        taken(ds)


class TestRefused:
    def test_an_array_of_episodes_does_not_grow(self, recordings: Recordings, elsewhere: Any) -> None:
        array = np.arange(4 * ROWS) // ROWS
        with pytest.raises(UsageError, match="by an array of episodes cannot grow"):
            windows(recordings.directory, by=array, follow=True)
        ds = windows(recordings.directory, by=array)
        taken(ds, 1)
        state = ds.state_dict()
        assert ds.extended().state_dict() == state  # nothing is new
        recordings.arrive("a.jsonl")
        for source in (None, recordings.paths()):
            with pytest.raises(UsageError, match=r"the array has no episode for new rows \(42 rows now\)"):
                ds.extended(source)
        larger = windows(recordings.directory, by=np.arange(6 * ROWS) // ROWS)
        with pytest.raises(StateError, match="tried: nothing, as windows of 3 rows by an array of episodes cannot be"):
            larger.load_state_dict(state)
        assert ds.extended(larger).state_dict()["next"]["epoch"] == 1  # the user has made its array

    def test_the_next_dataset_has_the_same_windows(self, recordings: Recordings) -> None:
        ds = windows(recordings.paths())
        recordings.arrive("z.jsonl")
        rows = shoal.open(recordings.paths())
        offsets = [{"n": [0, 2]}, {"n": [0, 1, 2]}]
        by_offsets = [rows.windows(offsets=some, by=None) for some in offsets]
        cases: list[tuple[Dataset, Dataset, str]] = [
            (ds, rows, "windows of 3 rows by robot, but the next ones are stored rows"),
            (shoal.open(recordings.paths(2)), ds, "are stored rows, but the next ones are windows of 3"),
            (ds, rows.windows(4, by="robot"), "windows of 3 rows by robot, but the next ones are windows of 4 rows"),
            (ds, rows.windows(3, by=None), "by robot, but the next ones are windows of 3 rows by shard"),
            (by_offsets[0], by_offsets[1], r"\(0, 2\).*but the next ones are.*\(0, 1, 2\)"),
        ]
        for ours, theirs, words in cases:
            with pytest.raises(UsageError, match=words):
                ours.extended(theirs)

    def test_states_of_other_windows_are_refused_with_what_was_tried(self, recordings: Recordings) -> None:
        state = windows(recordings.paths()).state_dict()
        recordings.arrive("z.jsonl")
        other = shoal.open(recordings.paths()).windows(4, by="robot").shuffle(seed=5, window="24KiB").batch(4)
        with pytest.raises(StateError, match=r"tried: windows of 4 rows by robot of 0 generations .* and by time"):
            other.load_state_dict(state)

    def test_joined_samples_do_not_grow(self, recordings: Recordings) -> None:
        right = shoal.open(recordings.paths(1))
        followed = shoal.open(recordings.directory, follow=True)
        for one, other in ((followed, right), (shoal.open(recordings.paths()), followed)):
            with pytest.raises(UsageError, match=r"this dataset grows \(follow=True\)"):
                one.join(other, on="n")
        joined = shoal.open(recordings.directory).join(right.rename(other="robot"), on="n", how="left")
        recordings.arrive("z.jsonl")
        for source in (None, recordings.directory, shoal.open(recordings.paths())):
            with pytest.raises(UsageError, match="join\\(\\) has matched the samples"):
                joined.extended(source)
        state = shoal.open(recordings.paths(2)).join(right.rename(other="robot"), on="n", how="left").state_dict()
        with pytest.raises(StateError, match="tried: nothing, as the samples are joined with others"):
            joined.load_state_dict(state)
        with pytest.raises(UsageError, match=r"this dataset grows \(extended\(\)\)"):
            shoal.open(recordings.paths(2)).extended(recordings.directory).join(right, on="n")
