"""A joined stream is the stream of its left side, with the fields of both: every law of streams holds for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.stream.joining.joined_data import (
    NUM_LEFT,
    check_batch,
    check_joined,
    joined,
    numbers_of,
    write_right,
)

import shoal
from shoal.orders import Block, Buffer, Full, Order, Sequential, Window
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

STREAMS: dict[str, Order] = {
    "sequential": Sequential(),
    "full": Full(),
    "window": Window(chunks=4, num_canonical_nodes=1),
    "nodes": Window(chunks=12, num_canonical_nodes=3),
    "block": Block(chunks=3),
    "buffer": Buffer(samples=20),
}
ALL = set(range(NUM_LEFT))


def of_sides(home: Path, order: str, how: str) -> tuple[Dataset, set[int], set[int]]:
    """The joined dataset, the numbers it delivers, and the numbers with a caption."""
    numbers = set(numbers_of(order))
    ds = joined(home / "left", home / f"right-{order}", how=how)
    return ds, (ALL & numbers if how == "inner" else ALL), numbers


@pytest.fixture(params=["local", "remote"])
def far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Dataset], Dataset]:
    """Read both sides as local files, or by threads as from a remote store."""

    def read(ds: Dataset) -> Dataset:
        if request.param == "remote":
            opened = ds.stream.opened
            for store in (opened.store, *(companion.opened.store for companion in opened.companions)):
                monkeypatch.setattr(store, "reads_ahead", False)
        return ds

    return read


@pytest.mark.parametrize("order", ["equal", "sparse", "shuffled", "rotated", "larger"])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("stream", STREAMS)
def test_every_left_sample_comes_once_with_the_fields_of_both(
    sides: Path, order: str, how: str, stream: str, far: Callable[[Dataset], Dataset]
) -> None:
    ds, expected, numbers = of_sides(sides, order, how)
    ds = far(ds).shuffle(STREAMS[stream], seed=3)
    for epoch in range(2):
        ds.set_epoch(epoch)
        assert sorted(check_joined(sample, numbers) for sample in ds) == sorted(expected)
    assert ds.stats()["num_unmatched"] == 2 * len(expected - numbers)


@pytest.mark.parametrize("order", ["equal", "sparse", "shuffled"])
@pytest.mark.parametrize("stream", STREAMS)
def test_ids_states_and_certificates_are_those_of_the_left_side(sides: Path, order: str, stream: str) -> None:
    left = shoal.open(sides / "left")
    inner = left.select([i in numbers_of(order) for i in range(NUM_LEFT)]) if order == "sparse" else left
    for how, alone in (("left", left), ("inner", inner)):
        both = [ds.shuffle(STREAMS[stream], seed=5).batch(16) for ds in (of_sides(sides, order, how)[0], alone)]
        assert both[0].ids().tolist() == both[1].ids().tolist()
        iterators = [iter(ds) for ds in both]
        for _ in range(3):
            keys = [next(iterator)["__key__"] for iterator in iterators]
            assert keys[0] == keys[1]
            assert iterators[0].state_dict() == iterators[1].state_dict()
        both[0].load_state_dict(iterators[1].state_dict())
        rest = [batch["__key__"] for batch in both[0]]
        assert rest == [batch["__key__"] for batch in iterators[1]]
        for ds in both:
            ds.set_epoch(0)
            for _ in ds:
                pass
        assert both[0].certificate() == both[1].certificate()


@pytest.mark.parametrize("order", ["equal", "shuffled", "sparse"])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_resumed_run_on_other_ranks_delivers_the_rest(sides: Path, order: str, how: str) -> None:
    ds, expected, numbers = of_sides(sides, order, how)
    ds = ds.shuffle(STREAMS["window"], seed=1).batch(7)
    before = [ds.partition(rank=rank, world_size=3) for rank in range(3)]
    iterators = [iter(rank) for rank in before]
    delivered = [number for _ in range(4) for rank in iterators for number in check_batch(next(rank), numbers)]
    state = iterators[0].state_dict()
    for rank in range(2):
        part = ds.partition(rank=rank, world_size=2)
        part.load_state_dict(state)
        delivered += [number for batch in part for number in check_batch(batch, numbers)]
    assert sorted(delivered) == sorted(expected)


@given(st.integers(0, NUM_LEFT - 1), st.sampled_from(["equal", "shuffled", "rotated"]), st.sampled_from([*STREAMS]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_a_seek_finds_what_a_scan_finds(sides: Path, position: int, order: str, stream: str) -> None:
    ds = of_sides(sides, order, "left")[0].shuffle(STREAMS[stream], seed=2).with_ids()
    whole = list(ds)
    ds.load_state_dict(ds.state_at(position, epoch=0))
    assert list(ds) == whole[position:]


@pytest.mark.parametrize("name", ["jsonl", "mds", "parquet"])
@pytest.mark.parametrize("order", ["equal", "shuffled"])
@pytest.mark.parametrize("stream", ["sequential", "window", "full"])
def test_the_sides_may_have_other_formats(sides: Path, name: str, order: str, stream: str) -> None:
    ds = joined(sides / "left", sides / f"right-{order}-{name}").shuffle(STREAMS[stream], seed=3)
    assert sorted(number for batch in ds.batch(32) for number in check_batch(batch, ALL)) == sorted(ALL)
    assert check_joined(ds[77], ALL) == 77


@given(
    st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=40),
    st.lists(st.integers(0, 60), max_size=40),
    st.sampled_from(["inner", "left"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_a_join_is_a_join_of_dicts(
    tmp_path_factory: pytest.TempPathFactory, left: list[int], right: list[int], how: str
) -> None:
    home = tmp_path_factory.mktemp("join")
    shoal.pack.pack(({"id": i, "x": i * i} for i in left), home / "left.jsonl", format="jsonl")
    rows = [{"id": i, "y": place} for place, i in enumerate(right)]
    partners: dict[int, int] = {}
    for row in rows:
        partners.setdefault(row["id"], row["y"])
    expected = [{"id": i, "x": i * i} | ({"y": partners[i]} if i in partners else {}) for i in left]
    expected = [row for row in expected if how == "left" or "y" in row]
    if not rows or not expected:
        return
    shoal.pack.pack(iter(rows), home / "right.jsonl", format="jsonl")
    other = shoal.open(home / "right.jsonl")
    assert list(shoal.open(home / "left.jsonl").join(other, on="id", how=how, doubles="first")) == expected


def test_a_join_of_joins_has_all_fields(sides: Path, tmp_path: Path) -> None:
    write_right(tmp_path / "more", "rotated")
    more = shoal.open(tmp_path / "more").rename(again="caption")
    captions = shoal.open(sides / "right-sparse")
    left = shoal.open(sides / "left")
    numbers = set(numbers_of("sparse"))
    for ds in (left.join(captions, how="left").join(more), left.join(captions.join(more), how="left")):
        shuffled = ds.shuffle(STREAMS["window"], seed=1)
        for sample in itertools.chain(shuffled, [ds[3], ds[5]]):
            number = check_joined(sample, numbers)
            assert "again" not in sample or sample["again"].startswith(f"caption {number} ".encode())
            assert ("again" in sample) or number not in numbers
        assert len(list(shuffled)) == NUM_LEFT


def test_a_joined_dataset_is_a_source_of_a_mixture(sides: Path) -> None:
    ds = joined(sides / "left", sides / "right-shuffled")
    plain = shoal.open(sides / "left").join(shoal.open(sides / "right-sparse"), how="left", missing={"caption": b"-"})
    mixed = shoal.mix({"all": ds, "some": plain}, weights={"all": 1, "some": 1}, ends="all").shuffle(seed=2).with_ids()
    seen = {"all": set[int](), "some": set[int]()}
    for sample in mixed:
        numbers = ALL if sample["__source__"] == "all" else set(numbers_of("sparse"))
        if sample["caption"] == b"-":
            assert sample["__source__"] == "some"
            sample["caption"] = None
        seen[sample["__source__"]].add(check_joined(sample, numbers))
        again = mixed[sample["__id__"]]
        assert again["txt"] == sample["txt"]
    assert seen == {"all": ALL, "some": ALL}


def test_stages_after_a_join_see_both_sides(sides: Path) -> None:
    def is_even(sample: dict[str, Any]) -> bool:
        return len(sample["txt"]) + len(sample["caption"]) > 0 and int(sample["__key__"][1:]) % 2 == 0

    ds = joined(sides / "left", sides / "right-equal").shuffle(STREAMS["window"], seed=1)
    filled = ds.filter(is_even, refill=True).batch(16)
    assert sorted(n for batch in filled for n in check_batch(batch, ALL)) == [n for n in range(NUM_LEFT) if n % 2 == 0]
    parts = joined(sides / "left", sides / "right-equal").split({"train": 0.8, "val": 0.2}, by="__key__")
    together = [check_joined(sample, ALL) for part in parts.values() for sample in part]
    assert sorted(together) == sorted(ALL)
    assert [check_joined(s, ALL) for s in joined(sides / "left", sides / "right-rotated").select([9, 4, 7])] == [
        4,
        7,
        9,
    ]
    upper = shoal.open(sides / "right-equal").map(lambda s: {"caption": s["caption"].upper(), "n": len(s)})
    assert shoal.open(sides / "left").join(upper)[7]["caption"].startswith(b"CAPTION 7")


def test_seeded_stages_of_the_right_side_draw_the_same_at_any_world_size(sides: Path) -> None:
    other = shoal.open(sides / "right-shuffled").map(lambda s, rng: {"draw": rng.integers(1 << 40)}, seed=True)
    ds = shoal.open(sides / "left").join(other).shuffle(STREAMS["window"], seed=1)

    def draws(*worlds: Dataset) -> dict[str, int]:
        return {sample["__key__"]: sample["draw"] for world in worlds for sample in world}

    first = draws(ds)
    assert len(set(first.values())) > NUM_LEFT // 2
    ds.set_epoch(0)
    assert first == draws(*(ds.partition(rank=rank, world_size=3) for rank in range(3)))
    ds.set_epoch(1)
    assert first != draws(ds)
