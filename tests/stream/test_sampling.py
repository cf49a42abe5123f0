from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.samples import write_tar_shards
from tests.stream.made import batches_of, check_sample, flat, ids_of, open_finely, write_tars

import shoal
from shoal.errors import StateError, UsageError
from shoal.order.sampling.weights_and_classes import ByWeight
from shoal.order.state_dict import State
from shoal.orders import Block, Buffer, Full, Sequential, Window
from shoal.stream.dataset import Dataset
from shoal.stream.verbs.dataset_requests import request_of_state

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

NUM = 197  # of the fixture `tars`
LABELS = np.repeat(["common", "rare"], [180, 17])
BALANCED = np.where(LABELS == "rare", 1 / 17, 1 / 180)


def counts_of(ids: Any) -> list[int]:
    """How often each sample comes."""
    return np.bincount(np.asarray(ids, dtype=np.int64), minlength=NUM).tolist()


@pytest.mark.parametrize(
    "order", [Sequential(), Full(), Window(chunks=6), Block(chunks=3), Buffer(samples=20)], ids=lambda order: order.name
)
@pytest.mark.parametrize("name", ["tars", "lines"])
def test_every_copy_is_read_and_certified(order: Any, name: str, request: pytest.FixtureRequest) -> None:
    ds: Dataset = request.getfixturevalue(name)
    weights = 1.0 / (1 + np.arange(ds.num_samples))
    ds = ds.sample(weights, num_samples=150).shuffle(order, seed=5, chunk=6000)
    for epoch in range(2):
        assert ids_of(ds) == ds.ids(epoch).tolist()
    ds.check_certificate(ds.certificate())
    parts = [ds.partition(rank=rank, world_size=3).batch(8) for rank in range(3)]
    delivered = [batches_of(part) for part in parts]
    for rank, batches in enumerate(delivered):
        assert batches == [ds.batch(8).batch_ids(step, rank=rank, world_size=3).tolist() for step in range(7)]
    ds.check_certificate(shoal.merge_certificates(part.certificate() for part in parts))


def test_balanced_classes(tars: Dataset) -> None:
    ds = tars.sample(by=LABELS, balanced=True).shuffle(seed=1, window=30_000)
    assert len(ds) == ds.num_samples == NUM
    for epoch in range(3):
        labels = LABELS[ds.ids(epoch)]
        assert sorted(np.unique(labels, return_counts=True)[1].tolist()) == [98, 99]
        counts = counts_of(ds.ids(epoch))
        assert set(counts[:180]) == {0, 1}
        assert set(counts[180:]) <= {5, 6}
    assert tars.sample(by=LABELS, balanced=True, replacement=False).num_samples == 2 * 17
    assert tars.sample(by=LABELS == "rare", balanced=True, num_samples=1000).num_samples == 1000


def test_labels_of_every_kind_are_classes(tars: Dataset) -> None:
    plain = tars.sample(by=LABELS, balanced=True).shuffle("full")
    numbers = (LABELS == "rare").astype(int)
    for labels in (numbers, numbers.astype(bool), numbers * 10**12 - 5, numbers.astype(np.uint8), numbers * 0.5):
        assert np.array_equal(tars.sample(by=labels, balanced=True).shuffle("full").ids(), plain.ids())


def test_shards_and_sizes_are_columns(tars: Dataset) -> None:
    ds = tars.sample(by="shard", limit=4).shuffle()
    shards = tars.index_column("shard")[ds.ids()]
    assert np.bincount(shards).tolist() == [4, 1, 0, 4, 4, 4, 4, 4]
    sizes = tars.index_column("bytes")
    counts = counts_of(tars.sample("bytes", num_samples=20_000).ids())
    assert np.abs(counts - 20_000 * sizes / sizes.sum()).max() < 1


def test_short_epochs_visit_every_sample_once_before_any_comes_again(tars: Dataset) -> None:
    ds = tars.sample(num_samples=50).shuffle(seed=2)
    visits = np.cumsum([counts_of(ds.ids(epoch)) for epoch in range(12)], axis=0)
    assert visits.sum(axis=1).tolist() == [50 * epoch for epoch in range(1, 13)]
    assert all(each.max() - each.min() <= 1 for each in visits)


def test_an_endless_run_is_a_loop_over_epochs(tars: Dataset) -> None:
    def batches(ds: Dataset) -> Any:
        while True:
            for batch in ds:
                yield batch["__id__"].tolist()

    made = tars.sample(by=LABELS, balanced=True, num_samples=64).shuffle(seed=2).with_ids()
    whole = list(itertools.islice(batches(made.batch(16)), 23))
    assert flat(whole) == flat(made.ids(epoch).tolist() for epoch in range(6))[: 23 * 16]
    begun, resumed = made.batch(16), made.batch(16)
    first = list(itertools.islice(batches(begun), 10))
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    assert first + list(itertools.islice(batches(resumed), 13)) == whole


def test_without_repeats_weights_are_lowered(tars: Dataset) -> None:
    ds = tars.sample(BALANCED, num_samples=60, replacement=False).shuffle()
    counts = counts_of(ds.ids())
    assert counts[180:] == [1] * 17
    assert sum(counts[:180]) == 60 - 17
    assert ds.repeats is not None
    assert (ds.repeats.most_copies, ds.repeats.num_repeated) == (1, 0)


def test_samples_are_drawn_from_those_that_were_selected(tars: Dataset) -> None:
    chosen = np.arange(3, NUM, 2)
    ds = tars.select(chosen).sample(np.arange(NUM), num_samples=300).shuffle(seed=4)
    expected = np.zeros(NUM)
    expected[chosen] = 300 * chosen / chosen.sum()
    counts = counts_of(ds.ids())
    assert all(np.floor(share) <= count <= np.ceil(share) for count, share in zip(counts, expected, strict=True))
    assert ds.repeats is not None
    assert ds.repeats.num_stored == len(chosen)
    assert ids_of(ds.take(50)) == ds.ids()[:50].tolist() == ds.take(50).ids().tolist()


@pytest.mark.parametrize("num_samples", [6, 150, 4000])
def test_turns_are_fewer_than_the_chunks_that_a_mixture_counts(tars: Dataset, num_samples: int) -> None:
    ds = tars.sample(np.arange(NUM), num_samples=num_samples).shuffle(Window(chunks=4), chunk=6000)
    for epoch in range(3):
        turns = ds.resolved.untouched(epoch).locate(0, num_samples)[1]
        assert turns.max() < ds.resolved.num_order_chunks


def test_sampled_sources_are_mixed(tars: Dataset, lines: Dataset) -> None:
    rare = tars.sample(by=LABELS, balanced=True, num_samples=40).shuffle(Window(chunks=4), seed=1, chunk=6000)
    sources = {"rare": rare, "lines": lines.shuffle(seed=2)}
    mix = shoal.mix(sources, weights={"rare": 3, "lines": 1}, seed=3, epoch_size=480, missing="none")
    ids = mix.ids()
    # Every round of the source is an epoch of it, in order.
    of_rare = ids[ids < NUM]
    assert np.array_equal(of_rare[:320], np.concatenate([rare.ids(epoch) for epoch in range(8)]))
    parts = [mix.with_ids().partition(rank=rank, world_size=3).batch(8) for rank in range(3)]
    delivered = [[batch["__id__"].tolist() for batch in part] for part in parts]
    for step in range(5):
        shares = flat(delivered[rank][step] for rank in range(3))
        assert sorted(shares) == sorted(mix.ids(0, step * 24, step * 24 + 24))


def test_positions_of_a_repeated_sample_are_its_first(tars: Dataset) -> None:
    ds = tars.skip(7).sample(by=LABELS, balanced=True).shuffle(Window(chunks=4), seed=1, chunk=6000)
    ids = ds.ids()
    found = ds.resolved.untouched(0).positions(np.arange(NUM))
    for number in range(NUM):
        places = np.flatnonzero(ids == number)
        assert found[number] == (places[0] if len(places) else -1)


def test_positions_of_a_repeated_sample_whose_first_one_is_not_among_them(tars: Dataset, lines: Dataset) -> None:
    sampled = tars.sample(by=LABELS, balanced=True, num_samples=400).shuffle("full", seed=1)
    taken = sampled.skip(150)
    sources = {"a": sampled, "b": taken, "c": shoal.mix({"d": lines.shuffle(seed=3)})}
    mix = shoal.mix(sources, weights={"a": 3, "b": 2, "c": 1}, epoch_size=1000).shuffle(seed=2)
    gaps = [(0, 200), (210, 300)]
    chosen = [*range(180, 200), *range(290, 295), 333, *range(350, 360), 399]
    gapped = (sampled.without(positions=gaps), mix.without(positions=gaps))
    for ds in (taken, sampled.select(chosen), mix, mix.skip(500), *gapped):
        for epoch in (0, 2):
            order = ds.stream.resolved.epoch(epoch)
            ids = order.ids(0, order.num_samples)
            firsts: dict[int, int] = {}
            for position, number in enumerate(ids.tolist()):
                firsts.setdefault(number, position)
            wanted = np.unique(ds.ids(epoch))
            assert order.positions(wanted).tolist() == [firsts.get(number, -1) for number in wanted.tolist()]


def test_batches_that_are_left_out(tars: Dataset) -> None:
    ds = tars.sample(BALANCED).shuffle(seed=3).with_ids().batch(16)
    whole = batches_of(ds)
    assert batches_of(ds.without(steps=[2, 5])) == [batch for step, batch in enumerate(whole) if step not in (2, 5)]


def test_samples_of_a_split_whose_filter_refills_batches_resume_at_another_size(tars: Dataset) -> None:
    split = tars.split({"train": 0.8, "val": 0.2}, by=np.arange(NUM))["train"]
    ds = split.sample(BALANCED, num_samples=300).shuffle(Window(chunks=6), seed=3, chunk=6000).with_ids()
    ds = ds.filter(lambda sample: int(sample["cls"]) % 3 > 0, refill=True)
    due = [number for number in ds.ids().tolist() if number % 3]
    parts = [iter(ds.partition(rank=rank, world_size=3).batch(7, steps="apart")) for rank in range(3)]
    first = flat(next(part)["__id__"].tolist() for part in parts for _ in range(2))
    state = shoal.merge_states(part.state_dict() for part in parts)
    rest = [ds.partition(rank=rank, world_size=2).batch(5, steps="apart") for rank in range(2)]
    for part in rest:
        part.load_state_dict(json.loads(json.dumps(state)))
    assert sorted(first + flat(flat(batches_of(part)) for part in rest)) == sorted(due)


def test_the_state_is_small_and_tells_samplings_apart(tars: Dataset) -> None:
    ds = tars.sample(BALANCED).shuffle(seed=3)
    assert len(json.dumps(ds.state_dict())) < 500
    same = tars.sample(BALANCED.copy()).shuffle(seed=3)
    same.load_state_dict(ds.state_at(40))
    assert check_sample(next(iter(same))) == ds.ids()[40]
    others = [
        tars.shuffle(seed=3),
        tars.sample(BALANCED + 1).shuffle(seed=3),
        tars.sample(num_samples=NUM).shuffle(seed=3),
        tars.sample(by=LABELS, balanced=True).shuffle(seed=3),
    ]
    for other in others:
        with pytest.raises(StateError, match=r"the samples that sample\(\) draws differ"):
            other.load_state_dict(ds.state_dict())


def test_workers_share_what_is_drawn(tars: Dataset) -> None:
    torch = pytest.importorskip("shoal.torch")
    ds = tars.sample(by=LABELS, balanced=True, num_samples=120).shuffle(seed=3).with_ids().batch(10)
    loader = torch.DataLoader(ds, num_workers=2)
    begun = iter(loader)
    first = [next(begun)["__id__"].tolist() for _ in range(5)]
    state = json.loads(json.dumps(loader.state_dict()))
    del begun
    rest = torch.DataLoader(ds, num_workers=1)
    rest.load_state_dict(state)
    assert flat([*first, *(batch["__id__"].tolist() for batch in rest)]) == ds.ids().tolist()


def test_quality_is_that_of_the_copies(tmp_path: Path) -> None:
    # 40 chunks of about 25 samples, each of one class; a rare class has one of them.
    ds = open_finely(write_tars(tmp_path / "data", [500, 500]), extent_bytes=30_000)
    borders = ds.stream.opened.index.extent_first_sample
    labels = (np.arange(1000) >= borders[-2]).astype(int)
    order = Window(chunks=10, num_canonical_nodes=1)
    plain = ds.shuffle(order, chunk=30_000)
    balanced = ds.sample(by=labels, balanced=True).shuffle(order, chunk=30_000)
    quality = balanced.quality(batch=32, key=labels)
    assert 1.5 < quality.vr[32] < 1.5 * plain.quality(batch=32).vr[32]
    assert quality.distinct_chunks <= quality.perfect_chunks + 1
    assert len(balanced.resolved.turns(0).starts) > len(borders) + 10  # type: ignore[union-attr]


def test_turns_of_a_chunk_do_not_keep_it_in_memory(tmp_path: Path) -> None:
    # All in one span of the plan: with chunks as units, a rare one would stay from its first turn to its last.
    ds = open_finely(write_tars(tmp_path / "data", [1500, 1500]), extent_bytes=12_000)
    held, reads = {}, {}
    rare = np.repeat([0, 1, 2], [1900, 800, 300])
    for name, each in (("plain", ds), ("balanced", ds.sample(by=rare, balanced=True))):
        run = each.shuffle(Window(chunks=8, num_canonical_nodes=1), chunk=12_000).batch(16)
        assert flat(batches_of(run)) == run.ids().tolist()
        held[name], reads[name] = run.stats()["peak_held_bytes"], run.stats()["num_reads"]
    assert held["balanced"] < 1.1 * held["plain"]
    assert reads["plain"] < reads["balanced"] < 1.5 * reads["plain"]


def test_turns_of_a_source_do_not_keep_its_chunks_in_memory(tmp_path: Path, lines: Dataset) -> None:
    ds = open_finely(write_tars(tmp_path / "data", [1500, 1500]), extent_bytes=12_000)
    rare = np.repeat([0, 1, 2], [1900, 800, 300])
    held = []
    for each in (ds, ds.sample(by=rare, balanced=True)):
        source = each.shuffle(Window(chunks=8, num_canonical_nodes=1), chunk=12_000)
        sources = {"a": source, "b": lines.shuffle()}
        mix = shoal.mix(sources, weights={"a": 40, "b": 1}, epoch_size=3000, missing="none")
        run = mix.with_ids().batch(16)
        assert flat(batch["__id__"].tolist() for batch in run) == mix.ids().tolist()
        held.append(run.stats()["peak_held_bytes"])
    assert held[1] < 1.15 * held[0]


@pytest.mark.parametrize("memory_limit", [None, "24KB"])
def test_turns_are_read_by_threads_and_within_limits(
    tars: Dataset, lines: Dataset, readers: str, memory_limit: str | None
) -> None:
    for ds in (tars, lines):
        rare = np.arange(ds.num_samples) < 9
        run = ds.sample(by=rare, balanced=True, num_samples=400).shuffle(Window(chunks=4), seed=5, chunk=6000)
        run = run.reading(memory_limit=memory_limit).batch(7)
        assert flat(batches_of(run)) == run.ids().tolist(), readers
        if memory_limit is not None:
            assert run.stats()["peak_held_bytes"] <= 24_000


def test_columns_of_turns_are_gathered(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    numbers = np.arange(3000)
    table = pa.table({"n": numbers, "text": [str(i) for i in numbers], "rare": (numbers > 2800).astype(np.int8)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    ds = shoal.open(tmp_path / "a.parquet", index_columns=["rare"]).sample(by="rare", balanced=True)
    for each in (ds.shuffle(Window(chunks=4), seed=5, chunk=1), ds.shuffle("full")):
        batches = list(each.batch(64).format("numpy"))
        ids = each.ids()
        assert np.concatenate([batch["n"] for batch in batches]).tolist() == ids.tolist()
        assert [text for batch in batches for text in batch["text"]] == [str(i) for i in ids]
    assert len(each.batch(1000)) == 3
    turns = ds.shuffle(Window(chunks=4), chunk=1).resolved.turns(0)
    assert turns is not None
    assert len(turns.stride) > 80


def test_a_state_holds_only_a_digest_for_the_command_line(tars: Dataset) -> None:
    state = State.from_dict(tars.sample(BALANCED).shuffle().state_dict())
    with pytest.raises(StateError, match=r"saved after sample\(\), but holds only a digest"):
        request_of_state(state)


def test_the_summary_and_the_repeats_say_it_before_the_run(tmp_path: Path) -> None:
    write_tar_shards(tmp_path)
    ds = shoal.open(tmp_path)
    assert ds.repeats is None
    labels = np.repeat([0, 1], [190, 10])
    balanced = ds.sample(by=labels, balanced=True)
    text = "200 samples an epoch, of 200: 10 come more than once (at most 10 times), and 90 (45.0 %) do not come"
    assert str(balanced.repeats) == text
    assert f"sampled ({text})" in repr(balanced)


@pytest.mark.parametrize(
    ("weights", "num_samples", "text"),
    [
        ([1, 1, 1], 3, "3 samples an epoch, of 3: each comes once"),
        ([1, 1, 1, 1], 1, "none comes more than once, and 3 (75.0 %) do not come"),
        ([2, 1], 3, "1 comes more than once (at most 2 times), and every one comes"),
        ([7, 1, 4, 4], 8, "3 come more than once (at most 4 times), and fewer than one (12.5 %) does not come"),
        ([4, 2, 1], 4, "1 comes more than once (at most 3 times), and fewer than one (14.3 %) does not come"),
        (
            [9, 8, 8],
            3,
            "fewer than one comes more than once (at most 2 times), and fewer than one (2.7 %) does not come",
        ),
        ([1, 1, 2], 1, "1 sample an epoch, of 3: none comes more than once, and 2 (66.7 %) do not come"),
    ],
)
def test_repeats_are_a_sentence(weights: list[int], num_samples: int, text: str) -> None:
    assert str(ByWeight(np.array(weights, dtype=np.uint32), num_samples).repeats).endswith(text)


REFUSED: list[tuple[Callable[[Dataset], Any], str]] = [
    (lambda ds: ds.sample(), "sample.. got nothing to sample by"),
    (lambda ds: ds.sample(BALANCED, by=LABELS), "sample.. takes weights, or by= classes; got both"),
    (lambda ds: ds.sample(balanced=True), "sample.balanced=True. needs classes, but by= names none"),
    (
        lambda ds: ds.sample(by=LABELS, balanced=cast("bool", {"few": 2})),
        "must be True or False; got {'few': 2}",
    ),
    (lambda ds: ds.sample(limit=4), "sample.limit=. needs classes"),
    (lambda ds: ds.sample(by=LABELS), "takes balanced=True or limit=; got neither"),
    (lambda ds: ds.sample(by=LABELS, balanced=True, limit=3), "takes balanced=True or limit=; got both"),
    (lambda ds: ds.sample(by=LABELS, limit=3, num_samples=9), "num_samples= asks for another number"),
    (lambda ds: ds.sample(by=LABELS, limit=0), "an epoch of 0 samples"),
    (lambda ds: ds.sample(num_samples=-1), "at least 0"),
    (lambda ds: ds.sample(num_samples=2**33), "an epoch of 8589934592 samples; from 197 it can have 1 to 4294967296"),
    (lambda ds: ds.sample(num_samples=198, replacement=False), "an epoch of 198 samples.* must repeat some"),
    (lambda ds: ds.sample(by=LABELS, balanced=True, num_samples=36, replacement=False), "2 classes with at least 17"),
    (lambda ds: ds.sample(BALANCED, replacement=False), "needs num_samples"),
    (lambda ds: ds.sample(BALANCED[:-1]), r"a value for each of 197 samples by id; got shape \(196,\)"),
    (lambda ds: ds.sample({"few": 2, "many": 1}), r"must have a value for each sample; got a mapping: \{'few': 2"),
    (lambda ds: ds.sample(-BALANCED), "not negative; participating sample 0"),
    (lambda ds: ds.sample(LABELS), "weights are numbers; got <U6"),
    (lambda ds: ds.sample("labels"), "no column 'labels'"),
    (lambda ds: ds.sample(BALANCED).sample(BALANCED), "was called before"),
    (lambda ds: ds.shuffle().sample(BALANCED), r"was called after shuffle\(\)"),
    (lambda ds: ds.filter(bool).sample(BALANCED), r"was called after filter\(\)"),
    (lambda ds: ds.batch(4).sample(BALANCED), r"was called after batch\(\)"),
    (lambda ds: ds.sample(BALANCED).take(5), r"take\(\) chooses stored samples, but was called after sample\(\)"),
]


@pytest.mark.parametrize(("ask", "message"), REFUSED)
def test_what_cannot_be_is_refused(tars: Dataset, ask: Callable[[Dataset], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask(tars)
