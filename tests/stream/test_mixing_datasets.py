"""Mixtures of real datasets: what is delivered is what their order says, whoever reads it and wherever it resumes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.made import open_finely, write_lines
from tests.stream.mixed import (
    FIRST,
    SIZES,
    WEIGHTS,
    check,
    check_batch,
    ids_in,
    is_odd,
    mixed,
    of_lines,
    of_tar,
    sources_in,
)

import shoal
from shoal.errors import NoSampleError, ShoalError, ShuffleWarning, StateError, UsageError
from shoal.mixing import MixedDataset, PerBatch, PerRank
from shoal.reading.resolved_order import ResolvedOrder

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

CHOICES: list[Any] = ["even", "random", PerBatch(samples=12), PerRank(samples=4)]
EVEN = dict.fromkeys(SIZES, 1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("mixed")
    sources_in(found)
    return found


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_iterating_gives_what_ids_says(choice: Any, home: Path) -> None:
    ds = mixed(home, choice=choice)
    for epoch in range(3):
        positions = np.arange(epoch * 500, epoch * 500 + 500)
        names = np.array(ds.sources)[ds.source_of(positions)]
        samples = list(ds)
        assert [check(sample) for sample in samples] == ds.ids(epoch).tolist()
        assert [sample["__source__"] for sample in samples] == names.tolist()
        assert ds.counts(500 * epoch + 500) == {
            name: ds.counts(500 * epoch)[name] + int((names == name).sum()) for name in SIZES
        }
    ds.check_certificate(ds.certificate())


def test_a_state_of_another_mixture_is_refused_by_the_name_of_the_source(home: Path) -> None:
    sources = sources_in(home)
    state = mixed(home).state_at(200)

    def refused(match: str, other: dict[str, Any] | None = None, *, seed: int = 3, **arguments: Any) -> None:
        given = {"weights": WEIGHTS, "epoch_size": 500, **arguments}
        ds = shoal.mix(other or sources, **given).shuffle(seed=seed, window=60_000)
        with pytest.raises(StateError, match=match):
            ds.load_state_dict(state)

    refused(r"source 'tar': the state was saved with seed=(?s:.*)shuffle\(seed=\) of the mixture", seed=4)
    refused("weights before position 200 differ", weights=EVEN)
    refused("source 'lines': the state belongs to dataset", {**sources, "lines": sources["mds"]})
    refused("source 'mds': .*chosen before shuffle", {**sources, "mds": sources["mds"].take(150)})
    refused("source 'mds': the state was saved with seed=", {**sources, "mds": sources["mds"].shuffle("full")})
    refused(r"ends=500; this stream has ends=600\n  hint: give mix\(\), shuffle\(\)", epoch_size=600)
    refused("choice='even'; this stream has choice='random'", choice="random")
    three = {name: sources[name] for name in ("tar", "lines", "parquet")}
    refused(
        "saved with the source 'mds'; this mixture has 'tar', 'lines', 'parquet'",
        three,
        weights=dict.fromkeys(three, 1),
    )
    more = {**sources, "more": sources["tar"].take(9)}
    refused("knows no source 'more'|weights before .* differ", more, weights={**WEIGHTS, "more": 0.1})
    with pytest.raises(StateError, match="the state was saved with a mixture, but this stream is not a mixture"):
        sources["tar"].shuffle(seed=3).load_state_dict(state)
    with pytest.raises(StateError, match="this stream is a mixture"):
        mixed(home).load_state_dict(sources["tar"].shuffle(seed=3).state_dict())
    with pytest.raises(StateError, match=r"saved with seed=0; this stream has seed=1\n  hint: mix\(seed=0\) resumes"):
        mixed(home, seed=1).load_state_dict(state)
    # The order in which sources are listed does not matter, nor does one that is not used.
    turned = shoal.mix(dict(reversed(sources.items())), weights=WEIGHTS, epoch_size=500).shuffle(seed=3, window=60_000)
    turned.load_state_dict(state)
    assert [sample["kind"] for sample in turned] == [sample["kind"] for sample in mixed(home)][200:]
    spare = shoal.mix({**sources, "more": more["more"]}, weights={**WEIGHTS, "more": 0}, epoch_size=500)
    spare = spare.shuffle(seed=3, window=60_000)
    spare.load_state_dict(state)
    assert [check(sample) for sample in spare] == mixed(home).ids()[200:].tolist()


@pytest.mark.parametrize("ramp", [0, 100])
def test_weights_change_and_nothing_before_it_does(ramp: int, home: Path) -> None:
    plain, changed = mixed(home), mixed(home).reweight(at=200, weights=EVEN, ramp=ramp)
    assert np.array_equal(plain.ids()[:200], changed.ids()[:200])
    assert plain.counts(200) == changed.counts(200)
    late, early = changed.counts(500), changed.counts(200 + ramp)
    assert all(abs(late[name] - early[name] - (300 - ramp) / 4) < 4 for name in SIZES)
    for before, after in ((plain, changed), (changed, plain)):
        for position in (50, 200, 350):
            ds = mixed(home) if after is plain else mixed(home).reweight(at=200, weights=EVEN, ramp=ramp)
            if before is plain and position == 350:
                with pytest.raises(StateError, match="weights before position 350 differ"):
                    ds.load_state_dict(before.state_at(position))
                continue
            ds.load_state_dict(through_json(before.state_at(position)))
            assert [check(sample) for sample in ds] == changed.ids()[position:].tolist()
            assert ds.counts(450) == changed.counts(450)
            assert ds.weights_at(499) == dict.fromkeys(SIZES, 0.25)


def test_a_run_whose_weights_change_while_it_runs(home: Path) -> None:
    ds = mixed(home).with_ids().batch(10)
    iterator = iter(ds)
    found = [number for _ in range(20) for number in check_batch(next(iterator))]
    ds2 = ds.reweight(at=200, weights=EVEN)
    ds2.load_state_dict(ds.state_dict())
    found += ids_in(ds2)
    assert found == mixed(home).reweight(at=200, weights=EVEN).ids().tolist()


def test_epochs_end_elsewhere_after_a_change(home: Path) -> None:
    plain = mixed(home, epoch_size=None)
    changed = mixed(home, epoch_size=None).reweight(at=100, weights={**dict.fromkeys(SIZES, 0), "parquet": 1})
    assert plain.num_samples > changed.num_samples > 100
    plain.load_state_dict(changed.state_at(10, epoch=1))
    assert plain.num_samples == changed.num_samples
    assert plain.state_dict() == changed.state_at(10, epoch=1)
    assert [check(sample) for sample in plain] == changed.ids(1)[10:].tolist()
    border = mixed(home, epoch_size=None)
    moved = border.reweight(at=border.num_samples, weights={**WEIGHTS, "mds": 0.9})
    if moved.num_samples != border.num_samples:
        with pytest.raises(StateError):
            moved.load_state_dict(border.state_at(0, epoch=1))


def test_long_lists_of_changes_are_digests(home: Path) -> None:
    ds = mixed(home)
    sizes = []
    for number in range(60):
        ds = ds.reweight(at=100 + number, weights={**WEIGHTS, "mds": number + 1})
        state = ds.state_at(130)
        sizes.append(len(json.dumps(state["order"]["changes"])))
        ds.load_state_dict(through_json(state))
    assert max(sizes) <= 1000
    assert sizes[-1] < 60
    kinds = {len(ds.state_dict()["order"]["changes"])}
    assert kinds == {1}
    with pytest.raises(StateError, match=r"weights before position .* differ"):
        mixed(home).load_state_dict(ds.state_at(50))
    other = mixed(home)
    for number in range(60):
        other = other.reweight(at=100 + number, weights={**WEIGHTS, "mds": number + (1 if number != 7 else 50)})
    with pytest.raises(StateError, match=r"weights before position .* differ"):
        other.load_state_dict(ds.state_at(130))


def test_sources_are_added_and_retired(home: Path) -> None:
    sources = sources_in(home)
    late = {name: source for name, source in sources.items() if name != "mds"}
    begun = shoal.mix(late, weights={"tar": 2, "lines": 1, "parquet": 1}, epoch_size=500).shuffle(seed=3, window=60_000)
    added = begun.reweight(at=150, weights={"tar": 0, "lines": 1, "parquet": 1, "mds": 2}, add={"mds": sources["mds"]})
    assert added.ids()[:150].tolist() == begun.ids()[:150].tolist()
    samples = list(added)
    assert [check(sample) for sample in samples] == added.ids().tolist()
    kinds = [sample["kind"] for sample in samples]
    assert "mds" not in kinds[:150]
    assert "tar" not in kinds[150:]
    mds = [sample["own"] for sample in samples if sample["kind"] == "mds"]
    own = mixed(home, weights={**dict.fromkeys(SIZES, 0), "mds": 1})
    assert mds == [sample["own"] for sample in own][: len(mds)]
    added.load_state_dict(through_json(begun.state_at(150)))
    assert [check(sample) for sample in added] == added.ids()[150:].tolist()
    with pytest.raises(StateError, match="saved with the source 'mds'"):
        begun.load_state_dict(added.state_at(100))


def test_positions_of_a_mixture_are_taken_skipped_and_left_out(home: Path) -> None:
    whole = mixed(home).ids().tolist()
    for ds, expected in (
        (mixed(home).take(77), whole[:77]),
        (mixed(home).skip(450), whole[450:]),
        (mixed(home).select([3, 99, 400]), [whole[3], whole[99], whole[400]]),
        (mixed(home).skip(100).take(50), whole[100:150]),
        (mixed(home).without(positions=[(10, 20), (100, 400)]), whole[:10] + whole[20:100] + whole[400:]),
    ):
        assert [check(sample) for sample in ds] == expected
        ds.set_epoch(0)
        resumed = ds.with_ids().batch(2)
        iterator = iter(ds.with_ids().batch(2))
        first = check_batch(next(iterator))
        resumed.load_state_dict(through_json(iterator.state_dict()))
        assert first + ids_in(resumed) == expected
    late = mixed(home).reweight(at=120, weights=EVEN).skip(100)
    ds = mixed(home).skip(100)
    ds.load_state_dict(late.state_at(10))  # position 110 of the mixture, before the change
    assert [check(sample) for sample in ds] == late.ids()[10:].tolist()
    with pytest.raises(StateError, match="before position 150 differ"):
        mixed(home).skip(100).reweight(at=120, weights=EVEN).load_state_dict(mixed(home).skip(100).state_at(50))


def test_filters_in_a_source_and_in_the_mixture(home: Path) -> None:
    sources = sources_in(home)
    expected = mixed(home).ids().tolist()

    def kept(ids: list[int], kinds: tuple[str, ...]) -> list[int]:
        places = [max((first, kind) for kind, first in FIRST.items() if first <= number) for number in ids]
        return [i for i, (first, kind) in zip(ids, places, strict=True) if kind not in kinds or (i - first) % 2]

    some = {**sources, "mds": sources["mds"].filter(is_odd), "tar": sources["tar"].filter(is_odd)}
    ds = shoal.mix(some, weights=WEIGHTS, epoch_size=500).shuffle(seed=3, window=60_000)
    assert [check(sample) for sample in ds] == kept(expected, ("mds", "tar"))
    with pytest.raises(TypeError, match="number of samples"):
        len(ds)
    assert ds[60] == {"own": 0, "kind": "lines", "__source__": "lines"}
    assert ds[0]["own"] == 0  # which its filter does not keep
    both = [check(sample) for sample in mixed(home).filter(is_odd)]
    assert both == kept(expected, tuple(SIZES))
    refilled = {**sources, "lines": sources["lines"].filter(is_odd, refill=True)}
    for ds, due in (
        (mixed(home).filter(is_odd, refill=True), both),
        (
            shoal.mix(refilled, weights=WEIGHTS, epoch_size=500).shuffle(seed=3, window=60_000),
            kept(expected, ("lines",)),
        ),
    ):
        batches = list(ds.with_ids().batch(16))
        assert {len(batch["kind"]) for batch in batches[:-1]} == {16}
        assert ids_in(batches) == due
        parts = [iter(ds.with_ids().batch(5, steps="apart").partition(rank=rank, world_size=3)) for rank in range(3)]
        first = [number for part in parts for _ in range(4) for number in check_batch(next(part))]
        state = through_json(shoal.merge_states(part.state_dict() for part in parts))
        rest = ds.with_ids().batch(8)
        rest.load_state_dict(state)
        assert sorted(first + ids_in(rest)) == sorted(due)


def test_sampled_selected_and_split_sources(home: Path) -> None:
    sources = sources_in(home)
    weights = np.arange(200) + 1
    parts = sources["lines"].split({"a": 0.6, "b": 0.4})
    some = {
        "mds": sources["mds"].sample(weights, num_samples=90),
        "lines": parts["a"],
        "parquet": sources["parquet"].select([1, 2, 5, 40]),
        "tar": sources["tar"].shuffle("full", seed=9).take(20),
    }
    ds = shoal.mix(some, weights=EVEN, epoch_size=800).shuffle(seed=5, window=60_000)
    own = {"mds": [], "lines": [], "parquet": [], "tar": []}  # type: dict[str, list[int]]
    samples = list(ds)
    for sample in samples:
        own[sample["kind"]].append(int(sample["own"]))
    assert sorted(own["parquet"][:4]) == [1, 2, 5, 40] == sorted(own["parquet"][4:8])
    assert sorted(own["lines"][: parts["a"].num_samples]) == sorted(parts["a"].ids().tolist())
    assert own["tar"][:40] == some["tar"].ids(0).tolist() + some["tar"].ids(1).tolist()
    counts = np.bincount(own["mds"][:90], minlength=200)
    assert (np.abs(counts - 90 * weights / weights.sum()) < 1).all()
    half = shoal.mix(some, weights=EVEN, epoch_size=800).shuffle(seed=5, window=60_000)
    half.load_state_dict(through_json(ds.state_at(333)))
    assert list(half) == samples[333:]
    half.check_certificate(ds.certificate())


def test_nested_mixtures(home: Path) -> None:
    sources = sources_in(home)
    inner = shoal.mix(
        {name: sources[name].with_ids() for name in ("lines", "parquet")}, weights={"lines": 1, "parquet": 2}
    )
    inner = inner.map(with_where)
    outer = shoal.mix({"tar": sources["tar"], "text": inner}, weights={"tar": 1, "text": 3}, epoch_size=400)
    ds = outer.shuffle(seed=2, window=60_000)
    samples = list(ds)
    assert {sample["__source__"] for sample in samples} == {"tar", "text/lines", "text/parquet"}
    text = [sample for sample in samples if sample["kind"] != "tar"]
    assert all(sample["__id__"] == sample["own"] and sample["where"] == sample["kind"] for sample in text)
    alone = shoal.mix({"text": inner}, epoch_size=400).shuffle(seed=2, window=60_000)
    assert [sample["own"] for sample in alone][: len(text)] == [sample["own"] for sample in text]
    share = sum(sample["kind"] == "parquet" for sample in text) / len(text)
    assert share == pytest.approx(2 / 3, abs=0.01)
    again = outer.shuffle(seed=2, window=60_000)
    again.load_state_dict(through_json(ds.state_at(123)))
    assert list(again) == samples[123:]
    other = shoal.mix({"tar": sources["tar"], "text": inner.reweight(at=5, weights={"lines": 1, "parquet": 1})},
                      weights={"tar": 1, "text": 3}, epoch_size=400).shuffle(seed=2, window=60_000)  # fmt: skip
    with pytest.raises(StateError, match=r"weights before .* differ|other sources or weights"):
        other.load_state_dict(ds.state_at(123))


def test_mixtures_inside_change_too_and_a_state_from_before_loads(home: Path) -> None:
    sources = sources_in(home)

    def made(late: int | None, *, spare: bool = False, seed: int = 0) -> MixedDataset:
        names = ("lines", "parquet", "mds") if spare else ("lines", "parquet")
        weights = {"lines": 1, "parquet": 2, **({"mds": 0} if spare else {})}
        inner = shoal.mix({name: sources[name] for name in names}, weights=weights, seed=seed)
        if late is not None:
            inner = inner.reweight(at=late, weights={**weights, "lines": 5})
        outer = shoal.mix({"tar": sources["tar"], "in": inner}, weights={"tar": 1, "in": 1}, epoch_size=600)
        return outer.shuffle("full", seed=2)

    plain = [check(sample) for sample in made(None)]
    for other, same in ((made(None, spare=True), 300), (made(200), 100), (made(5000), 300)):
        other.load_state_dict(through_json(made(None).state_at(300)))  # 150 samples of the mixture inside
        found = [check(sample) for sample in other]
        assert found[:same] == plain[300 : 300 + same]
        assert (found == plain[300:]) == (same == 300)
    with pytest.raises(StateError, match="before position 150"):
        made(120).load_state_dict(made(None).state_at(300))
    with pytest.raises(StateError, match="source 'in' was mixed differently"):
        made(None, seed=1).load_state_dict(made(None).state_at(300))
    with pytest.raises(StateError, match="saved with the source 'mds'"):
        made(None).load_state_dict(made(None, spare=True).state_at(300))


def with_where(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "where": sample["__source__"]}


def test_samples_by_id(home: Path) -> None:
    ds = mixed(home).with_ids()
    for number in (0, 59, 60, 142, 143, 187, 188, 387, -1):
        sample = ds[number]
        assert check(sample) == sample["__id__"] == number % 388
    assert len(ds.as_map()) == 388
    with pytest.raises(NoSampleError, match="ids 0 to 387"):
        ds[388]


def test_the_same_data_twice_warns(home: Path) -> None:
    sources = sources_in(home)
    with pytest.warns(ShuffleWarning, match="'a' and 'b' are the same data") as caught:
        ds = shoal.mix({"a": sources["mds"], "b": sources["mds"].take(50)})
    assert caught[0].filename == __file__
    whole = shoal.mix({"x": ds, "y": ds}, weights={"x": 1, "y": 1}).shuffle(seed=1)
    assert {sample["__source__"] for sample in whole} == {"x/a", "x/b", "y/a", "y/b"}


def fussy(text: Any) -> Any:
    if int(text) % 10 == 3:
        msg = "this is damaged"
        raise ValueError(msg)
    return int(text)


def test_damaged_samples_of_a_source_are_left_out(home: Path, tmp_path: Path) -> None:
    def made() -> MixedDataset:
        tars = shoal.open(home / "tar" / "data", index=home / "tar" / "fine.index").decode({"cls": fussy}).map(of_tar)
        sources = {**sources_in(home), "tar": tars}
        return shoal.mix(sources, weights=WEIGHTS, epoch_size=500).shuffle(seed=3, window=60_000)

    whole = made().ids().tolist()
    bad = [number for number in whole if number < 60 and number % 10 == 3]
    good = [number for number in whole if number not in set(bad)]
    assert len(bad) > 10
    with pytest.raises(ValueError, match="damaged") as caught:
        list(made())
    assert any("of the source 'tar'" in note for note in caught.value.__notes__)
    listed = tmp_path / "bad.jsonl"
    ds = made().reading(on_error="skip", quarantine=listed)
    assert [check(sample) for sample in ds] == good
    assert ds.stats()["num_skipped"] >= len({*bad})
    assert ds.state_dict() == made().state_at(0, epoch=1)
    again = made().reading(quarantine=listed)
    assert [check(sample) for sample in again] == good
    parts = [
        made().reading(on_error="skip").with_ids().batch(4).partition(rank=rank, world_size=3) for rank in range(3)
    ]
    assert sorted(number for part in parts for number in ids_in(part)) == sorted(good)
    with pytest.raises(ValueError, match="damaged"):
        made()[3]


def test_a_damaged_shard_of_a_source(home: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "data", [40])
    source = open_finely(tmp_path / "data", extent_bytes=600)
    path = tmp_path / "data" / "s-000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[7] = b"?" * (len(lines[7]) - 1) + b"\n"
    stamps = path.stat()
    path.write_bytes(b"".join(lines))
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    sources = {"mds": sources_in(home)["mds"], "own": source}
    ds = shoal.mix(sources, weights={"mds": 1, "own": 1}, epoch_size=90).shuffle(seed=1)
    with pytest.raises(ShoalError, match=r"s-000\.jsonl"):
        list(ds)
    found = [sample["id"] for sample in ds.reading(on_error="skip") if sample["__source__"] == "own"]
    own = [number - 200 for number in ds.ids().tolist() if number >= 200]
    assert 7 in own
    assert found == [number for number in own if number != 7]


def test_memory_limits_are_shared(home: Path) -> None:
    expected = mixed(home).ids().tolist()
    for limit in (150_000, "1MiB"):
        assert [check(sample) for sample in mixed(home).reading(memory_limit=limit)] == expected
    words = r"(?s)the source 'tar', with .* of memory_limit=5000: .*one in use.*hint: .*alone takes memory_limit=9216"
    with pytest.raises(UsageError, match=words):
        next(iter(mixed(home).reading(memory_limit=5_000)))


def test_a_source_of_one_sample_is_ordered_and_read_once_however_often_it_comes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = shoal.open(write_lines(tmp_path / "one", [1]))
    ds = shoal.mix(
        {"lines": sources_in(home)["lines"], "one": one.map(of_lines)}, weights={"lines": 1, "one": 1}, ends="all"
    )
    ds = ds.shuffle(seed=2)
    bound: list[int] = []
    untouched = ResolvedOrder.untouched

    def counted(self: ResolvedOrder, epoch: int) -> Any:
        if self.index.num_samples == 1:
            bound.append(epoch)
        return untouched(self, epoch)

    monkeypatch.setattr(ResolvedOrder, "untouched", counted)
    parts = [ds.batch(4).partition(rank=rank, world_size=2) for rank in range(2)]
    got = [list(part) for part in parts]
    assert sum(list(batch["__source__"]).count("one") for part in got for batch in part) >= 80
    assert set(bound) == {0}
    assert max(part.stats()["num_reads"] for part in parts) < 30
