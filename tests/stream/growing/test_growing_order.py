"""The laws of the growing order: what is delivered, and where it resumes, however far the indexing has come."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.growing.growing_data import COUNTS, gated, growing, keys_of_all, write_shards

import shoal
from shoal.errors import ShardError, StateError, StorageError
from shoal.stream.dataset import Dataset


def batches(dataset: Dataset, stop: int | None = None) -> list[list[str]]:
    """Return the keys of each batch, up to a number of them."""
    found: list[list[str]] = []
    for batch in dataset:
        found.append(batch["key"])
        if len(found) == stop:
            break
    return found


def joined(ranks: list[list[list[str]]]) -> list[str]:
    return [key for rank in ranks for batch in rank for key in batch]


def ranked(dataset: Dataset, world_size: int, size: int) -> list[Dataset]:
    return [dataset.batch(size).partition(rank=rank, world_size=world_size) for rank in range(world_size)]


def indexed(directory: Path) -> Dataset:
    """Return the same order of shards that are all indexed."""
    shoal.open(directory, index="wait")
    return growing(directory)


def test_the_shards_are_several_segments(shards: Path) -> None:
    growth = growing(shards).growth
    assert growth is not None
    assert growth.num_segments >= 5
    assert growth.num_shards == len(COUNTS)


@pytest.mark.parametrize(("num_made", "world_size"), [(1, 1), (2, 3)])
def test_batches_do_not_depend_on_what_is_indexed(shards: Path, num_made: int, world_size: int) -> None:
    with gated(num_made) as gate:
        datasets = ranked(growing(shards), world_size, 4)
        first = iter(datasets[0])
        pieces = [[next(first)["key"]]]
        gate.let(1000)
        pieces[0] += [batch["key"] for batch in first]
        pieces += [batches(dataset) for dataset in datasets[1:]]
    stats = datasets[0].stats()
    assert stats["num_pieces"] > 1
    assert 0 < stats["index_wait_seconds"] <= stats["wait_seconds"]
    assert pieces == [batches(dataset) for dataset in ranked(indexed(shards), world_size, 4)]


def test_ids_are_those_of_the_order(shards: Path) -> None:
    dataset = growing(shards).with_ids()
    ids = [sample["__id__"] for sample in dataset]
    assert ids == dataset.ids(epoch=0).tolist()
    assert ids == growing(shards).ids(epoch=0).tolist()
    assert dataset[ids[7]]["key"] == next(batch for batch in batches(growing(shards).skip(7).batch(1)))[0]
    later = [sample["__id__"] for sample in dataset]
    assert dataset.epoch == 2
    assert sorted(later) == sorted(ids)
    assert later == dataset.ids(epoch=1).tolist() != ids


@pytest.mark.parametrize(
    ("stop", "worlds", "size", "how"),
    [(0, (1, 3), 5, "indexed"), (3, (2, 2), 1, "plain"), (40, (3, 1), 1, "grow"), (11, (1, 1), 4, "plain"),
     (7, (1, 3), 3, "grow"), (200, (1, 1), 5, "grow")],
)  # fmt: skip
def test_a_run_resumes_anywhere(shards: Path, stop: int, worlds: tuple[int, int], size: int, how: str) -> None:
    before, after = worlds
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE_DIR", f"{scratch}/first")
        runs = ranked(growing(shards), before, size)
        first = [batches(run, stop) if stop else [] for run in runs]
        state = json.loads(json.dumps(runs[0].state_dict()))
        assert all(run.state_dict() == state for run in runs)
        patch.setenv("SHOAL_CACHE_DIR", f"{scratch}/second")
        if how != "grow":
            shoal.open(shards, index="wait")
        rest = []
        for run in ranked(growing(shards, index="wait" if how == "plain" else "grow"), after, 4):
            run.load_state_dict(state)
            if run.epoch == 0:
                rest.append(batches(run))
    assert set(joined(first)) | set(joined(rest)) == set(keys_of_all())
    done = state["position"] if not state["epoch"] else len(keys_of_all())
    order = indexed(shards)
    texts = [order[int(number)]["key"] for number in order.ids(epoch=0)]
    assert set(joined(first)) == set(texts[:done])
    assert set(joined(rest)) == set(texts[done:])


@pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
def test_what_was_loaded_before_an_index_was_there_is_an_ordinary_run(shards: Path) -> None:
    ordinary = shoal.open(shards, index="wait").shuffle(seed=5, window="2KiB").batch(4)
    first = batches(ordinary, 6)
    resumed = growing(shards).batch(4)
    resumed.load_state_dict(ordinary.state_dict())
    assert first + batches(resumed) == batches(shoal.open(shards).shuffle(seed=5, window="2KiB").batch(4))


def test_a_state_of_another_seed_window_or_listing_is_refused(shards: Path, tmp_path: Path) -> None:
    run = growing(shards).batch(4)
    batches(run, 3)
    state = run.state_dict()
    with pytest.raises(StateError, match="seed=5"):
        growing(shards, seed=6).batch(4).load_state_dict(state)
    with pytest.raises(StateError, match="window=2048"):
        shoal.open(shards, index="grow").shuffle(seed=5, window="4KiB").load_state_dict(state)
    other = write_shards(tmp_path / "data", [*COUNTS, 3])
    with pytest.raises(StateError, match="belongs to dataset listing-"):
        growing(other).load_state_dict(state)
    open_window = shoal.open(shards, index="grow").shuffle(seed=5).batch(4)
    open_window.load_state_dict(state)
    assert batches(open_window) == batches(growing(shards).batch(4))[3:]


def test_the_index_that_is_kept_is_the_one_that_is_built(shards: Path, tmp_path: Path) -> None:
    dataset = growing(shards)
    assert sum(1 for _ in dataset) == sum(COUNTS)
    del dataset
    indexes = Path(tmp_path, "cache", "indexes")
    grown = _when_there(indexes)
    shoal.open(shards, index="wait", format="jsonl")
    assert list(indexes.glob("*.index")) == [grown]  # found, not built
    data = grown.read_bytes()
    grown.unlink()
    shoal.open(shards, index="wait")
    assert grown.read_bytes() == data
    _when(lambda: not list(Path(tmp_path, "cache", "units").glob("*/*.part")))  # removed once the index is kept


def _when_there(directory: Path) -> Path:
    _when(lambda: any(directory.glob("*.index")))
    return next(directory.glob("*.index"))


def _when(holds: Callable[[], bool]) -> None:
    for _ in range(600):
        if holds():
            return
        threading.Event().wait(0.1)
    assert holds()


def test_lengths_are_estimates_with_an_error_until_all_is_indexed(shards: Path) -> None:
    with gated(1):
        dataset = growing(shards).batch(4)
        growth = dataset.growth
        assert growth is not None
        assert growth.num_indexed_segments == 1
        assert 0 < growth.num_indexed_samples < growth.num_samples == dataset.num_samples
        assert abs(growth.num_samples - sum(COUNTS)) <= 3 * growth.error
        assert len(dataset) == -(-growth.num_samples // 4)
    batches(dataset)
    assert dataset.num_samples == sum(COUNTS)
    known = dataset.growth
    assert known is not None
    assert (known.num_samples, known.error, known.num_indexed_shards) == (sum(COUNTS), 0, len(COUNTS))


def test_it_prints_without_waiting_for_an_index(shards: Path) -> None:
    with gated(1) as gate:
        stored = shoal.open(shards, index="grow")
        assert repr(stored) == f"<shoal.Dataset: {len(COUNTS)} jsonl shards, not indexed yet>"
        dataset = growing(shards).batch(4)
        assert "not indexed yet, order growing with seed=5, batches of 4" in repr(dataset)
        next(iter(dataset))
        growth = dataset.growth
        assert growth is not None
        assert f"1 of {growth.num_segments} segments indexed, order growing with seed=5" in repr(dataset)
        gate.let(1000)
    batches(dataset)
    assert repr(indexed(shards)) == (
        f"<shoal.Dataset: {sum(COUNTS)} samples of {len(COUNTS)} jsonl shards, order growing with seed=5>"
    )


def test_what_machines_without_a_common_place_cost_is_told_once(
    shards: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="shoal")
    batches(growing(shards, seed=1).batch(4), 5)
    assert "machines" not in caplog.text
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    batches(growing(shards, seed=2).batch(4), 5)
    assert caplog.text.count("machines that do not share") == 1


def test_certificates_prove_the_epoch_without_an_index(shards: Path) -> None:
    with gated(2) as gate:
        runs = ranked(growing(shards), 2, 3)
        threading.Timer(0.2, gate.let, [1000]).start()
        for run in runs:
            batches(run)
    whole = shoal.merge_certificates([run.certificate() for run in runs])
    runs[0].check_certificate(whole)
    with pytest.raises(StateError):
        runs[0].check_certificate(runs[1].certificate())


def test_a_certificate_in_the_middle_waits_for_no_index(shards: Path) -> None:
    with gated(1):
        first = growing(shards).batch(3)
        iterator = iter(first)
        batch = next(iterator)["key"]
        state, part = first.state_dict(), first.certificate()
        iterator.close()
    rest = growing(shards).batch(3)
    rest.load_state_dict(state)
    assert len(batch) + sum(len(keys) for keys in batches(rest)) == sum(COUNTS)
    rest.check_certificate(shoal.merge_certificates([part, rest.certificate()]))


@pytest.mark.parametrize("how", ["changed", "gone", "damaged"])
def test_shards_that_change_or_vanish_are_named_until_they_are_repaired(tmp_path: Path, how: str) -> None:
    data = write_shards(tmp_path / "data")
    with gated(1) as gate:
        dataset = growing(data).batch(4)
        iterator = iter(dataset)
        first = next(iterator)["key"]
        listed = {int(key.split("/")[0]) for key in first}
        victim = next(number for number in range(len(COUNTS) - 1, -1, -1) if COUNTS[number] and number not in listed)
        path = data / f"{victim:03d}.jsonl"
        before, looked = path.read_bytes(), path.stat()
        if how == "gone":
            path.unlink()
        else:
            path.write_text('{"key": "x"}\n' if how == "changed" else "\x00no line of JSON" * 9 + "\n")
        gate.let(1000)
        with pytest.raises((StorageError, ShardError), match=path.name):
            list(iterator)
        state = iterator.state_dict()
        assert state["position"] % 4 == 0
        with pytest.raises((StorageError, ShardError), match=path.name):
            list(dataset)
        path.write_bytes(before)
        os.utime(path, ns=(looked.st_atime_ns, looked.st_mtime_ns))
        whole = batches(growing(data).batch(4))
        # A store refuses a shard that has changed under it, for good.
        again = dataset if how == "gone" else growing(data).batch(4)
        again.load_state_dict(state)
        assert batches(again) == whole[state["position"] // 4 :]


def test_what_counts_samples_gets_the_whole_index(shards: Path) -> None:
    chosen = growing(shards).take(20)
    assert len([sample["key"] for sample in chosen]) == 20
    assert [s["key"] for s in chosen] != []
    selected = shoal.open(shards, index="grow").select(np.arange(30)).shuffle(seed=1)
    assert sum(1 for _ in selected) == 30
    assert selected.growth is None
    sequential: Any = shoal.open(shards, index="grow")
    assert [sample["key"] for sample in sequential.take(2)] == ["0/0", "0/1"]


def test_bad_steps_can_be_left_out_of_a_growing_epoch(shards: Path) -> None:
    every = batches(growing(shards).batch(4))
    assert batches(growing(shards).batch(4).without(steps=[3, 5])) == [
        batch for step, batch in enumerate(every) if step not in {3, 5}
    ]


def test_filters_with_and_without_refill(shards: Path) -> None:
    def kept(sample: dict[str, Any]) -> bool:
        return int(sample["key"].split("/")[1]) % 3 == 0

    wanted = sorted(key for key in keys_of_all() if int(key.split("/")[1]) % 3 == 0)
    for refill in (False, True):
        got = joined([batches(growing(shards).filter(kept, refill=refill).batch(6))])
        assert sorted(set(got)) == wanted
