"""What `shoal.mix` and `reweight` take, and what they refuse and how."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.mixed import SIZES, WEIGHTS, is_odd, mixed, sources_in

import shoal
from shoal.errors import ShoalError, ShuffleWarning, StateError, UsageError
from shoal.mixing import MixedDataset, PerBatch, PerRank
from shoal.order.state_dict import sealed
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

Make = Callable[..., MixedDataset]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("mixed")
    sources_in(found)
    return found


@pytest.fixture
def two(home: Path) -> Make:
    """Mix 83 lines and 45 rows."""
    sources = sources_in(home)
    chosen = {"lines": sources["lines"], "parquet": sources["parquet"]}
    return lambda **arguments: shoal.mix(chosen, **arguments)


HALF = {"lines": 1, "parquet": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": {}}, "weights= does not name the sources 'lines', 'parquet'"),
        ({"weights": {"lines": 1}}, "weights= does not name the source 'parquet'"),
        ({"repeat": {"lines": 1}}, "repeat= does not name the source 'parquet'"),
        ({"choose": {"lines": 1, "parquet": 1, "x": 1}}, "choose= names 'x'; the sources are 'lines', 'parquet'"),
        ({"weights": {"lines": 1, "parqet": 1}}, r"did you mean 'parquet'\?"),
        ({"weights": [1, 2]}, r"weights=\) takes a number for each source by name"),
        ({"weights": {"lines": 0, "parquet": 0}}, "needs a weight above zero"),
        ({"weights": {"lines": -1, "parquet": 1}}, "the weight of 'lines' must not be negative"),
        ({"weights": {"lines": True, "parquet": 1}}, "the weight of 'lines' must be a number"),
        ({"weights": HALF, "repeat": HALF}, "takes weights=, repeat= or choose="),
        ({"repeat": HALF, "choose": HALF}, "takes weights=, repeat= or choose="),
        ({"choose": HALF, "epoch_size": 5}, "takes weights=, repeat= or choose="),
        ({"repeat": {"lines": "x", "parquet": 1}}, "the weight of 'lines' must be a number"),
        ({"repeat": {"lines": -1, "parquet": 1}}, "must not be negative"),
        ({"choose": {"lines": 1.5, "parquet": 1}}, r"choose\['lines'\] must be an integer"),
        ({"choose": {"lines": -1, "parquet": 1}}, "'lines' cannot come -1 times"),
        ({"choose": {"lines": 0, "parquet": 0}}, "needs a weight above zero"),
        ({"seed": -1}, "seed must be an integer from 0"),
        ({"seed": 2**64}, "seed must be an integer from 0"),
        ({"choice": "batch"}, "needs the size of a batch"),
        ({"choice": "rank"}, "PerRank"),
        ({"choice": "evn"}, r"did you mean 'even'\?"),
        ({"choice": PerBatch}, r"mix\(choice=\) is one of"),
        ({"unit": "token"}, "is one of 'samples', 'tokens'"),
        ({"unit": "tokens", "weights": HALF}, "needs the tokens of each sample of 'lines'"),
        ({"unit": "tokens", "choose": HALF}, "needs the tokens"),
        ({"ends": "frist"}, r"did you mean 'first'\?"),
        ({"ends": "all", "weights": {"lines": 1, "parquet": 0}}, "'parquet' never comes to its end"),
        ({"epoch_size": 0}, "from 1"),
        ({"epoch_size": -3}, "from 1"),
        ({"epoch_size": 2**61}, "from 1 to"),
        ({"epoch_size": 1.5}, "epoch_size must be an integer"),
        ({"max_repeats": 0}, "a number above 0; got 0"),
        ({"max_repeats": float("nan")}, "a number above 0; got nan"),
        ({"max_repeats": {"lines": "2"}}, "a number above 0; got '2'"),
        ({"max_repeats": {"line": 2}}, r"did you mean 'lines'\?"),
        ({"max_repeats": 2, "epoch_size": 300}, "used up at position 256 of an epoch of 300"),
        ({"max_repeats": 1, "ends": "forever"}, "of an endless epoch"),
        (
            {"max_repeats": 2, "epoch_size": 300},
            "hint: set a smaller weight, a larger max_repeats=, or epoch_size=256 or less",
        ),
        (
            {"max_repeats": {"parquet": 1, "lines": 1}, "weights": HALF, "epoch_size": 300},
            "(?s)of 'parquet' would .* at position 9[01] .* epoch_size=9[01] or less",
        ),
        ({"max_repeats": 0.001, "epoch_size": 9}, "max_repeats=$"),
        (
            {"max_repeats": 1, "repeat": {"lines": 2, "parquet": 1}},
            "hint: take fewer samples of this source, or set a larger",
        ),
        *(
            ({"ends": ends, **size}, rf"ends= and {next(iter(size))}= both say where an epoch ends")
            for ends in ("first", "all", "forever")
            for size in ({"epoch_size": 9}, {"repeat": HALF}, {"choose": HALF})
        ),
        ({"choice": PerBatch(64)}, "a source has fewer samples than the 64 of a batch"),
    ],
)
def test_what_mix_refuses(arguments: dict[str, Any], message: str, two: Make) -> None:
    with pytest.raises(UsageError, match=message):
        two(**arguments)


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (lambda ds: ds.batch(3), r"has batch\(\), which applies to the whole mixture"),
        (lambda ds: ds.partition(rank=0, world_size=2), r"has partition\(\)"),
        (lambda ds: ds.reading(copy=False), r"has reading\(\)"),
        (lambda ds: ds.format("numpy"), r"has format\(\)"),
        (lambda ds: ds.shuffle().without(positions=[(0, 3)]), r"has without\(\)"),
        (lambda ds: shoal.mix({"x": ds}).shuffle().take(5), "a mixture that delivers only some of its positions"),
        (lambda _: 3, "must be a dataset; got int"),
    ],
)
def test_what_no_source_can_be(verb: Callable[[Dataset], Any], message: str, home: Path) -> None:
    source = sources_in(home)["lines"]
    with pytest.raises(UsageError, match=message):
        shoal.mix({"a": verb(source)})
    with pytest.raises(UsageError, match=message):
        shoal.mix({"a": source}).reweight(at=5, weights={"a": 1, "b": 1}, add={"b": verb(source)})


def test_names_of_sources(home: Path) -> None:
    source = sources_in(home)["lines"]
    for name in ("a/b", "", 1, None, "\ud800"):
        with pytest.raises(UsageError, match="named by a text without '/'"):
            shoal.mix({name: source})  # type: ignore[dict-item]
    wrong: list[Any] = [{}, [source], source, None]
    for sources in wrong:
        with pytest.raises(UsageError, match="takes datasets by name"):
            shoal.mix(sources)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": 0}, "does not come after the change at 0"),
        ({"at": -1}, "from 0 to 2"),
        ({"at": 2**70}, "below 2"),
        ({"at": 1.5}, "must be an integer"),
        ({"at": 9, "ramp": -1}, "from 0 to 2"),
        ({"at": 9, "weights": [1]}, "takes weights by the name of the source"),
        ({"at": 9, "weights": {"lines": 1}}, "weights= does not name the source 'parquet'"),
        ({"at": 9, "weights": {"lines": 0, "parquet": 0}}, "above zero"),
        ({"at": 9, "add": [1]}, "takes datasets by name"),
        ({"at": 9, "add": {"lines": None}}, "must be a dataset"),
    ],
)
def test_what_reweight_refuses(arguments: dict[str, Any], message: str, two: Make) -> None:
    with pytest.raises(UsageError, match=message):
        two(weights=HALF).reweight(**{"weights": HALF, **arguments})


@pytest.mark.parametrize("arguments", [{"at": None}, {"at": 1.5}, {"at": 9, "ramp": "x"}])
def test_steps_of_reweight_are_integers(arguments: dict[str, Any], two: Make) -> None:
    with pytest.raises(UsageError, match=r"must be an integer; got (None$|1\.5 of type|'x' of type)"):
        two(weights=HALF).batch(4).reweight(weights=HALF, in_steps=True, **arguments)


@pytest.mark.parametrize("positions", [[[1], [2, 3]], 2**63, -1, 1.5, [None]])
def test_what_has_no_source(positions: Any, two: Make) -> None:
    with pytest.raises(UsageError, match="takes positions from 0 on"):
        two(weights=HALF).source_of(positions)


def test_changes_are_added_at_the_end(two: Make, home: Path) -> None:
    ds = two(weights=HALF).reweight(at=50, weights=HALF)
    with pytest.raises(UsageError, match="does not come after the change at 50"):
        ds.reweight(at=49, weights=HALF)
    again = ds.reweight(at=50, weights={"lines": 1, "parquet": 0})  # the last one counts
    assert set(again.source_of(range(50, 99)).tolist()) == {0}
    with pytest.raises(UsageError, match="has a source 'lines' already"):
        ds.reweight(at=60, weights=HALF, add={"lines": sources_in(home)["lines"]})
    with pytest.raises(UsageError, match="more often than max_repeats=1"):
        iter(two(weights=HALF, epoch_size=80, max_repeats=1).reweight(at=10, weights={"lines": 0, "parquet": 1}))


def test_repeats_are_checked_in_every_epoch(two: Make, home: Path) -> None:
    ds = two(weights=HALF, epoch_size=80, max_repeats={"parquet": 1})  # 40 of 45 in an epoch
    later: dict[str, Any] = {"weights": {"lines": 1, "parquet": 3}}
    message = r"'parquet' would come more often than max_repeats=1 allows: its 45 .* at position 298, in epoch 3 of 80"
    with pytest.raises(UsageError, match=message):
        iter(ds.reweight(at=240, **later))  # 60 in epoch 3
    with pytest.raises(UsageError, match="in epoch 3 of 80 each"):
        iter(ds.reweight(at=239, **later))  # hardly one more in epoch 2
    with pytest.raises(UsageError, match="in epoch 2 of 80 each"):
        iter(ds.reweight(at=200, **later))  # 20 + 30
    with pytest.raises(UsageError, match="in epoch 5 of 80 each"):
        iter(ds.reweight(at=240, ramp=640, **later))
    iter(ds.reweight(at=240, **later).reweight(at=250, weights=HALF))
    grown = ds.reweight(at=240, weights={"lines": 9, "parquet": 10})  # 42
    strict = two(weights=HALF, epoch_size=80, max_repeats={"parquet": 0.9})
    with pytest.raises(UsageError, match=r"max_repeats=0.9 .* in epoch 3"):
        strict.load_state_dict(grown.state_at(10, epoch=5))  # which brings the change along
    weights = {"lines": 8, "parquet": 1, "tar": 1}
    ds = two(weights=HALF, epoch_size=80, max_repeats={"lines": 0.5, "parquet": 0.9})
    with pytest.raises(UsageError, match=r"'lines' would come .* in epoch 1 of 80"):
        iter(ds.reweight(at=80, weights=weights, add={"tar": sources_in(home)["tar"]}))


@settings(deadline=None, max_examples=20)
@given(
    changes=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20), st.integers(0, 12)), max_size=3),
    blocks=st.integers(1, 6),
    most=st.sampled_from([0.5, 1, 2, 4]),
)
def test_counts_of_all_epochs_are_those_allowed(
    changes: list[tuple[int, int, int]], blocks: int, most: float, home: Path
) -> None:
    lines = sources_in(home)["lines"]
    sources, size, limit = {"a": lines, "b": lines.take(45)}, 64 * blocks, int(45 * most)

    def changed(ds: MixedDataset) -> MixedDataset:
        for at, ramp, weight in sorted(changes):
            ds = ds.reweight(at=64 * at, ramp=64 * ramp, weights={"a": 9, "b": weight})
        return ds

    free = shoal.mix(sources, weights={"a": 9, "b": 3}, epoch_size=size)
    every = [changed(free).counts(epoch * size)["b"] for epoch in range(70)]
    counts, rounded = np.diff(every), 4 * (1 + len(changes))
    try:
        ds = shoal.mix(sources, weights={"a": 9, "b": 3}, epoch_size=size)
        spec: Any = changed(ds).stream.spec
        iter(MixedDataset(replace(spec, request=replace(spec.request, max_repeats={"b": most}))))
    except UsageError as error:
        if "in epoch" not in error.message:
            assert counts[0] > limit
            return
        epoch = int(error.message.partition("in epoch ")[2].partition(" ")[0])
        at = int(error.message.partition("at position ")[2].partition(",")[0])
        assert epoch * size <= at < (epoch + 1) * size
        assert changed(free).counts(at)["b"] == every[epoch] + limit
        assert changed(free).counts(at + 1)["b"] == every[epoch] + limit + 1
    else:
        assert counts.max() <= max(limit, counts[0]) + rounded


def test_what_works_on_one_dataset_only(home: Path) -> None:
    ds = mixed(home)
    for verb in (
        lambda: ds.sample([1]),
        lambda: ds.split({"a": 0.5}),
        lambda: ds.index_column("bytes"),
        lambda: ds.select(bytes=3),
        lambda: ds.shuffle(seed=1),
        lambda: ds.quality(batch=8, key=[1] * 388),
        lambda: ds.quality(batch=400),
        lambda: ds.filter(bool).as_map(),
        lambda: ds.source_of([-1]),
        lambda: ds.source_of([0.5]),
        lambda: ds.counts(-1),
        lambda: ds.weights_at(1.5),  # type: ignore[arg-type]
        lambda: mixed(home, ends="forever", epoch_size=None).ids(epoch=7, stop=5),
        lambda: mixed(home, epoch_size=10**15).ids(epoch=10**6, stop=5),
    ):
        with pytest.raises(UsageError):
            verb()


def test_fields_that_are_in_the_way(home: Path) -> None:
    sources = sources_in(home)
    own = sources["lines"].map(lambda sample: {**sample, "__source__": 1})
    with pytest.raises(UsageError, match="have a field '__source__'"):
        next(iter(shoal.mix({"a": own})))
    ids = shoal.mix({"a": sources["tar"].with_ids(), "b": sources["mds"].with_ids()}, weights={"a": 1, "b": 1})
    assert all(sample["__id__"] == sample["own"] for sample in ids)
    with pytest.raises(UsageError, match="adds '__id__', but the samples have"):
        list(ids.with_ids())
    broken = shoal.mix({"a": sources["tar"], "b": sources["mds"].map(lambda _: 1 / 0)}, weights={"a": 1, "b": 1})
    with pytest.raises(ZeroDivisionError) as caught:
        list(broken)
    assert any("of the source 'b'" in note for note in caught.value.__notes__)


def test_a_summary_tells_the_seed_of_the_mixture_from_that_of_the_shuffle(two: Make) -> None:
    ds = two(seed=5, choose={"lines": 7, "parquet": 3})
    assert repr(ds) == "<shoal.Dataset: mix(seed=5) of lines, parquet, 10 samples>"
    assert repr(ds.shuffle(seed=3)).endswith("10 samples, shuffle('window', seed=3)>")
    assert repr(ds.shuffle("full", seed=3).batch(2)).endswith("10 samples, shuffle('full', seed=3), batches of 2>")


def test_sizes_of_epochs(two: Make) -> None:
    ds = two(weights={"lines": 83, "parquet": 45})
    assert ds.exhausted_at() == {"lines": pytest.approx(128, abs=3), "parquet": pytest.approx(128, abs=3)}
    first, last = two(weights=HALF), two(weights=HALF, ends="all")
    assert abs(first.num_samples - 90) < 6
    assert abs(last.num_samples - 166) < 6
    for ds, names in ((first, {"parquet"}), (last, {"lines"})):
        end = ds.num_samples
        found = {name for name, at in ds.exhausted_at().items() if at is not None and at <= end}
        assert names <= found
    # A repeat comes right after the end of the epoch, and none within it.
    order = first.shuffle("full", seed=1)
    assert len(set(order.ids().tolist())) == first.num_samples
    assert set(order.ids(epoch=1).tolist()) & set(order.ids().tolist())
    assert first.source_of([first.num_samples]).tolist() == [1]
    counts = last.counts(last.num_samples)
    assert counts["lines"] == 83
    assert last.counts(last.num_samples - 1)["lines"] == 82
    assert two(repeat={"lines": 0.5, "parquet": 2}).counts(41 + 90) == {"lines": 41, "parquet": 90}
    assert two(choose={"lines": 7, "parquet": 3}).num_samples == 10
    assert two(weights=HALF, ends="forever").shuffle(seed=1).ids(0, 10**15, 10**15 + 3).shape == (3,)
    assert two(weights=HALF, epoch_size=90, max_repeats=1).num_samples == 90
    assert two(weights=HALF, choice=PerRank(8)).num_samples % 8 == 0


@pytest.mark.timeout(60)  # what is refused here would go on for ever
@pytest.mark.parametrize(("batch", "refill"), [(0, False), (4, False), (4, True)])
def test_a_filter_that_keeps_nothing_without_end(home: Path, batch: int, *, refill: bool) -> None:
    """A rare sample is found all the same, though by the sizes of the sources it would have come long before."""
    lines, parquet = (sources_in(home)[name] for name in ("lines", "parquet"))
    nested = shoal.mix({"b": parquet, "c": lines}, weights={"b": 1, "c": 5}, ends="forever")
    ds = shoal.mix({"a": lines, "in": nested}, weights={"a": 5, "in": 1}, ends="forever").shuffle("full", seed=1)
    assert 45 * 36 <= ds.stream.resolved.request.round_at(0) <= 46 * 36  # type: ignore[attr-defined]

    def stream(function: Callable[[Any], bool]) -> Any:
        kept = ds.filter(function, refill=refill)
        return iter(kept.batch(batch) if batch else kept)

    with pytest.raises(UsageError, match=r"(?s)filter\(.*nothing\) dropped all of 4096 samples in a row.* without end"):
        next(stream(nothing))
    if not refill:
        first = next(stream(is_last_of_parquet))
        assert first["own"] in (44, [44])


def nothing(_: object) -> bool:
    return False


def is_last_of_parquet(sample: dict[str, Any]) -> bool:
    return sample["kind"] == "parquet" and bool(sample["own"] == 44)


def test_sources_that_come_once_in_an_age(home: Path) -> None:
    sources = {name: sources_in(home)[name] for name in ("lines", "mds")}
    weights = {"lines": 1e-12, "mds": 1}
    for choice in ("even", "random", PerBatch(2**24)):
        ds = shoal.mix(sources, weights=weights, choice=choice, ends="forever", max_repeats={"lines": 1e300})
        at = ds.exhausted_at()["lines"]
        assert at is None if isinstance(choice, PerBatch) else 80e12 < (at or 0) < 84e12
    assert shoal.mix(sources, weights=weights, max_repeats=np.float64(1)).num_samples == pytest.approx(200, abs=2)
    with pytest.raises(UsageError, match="too small to reach it"):
        shoal.mix(sources, weights=weights, choice=PerBatch(2**24), ends="all")


def test_unlucky_mixtures(home: Path) -> None:
    sources = sources_in(home)
    one = sources["lines"].select([5])
    ds = shoal.mix({"one": one, "mds": sources["mds"]}, weights=dict.fromkeys(("one", "mds"), 1), epoch_size=50)
    for epoch in (0, 10**6):
        kinds = np.bincount(ds.shuffle(seed=2**64 - 1).ids(epoch) // 83, minlength=4)
        assert kinds[0] in range(23, 28)
    rare = shoal.mix({"a": one, "b": sources["mds"]}, weights={"a": 1e-12, "b": 1}, seed=2**64 - 1).shuffle(seed=1)
    assert rare.num_samples in (199, 200, 201)
    assert rare.counts(10**15)["a"] == pytest.approx(1000, abs=2)
    at = rare.exhausted_at()["a"]
    assert at is not None
    assert rare.source_of([at - 1, 0]).tolist() == [0, 1]
    many = shoal.mix({f"s{number:03d}": sources["lines"].select([number % 83]) for number in range(300)})
    ids = many.shuffle(seed=1).ids()
    assert len(ids) == pytest.approx(300, abs=64)
    assert len({*(ids // 83).tolist()}) == len(ids)
    samples = list(many.shuffle(seed=1).take(20))
    assert [83 * int(sample["__source__"][1:]) + sample["own"] for sample in samples] == ids[:20].tolist()
    with pytest.raises(UsageError, match="none of"):
        shoal.mix({"a": sources["lines"].select([])})
    alone = shoal.mix({"lines": sources["lines"]}).shuffle(seed=1)
    assert sorted(alone.ids().tolist()) == list(range(83))
    nothing = shoal.mix({**sources, "none": one}, weights={**WEIGHTS, "none": 0})
    assert nothing.exhausted_at()["none"] is None
    assert len(SIZES) + 1 == len(nothing.sources)


def test_damaged_states_are_refused(home: Path) -> None:
    ds = mixed(home)
    with pytest.raises(StateError, match=r"positions below 2\*\*62"):
        ds.load_state_dict(ds.state_at(3, epoch=2**62))
    state = ds.state_at(5)
    for path, value in (
        (("changes",), 3),
        (("changes",), []),
        (("changes",), [[0, 0, {"tar": "x"}]]),
        (("changes",), [[0, "y", {}], [1, 2, {}]]),
        (("sources",), 3),
        (("sources",), {"tar": 3}),
        (("sources", "tar"), {"sources": {}}),
    ):
        order: dict[str, Any] = {**state["order"], "sources": {**state["order"]["sources"]}}
        inside = order
        for name in path[:-1]:
            inside = inside[name]
        inside[path[-1]] = value
        wrong = sealed({**{name: each for name, each in state.items() if name != "check"}, "order": order})
        with pytest.raises(StateError):
            mixed(home).load_state_dict(wrong)
    assert issubclass(StateError, ShoalError)
    assert is_odd({"own": 1})


def test_a_change_in_steps_is_at_their_position(two: Make) -> None:
    ds = two(weights=HALF, ends="forever").shuffle(seed=1)
    changed = ds.batch(global_batch_size=8).reweight(at=5, weights={"lines": 3, "parquet": 1}, ramp=2, in_steps=True)
    same = ds.reweight(at=40, weights={"lines": 3, "parquet": 1}, ramp=16)
    assert changed.source_of(range(300)).tolist() == same.source_of(range(300)).tolist()
    with pytest.raises(UsageError, match="counts batches"):
        ds.reweight(at=5, weights=HALF, in_steps=True)


def test_a_small_window_of_a_source_is_told_without_a_size(tmp_path: Path) -> None:
    """``window=`` is that of the whole mixture, so the size of one source's window would be wrong advice."""
    for name in ("a", "b"):
        lines = (json.dumps({"text": f"{name} {number} " * 90}) + "\n" for number in range(4000))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    ds = shoal.mix({name: shoal.open(tmp_path / f"{name}.jsonl") for name in ("a", "b")})
    with pytest.warns(ShuffleWarning, match="the 32 samples that 'a' has in a global batch") as caught:
        next(iter(ds.shuffle(seed=0, window="512KiB").batch(64)))
    assert "a larger window would do" in str(caught[0].message)
    assert 'window="' not in str(caught[0].message)


def test_batches_larger_than_the_data_are_not_predicted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": number}) + "\n" for number in range(1000)))
    endless = shoal.mix({"a": shoal.open(tmp_path / "a.jsonl")}, ends="forever").shuffle(seed=0)
    assert list(endless.quality(batch=100).vr) == [100, 200, 400]
    assert list(endless.quality(batch=900).vr) == [900]


def test_the_shares_of_weights_are_logged_and_a_slip_is_warned_of(two: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="shoal"):
        two(weights={"lines": 60, "parquet": 30})
    assert "the shares of a mixture are lines 0.6667, parquet 0.3333" in caplog.text
    with pytest.warns(ShuffleWarning, match=r"'parquet' has a share of 0\.00166, 0\.0832 samples in an epoch of 50"):
        two(weights={"lines": 60, "parquet": 0.1}, epoch_size=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        two(weights={"lines": 60, "parquet": 0.1}, ends="forever")
        two(weights={"lines": 60, "parquet": 0}, epoch_size=50)
