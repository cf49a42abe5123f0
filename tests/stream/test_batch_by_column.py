"""Batches by a column of the index: of one group, of P classes, within limits, and shared among ranks by cost."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import StateError, UsageError
from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore:a window of")

NUM_SAMPLES = 400
BUCKETS = ("512x512", "1024x512", "768x768", "rare")
BUCKET = [BUCKETS[min(number % 5, 2)] if number % 101 else "rare" for number in range(NUM_SAMPLES)]
TOKENS = (np.random.default_rng(0).lognormal(3, 1, NUM_SAMPLES).astype(int) + 1).tolist()
SIZES = {"512x512": 16, "1024x512": 8, "768x768": 4, "rare": 3}


def samples(first: int = 0, stop: int = NUM_SAMPLES) -> Any:
    for number in range(first, stop):
        costs = {"num_tokens": TOKENS[number], "tiles": number % 7, "seconds": TOKENS[number] / 8}
        yield {"id": number, "bucket": BUCKET[number], "shape": number % 3, **costs}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    directory: Path = tmp_path_factory.mktemp("images") / "d"
    columns = ["bucket", "shape", "num_tokens", "tiles", "seconds"]
    shoal.pack.pack(samples(), directory, format="jsonl", shard_bytes="8KiB", extent_bytes=512, columns=columns)
    return shoal.open(directory)


def shuffled(images: Dataset) -> Dataset:
    return images.shuffle(seed=1, window="16KiB", chunk="1KiB", num_canonical_nodes=2)


def ids_of(batch: dict[str, Any]) -> list[int]:
    """The samples of a batch that are no repeats."""
    repeated = batch.get("__pad__", np.zeros(len(batch["id"]), dtype=bool))
    ids: list[int] = batch["id"][~repeated].tolist()
    return ids


def on_ranks(dataset: Dataset, world_size: int) -> list[list[dict[str, Any]]]:
    return [list(dataset.partition(rank=rank, world_size=world_size)) for rank in range(world_size)]


@pytest.mark.parametrize("size", [8, SIZES])
def test_a_batch_has_one_bucket_and_the_size_of_the_bucket(images: Dataset, size: Any) -> None:
    dataset = shuffled(images).batch(size, by="bucket")
    sizes, ids = dict.fromkeys(BUCKETS, 8) if size == 8 else SIZES, []
    for batch in dataset:
        (bucket,) = set(batch["bucket"])
        assert len(batch["id"]) <= sizes[bucket]
        assert [BUCKET[number] for number in batch["id"]] == batch["bucket"]
        ids += ids_of(batch)
    assert sorted(ids) == list(range(NUM_SAMPLES))
    assert dataset.stats()["num_ungrouped_samples"] == 0


def test_a_column_of_numbers_and_the_shards_are_groups_too(images: Dataset) -> None:
    for batch in shuffled(images).batch({0: 5, 1: 6, 2: 7}, by="shape"):
        assert len({number % 3 for number in batch["id"].tolist()}) == 1
        assert len(batch["id"]) <= 5 + batch["id"][0] % 3
    assert len(shuffled(images).batch(NUM_SAMPLES, by="shard")) == len(images.stream.opened.paths)


def test_batches_are_the_same_at_any_world_size(images: Dataset) -> None:
    dataset = shuffled(images).batch(SIZES, by="bucket", alike=4)
    whole = Counter(tuple(batch["id"].tolist()) for batch in dataset)
    for world_size in (2, 3, 4):
        ranks = on_ranks(dataset, world_size)
        assert len({len(rank) for rank in ranks}) == 1
        batches = (batch for rank in ranks for batch in rank)
        assert Counter(tuple(batch["id"].tolist()) for batch in batches if "__pad__" not in batch) == whole


def test_all_ranks_have_the_same_bucket_at_a_step(images: Dataset) -> None:
    dataset = shuffled(images).batch(4, by="bucket", alike=4)
    counts = Counter(BUCKET)
    num_steps = sum(count // 16 for count in counts.values())
    for world_size, steps in ((4, num_steps), (2, 2 * num_steps)):
        for batches in list(zip(*on_ranks(dataset, world_size), strict=True))[:steps]:
            assert len({bucket for batch in batches for bucket in batch["bucket"]}) == 1


def test_the_last_samples_are_short_batches_or_left_out_and_counted(images: Dataset) -> None:
    kept = [len(batch["id"]) for batch in shuffled(images).batch(16, by="bucket")]
    counts = Counter(BUCKET)
    assert sorted(size for size in kept if size < 16) == sorted(count % 16 for count in counts.values() if count % 16)
    dropped = shuffled(images).batch(16, by="bucket", remainder="drop", too_small="drop")
    assert all(len(batch["id"]) == 16 for batch in dropped)
    assert dropped.stats()["num_ungrouped_samples"] == sum(count % 16 for count in counts.values())
    assert dropped.stats()["num_samples"] == 16 * sum(count // 16 for count in counts.values())


@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_samples_in_no_batch_are_counted_once_an_epoch_is_whole(images: Dataset, num_workers: int) -> None:
    dataset = shuffled(images).batch(16, by="bucket", remainder="drop", too_small="drop")
    left_out = sum(count % 16 for count in Counter(BUCKET).values())
    loader = DataLoader(dataset, num_workers=num_workers)
    for _ in itertools.islice(loader, 2):
        pass
    assert loader.stats()["num_ungrouped_samples"] == 0
    loader.set_epoch(0)
    assert sum(1 for _ in loader) == dataset.num_samples
    assert loader.stats()["num_ungrouped_samples"] == left_out
    loader.close()


def test_classes_and_samples(images: Dataset) -> None:
    dataset = shuffled(images).batch(3, 4, by="bucket")
    ids = []
    for batch in dataset:
        rows = np.array(batch["bucket"]).reshape(3, 4)
        assert (rows == rows[:, :1]).all()
        assert len(set(rows[:, 0])) == 3
        ids += batch["id"].tolist()
    assert len(ids) == len(set(ids)) == 12 * dataset.num_samples
    assert dataset.stats()["num_ungrouped_samples"] == NUM_SAMPLES - len(ids)
    assert sorted(dataset.ids(1)) != sorted(dataset.ids(0))  # other samples are left out


def test_batches_stay_within_all_limits(images: Dataset) -> None:
    limits = {"num_tokens": 700, "tiles": 40, "seconds": 60.5}
    dataset, ids, fills = shuffled(images).batch(20, limits=limits, block=128), [], []
    for batch in dataset:
        shares = [batch[column].sum() / limit for column, limit in limits.items()]
        assert max(shares) <= 1
        assert len(batch["id"]) <= 20
        fills.append(max(*shares, len(batch["id"]) / 20))
        ids += batch["id"].tolist()
    assert sorted(ids) == list(range(NUM_SAMPLES))
    assert np.mean(fills) > 0.85


@pytest.mark.parametrize("limit", [np.float32(0.5), Fraction(1, 2)])
def test_limits_are_numbers_of_any_type(tmp_path: Path, limit: Any) -> None:
    costs = [0.0, 0.125, 0.25, 0.375, 0.5] * 12
    shoal.pack.pack(({"cost": cost} for cost in costs), tmp_path / "data", format="jsonl", columns=["cost"])
    ds = shoal.open(tmp_path / "data").shuffle(seed=1)
    batches = [batch["cost"].tolist() for batch in ds.batch(limits={"cost": limit})]
    assert batches == [batch["cost"].tolist() for batch in ds.batch(limits={"cost": 0.5})]
    assert sorted(cost for batch in batches for cost in batch) == sorted(costs)


def test_samples_above_a_limit_are_refused_or_left_out(images: Dataset) -> None:
    longest = int(np.argmax(TOKENS))
    with pytest.raises(
        UsageError, match=rf"has {TOKENS[longest]:,} num_tokens, but a batch has at most {max(TOKENS) - 1:,}"
    ):
        shuffled(images).batch(limits={"num_tokens": max(TOKENS) - 1}).ids()
    dataset = shuffled(images).batch(limits={"num_tokens": 40, "tiles": 5}, too_large="drop")
    kept = [number for number in range(NUM_SAMPLES) if TOKENS[number] <= 40 and number % 7 <= 5]
    assert sorted(number for batch in dataset for number in batch["id"].tolist()) == kept
    assert dataset.stats()["num_ungrouped_samples"] == NUM_SAMPLES - len(kept)


@pytest.mark.parametrize("column", ["num_tokens", "seconds"])
def test_ranks_share_a_global_batch_by_cost(images: Dataset, column: str) -> None:
    plain, balanced = (shuffled(images).batch(10, remainder="drop", balance=by) for by in (None, column))
    costs, spreads = images.index_column(column), []
    for each in (plain, balanced):
        steps = list(zip(*on_ranks(each, 4), strict=True))
        assert all(len(batch["id"]) == 10 for batches in steps for batch in batches)
        sums = np.array([[costs[batch["id"]].sum() for batch in batches] for batches in steps])
        spreads.append(float((sums.max(axis=1) / sums.mean(axis=1)).mean()))
    assert spreads[1] - 1 < (spreads[0] - 1) / 2  # a long sample may cost more than the mean of all ranks
    assert plain.state_dict() == balanced.state_dict()


def test_balanced_ranks_have_the_global_batches_of_other_ranks(images: Dataset) -> None:
    def steps(**how: Any) -> list[list[int]]:
        ranks = on_ranks(shuffled(images).batch(10, **how), 4)
        return [sorted(number for batch in step for number in ids_of(batch)) for step in zip(*ranks, strict=True)]

    assert steps() == steps(balance="num_tokens") == steps(balance="tiles", neighbours=2)


KINDS: dict[str, Any] = {
    "buckets": lambda images: shuffled(images).batch(SIZES, by="bucket", alike=2),
    "classes": lambda images: shuffled(images).batch(2, 3, by="bucket"),
    "limits": lambda images: shuffled(images).batch(limits={"num_tokens": 700, "tiles": 40}, block=128),
    "balanced": lambda images: shuffled(images).batch(8, balance="num_tokens"),
    "selected": lambda images: shuffled(images.select(shape=[0, 1])).batch(8, by="bucket", alike=2),
    "split": lambda images: shuffled(images.split({"a": 0.8}, seed=2)["a"]).batch(8, by="bucket"),
    "left out": lambda images: shuffled(images).batch(8, by="bucket").without(steps=[2, 5]),
    "copies": lambda images: shuffled(images.sample(by="bucket", balanced=True)).batch(4, by="bucket"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_resumes_at_other_world_sizes(images: Dataset, kind: str) -> None:
    make = KINDS[kind]
    first = make(images)
    batches = iter(first)
    done = Counter(number for _ in range(7) for number in ids_of(next(batches)))
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1000
    expected = Counter(number for batch in make(images) for number in ids_of(batch))
    for world_size in (1, 3):
        ranks = [make(images).partition(rank=rank, world_size=world_size) for rank in range(world_size)]
        rest = Counter[int]()
        for rank in ranks:
            rank.load_state_dict(state)
            rest.update(number for batch in rank for number in ids_of(batch))
        assert done + rest == expected


def test_batches_that_are_left_out_do_not_come(images: Dataset) -> None:
    whole = shuffled(images).batch(8, by="bucket")
    expected = [batch["id"].tolist() for batch in whole]
    del expected[5], expected[2]
    assert [batch["id"].tolist() for batch in whole.without(steps=[2, 5])] == expected


def test_sources_with_other_texts_share_groups(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 1)):
        shards = (sample for sample in samples() if sample["id"] % 2 == first and (sample["id"] + first) % 5)
        shoal.pack.pack(shards, tmp_path / name, format="jsonl", columns=["bucket", "num_tokens"])
    sources = {name: shoal.open(tmp_path / name) for name in ("a", "b")}
    mixed = shoal.mix(sources, weights={"a": 1, "b": 1}, epoch_size=200).shuffle(seed=0)
    dataset = mixed.batch(6, by="bucket", alike=2)
    batches = list(dataset)
    assert all(len(set(batch["bucket"])) == 1 for batch in batches)
    assert any(len(set((batch["id"] % 2).tolist())) == 2 for batch in batches)
    assert sum(len(batch["id"]) for batch in batches) == 200
    limited = list(mixed.batch(limits={"num_tokens": 900}))
    assert all(batch["num_tokens"].sum() <= 900 for batch in limited)
    with pytest.raises(UsageError, match=r"reweight\(\) was called after batch\(by=\)"):
        dataset.reweight(at=3, weights={"a": 1, "b": 0}).ids()


def test_a_damaged_sample_is_missing_in_its_batch(images: Dataset, tmp_path: Path) -> None:
    directory = tmp_path / "d"
    lines = [json.dumps(sample) for sample in samples()]
    directory.mkdir()
    (directory / "a.jsonl").write_text("\n".join(lines))
    index = shoal.open(directory, index_columns=["bucket"])
    before = (directory / "a.jsonl").stat().st_mtime_ns if index.num_samples else 0
    (directory / "a.jsonl").write_text("\n".join([*lines[:7], "{" + "x" * (len(lines[7]) - 1), *lines[8:]]))
    os.utime(directory / "a.jsonl", ns=(before, before))
    damaged = index.shuffle(seed=0).reading(on_error="skip").batch(16, by="bucket")
    ids = [number for batch in damaged for number in batch["id"].tolist()]
    assert sorted(ids) == [number for number in range(NUM_SAMPLES) if number != 7]
    assert damaged.stats()["num_skipped"] == 1


CALLS: dict[str, tuple[Any, str]] = {
    "no column": (lambda ds: ds.batch(8, by="buckets"), r"no column 'buckets'; it has 'bucket', 'shape'"),
    "no cost": (lambda ds: ds.batch(8, balance="toks"), r"batch\(balance='toks'\).* no column 'toks'"),
    "texts are no costs": (lambda ds: ds.batch(8, balance="bucket"), r"holds names, such as '1024x512', and no costs"),
    "no limit": (lambda ds: ds.batch(limits={"toks": 3}), r"batch\(limits='toks'\).* no column 'toks'"),
    "no size": (lambda ds: ds.batch({"rare": 3}, by="bucket"), r"no size for '1024x512' .* given for 'rare'"),
    "few classes": (lambda ds: ds.batch(5, 2, by="bucket"), r"takes 5 classes .*, but only 4 of 4 classes have 2 "),
    "small class": (lambda ds: ds.batch(2, 9, by="bucket"), r"1 of 4 groups have too few samples .*'rare' \(4\)"),
    "dropped group": (lambda ds: ds.batch(9, by="bucket", remainder="drop"), r"1 of 4 .* never come: 'rare' \(4\)"),
    "padded": (lambda ds: ds.batch(9, by="bucket", remainder="pad"), r"short, and are not filled"),
    "no number": (lambda ds: ds.batch(by="bucket"), r"takes the number of samples of a batch"),
    "only classes": (lambda ds: ds.batch(4, 2), r"takes 4 classes with 2 samples each, but got no column"),
    "only sizes": (lambda ds: ds.batch(SIZES), r"has sizes by value, but got no column"),
    "sizes of classes": (lambda ds: ds.batch(SIZES, 3, by="bucket"), r"takes a number of classes"),
    "two ways": (lambda ds: ds.batch(4, by="shape", limits={"tiles": 9}), r"of one group, or within limits"),
    "global batch": (lambda ds: ds.batch(by="shape", global_batch_size=9), r"got global_batch_size=9"),
    "balance": (lambda ds: ds.batch(9, by="shape", balance="tiles"), r"got balance='tiles'"),
    "alike alone": (lambda ds: ds.batch(9, alike=2), r"batch\(alike=2\) applies only with by="),
    "block alone": (lambda ds: ds.batch(9, by="shape", block=2), r"batch\(block=2\) applies only with limits="),
    "no limits": (lambda ds: ds.batch(limits={}), r"takes limits by column"),
    "negative limit": (lambda ds: ds.batch(limits={"tiles": -1}), r"must be a number above 0; got -1"),
    "filter": (lambda ds: ds.filter(len).batch(9, by="shape"), r"was called after filter\(\)"),
    "refill": (lambda ds: ds.filter(len, refill=True).batch(9, balance="tiles"), r"after filter\(refill=True\)"),
    "parts": (lambda ds: ds.flat_map(list, most=2).batch(9, balance="tiles"), r"was called after flat_map\(\)"),
    "no batch": (
        lambda ds: ds.batch(9_999, by="shape", remainder="drop", too_small="drop"),
        r"batch\(\) makes no batch of \d+ samples: no group has enough samples",
    ),
    "packed": (lambda ds: ds.pack_sequences(8).batch(9, by="shape"), r"was called after pack_sequences"),
    "packed, balanced": (lambda ds: ds.pack_sequences(8).batch(9, balance="tiles"), r"called after pack_sequences"),
    "left out before": (lambda ds: ds.without(positions=[(0, 4)]).batch(9, by="shape"), r"without\(\) leaves out"),
    "twice": (lambda ds: ds.batch(9, by="shape").batch(3), r"batch\(\) works on samples"),
    "then filtered": (lambda ds: ds.batch(9, by="shape").filter(len), r"filter\(\) works on samples"),
    "segments": (lambda ds: ds.batch(9, by="shape").batch_segments(0), r"not packed"),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_errors_say_what_was_asked_and_found(images: Dataset, call: str) -> None:
    make, message = CALLS[call]
    with pytest.raises(UsageError, match=message) as error:
        _ = make(shuffled(images)).num_samples, make(shuffled(images)).ids()
    assert error.value.hint


def test_a_state_of_other_batches_is_refused(images: Dataset) -> None:
    state = shuffled(images).batch(8, by="bucket").state_at(4)
    for other in (
        shuffled(images).batch(8, by="shape"),
        shuffled(images).batch(9, by="bucket"),
        shuffled(images).batch(8, by="bucket", alike=2),
        shuffled(images).batch(2, 8, by="shape"),
        shuffled(images).batch(limits={"tiles": 20}),
        shuffled(images).batch(8),
        shuffled(images).batch_by_length(8),
    ):
        with pytest.raises(StateError, match=r"batch\(by='bucket'|batch\(|batch_by_length"):
            other.load_state_dict(state)
    shuffled(images).batch(8, by="bucket", remainder="drop", too_small="drop").load_state_dict(state)


def test_the_dataset_describes_its_batches(images: Dataset) -> None:
    ds = shuffled(images)
    assert "batches of 8 by 'bucket'" in repr(ds.batch(8, by="bucket"))
    assert "batches by 'bucket'" in repr(ds.batch(SIZES, by="bucket"))
    assert "batches of 2 classes with 3 samples each, by 'bucket'" in repr(ds.batch(2, 3, by="bucket"))
    assert "batches within 900 num_tokens and 30 tiles" in repr(ds.batch(limits={"num_tokens": 900, "tiles": 30}))
    assert "balanced by 'tiles', batches of 8" in repr(ds.batch(8, balance="tiles"))
    assert ".batch(by='bucket', size=8, alike=1)" in repr(ds.batch(8, by="bucket").resolved)


def test_certificates_cover_all_ranks(images: Dataset) -> None:
    for kind, make in KINDS.items():
        ranks = [make(images).partition(rank=rank, world_size=3) for rank in range(3)]
        for rank in ranks:
            for _ in rank:
                pass
        merged = shoal.merge_certificates([rank.certificate() for rank in ranks])
        assert make(images).check_certificate(merged).startswith("epoch 0: all of"), kind
