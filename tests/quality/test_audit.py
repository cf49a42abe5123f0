"""An audit finds what is wrong with an order, and nothing in perfect shuffles."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.measure import Audit, audit
from shoal.orders import Block, Buffer, Full, Window
from shoal.quality.curves import Keys, batch_sizes, variance_curve
from shoal.quality.metrics import distinct_per_batch, variance_ratio
from shoal.tools.auditing import epoch_tests
from shoal.tools.auditing.findings import FALSE_ALARMS, findings_of
from shoal.tools.auditing.statistical_tests import Outcome, poisson_tail, ratio_tail

DATA = Path(__file__).parent / "data"


def shuffled(num_samples: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(num_samples)


def emitted(name: str) -> dict[str, NDArray[np.int64]]:
    """What another loader emitted; data/make_ids.py made it."""
    with np.load(DATA / f"{name}.npz") as file:
        return {key: file[key].astype(np.int64) for key in file.files}


def found(result: Audit, *, serious: bool = True) -> set[str]:
    return {finding.name for finding in result.findings if finding.is_serious or not serious}


def text_of(result: Audit, name: str) -> str:
    return next(finding.text for finding in result.findings if finding.name == name)


# ---- no false alarms


@pytest.mark.parametrize(("num_audits", "most"), [(60, 0), pytest.param(300, 2, marks=pytest.mark.drill)])
def test_perfect_shuffles_raise_findings_in_less_than_one_percent(num_audits: int, most: int) -> None:
    """Of audits of all kinds: one and two epochs, labels, another stream, several sizes."""
    rng = np.random.default_rng(0)
    alarms = 0
    for number in range(num_audits):
        size = (500, 1000, 3000, 8192)[number % 4]
        epochs = np.stack([rng.permutation(size) for _ in range(1 + number % 2)])
        labels = rng.integers(0, (2, 10, 100)[number % 3], size) if number % 5 else None
        others = {"another seed": rng.permutation(size)} if number % 2 else None
        alarms += bool(audit(epochs, labels=labels, batch=(16, 32, 100)[number % 3], others=others).findings)
    assert alarms <= most


def test_looks_are_as_rare_as_they_say() -> None:
    """Of each kind of outcome, about 1 % have a probability below 1 %; bounds, which are not exact, fewer."""
    rng = np.random.default_rng(1)
    outcomes: dict[str, list[float]] = {}
    for _ in range(60):
        first, second = (epoch_tests.Epoch.of(rng.permutation(3000), 3000, None, 16) for _ in range(2))
        taken = [*first.outcomes(), *(outcome for _, outcome in epoch_tests.compared(first, second, ("a", "b")))]
        for outcome in taken:
            outcomes.setdefault(outcome.name, []).append(outcome.probability)
    assert len(outcomes) >= 9
    for name, probabilities in outcomes.items():
        rare = np.count_nonzero(np.array(probabilities) < 0.01)
        assert poisson_tail(int(rare), 0.01 * len(probabilities)) > 1e-4 or name == "same order", name


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.drill) for seed in (1, 2))])
def test_the_orders_of_shoal_that_are_permutations_are_perfect(seed: int) -> None:
    epochs = np.stack([Full().bind([1 << 14], seed=seed, epoch=epoch).ids(0, 1 << 14) for epoch in range(2)])
    other = Full().bind([1 << 14], seed=seed + 1, epoch=0).ids(0, 1 << 14)
    result = audit(epochs, others={"next seed": other})
    assert result.findings == ()
    assert "found none" in result.verdict


def test_more_looks_make_each_of_them_stricter() -> None:
    outcome = Outcome("echo", 1.0, 0.0, FALSE_ALARMS / 50, False, 0.1, "a")
    assert len(findings_of([("here", outcome)] * 10)) == 1
    assert findings_of([("here", outcome)] * 100) == []


# ---- known answers


def test_storage_order_is_found_by_everything() -> None:
    result = audit(np.arange(20_000))
    assert found(result) >= {"variance", "echo", "parity", "steps", "locality", "storage order", "runs", "displacement"}
    assert result.rank_correlation == pytest.approx(1.0)
    assert result.displacement == pytest.approx((0.0, 0.0, 0.0), abs=1e-4)
    assert result.vr[64] == pytest.approx(64, rel=0.01)
    assert result.effective_batch == pytest.approx(1, rel=0.01)
    assert result.start_distance == pytest.approx({0.01: 0.99, 0.05: 0.95, 0.1: 0.9, 0.5: 0.5}, abs=0.002)
    assert result.end_distance == pytest.approx({0.01: 0.99, 0.05: 0.95, 0.1: 0.9}, abs=0.002)
    assert "vary 64.0 times as much" in result.verdict


def test_a_perfect_shuffle_has_the_known_quantiles() -> None:
    result = audit(shuffled(100_000))
    # Of the difference of two even numbers: P(x > q) = (1 - q)^2 / 2.
    assert result.displacement == pytest.approx((-(1 - 0.02**0.5), 0.0, 1 - 0.02**0.5), abs=0.01)
    assert max(result.start_distance[0.5], result.end_distance[0.1]) < 0.02
    assert all(abs(ratio - 1) < 5 * result.vr_error[size] for size, ratio in result.vr.items())
    assert list(result.distinct) == [64, 128, 256, 512, 1024, 2048, 4096]
    assert result.distinct == pytest.approx(dict(result.expected_distinct), rel=0.01)


def test_a_window_varies_by_b_over_k() -> None:
    order = Window(chunks=128, num_canonical_nodes=1)
    epochs = np.stack([order.bind([64] * 2048, seed=0, epoch=epoch).ids(0, 1 << 17) for epoch in range(2)])
    result = audit(epochs, batch=16)
    assert result.vr[64] == result.near_vr == pytest.approx(1.0, abs=0.1)
    assert result.vr[1024] == pytest.approx(8.0, rel=0.15)
    assert found(result) == set()  # batches of 16 are perfect, and so are four of them
    assert "variance" in found(result, serious=False)
    assert "seldom matter" in result.verdict
    assert "variance" in found(audit(epochs, batch=64))  # batches of 64 are perfect, and four of them are not


def test_a_reservoir_does_not_move_samples_at_most_its_size() -> None:
    """The first misbelief: samples leave early by at most B places, but late by any number, exponentially rare."""
    slots, size = 1000, 200_000
    ids = Buffer(samples=slots).bind([size], seed=0).ids(0, size)
    later = np.arange(size) - ids
    assert later.min() == -(slots - 1)
    assert later.max() > 8 * slots
    steady = later[20 * slots : -20 * slots] + slots
    assert steady.mean() == pytest.approx(slots, rel=0.02)
    assert np.median(steady) == pytest.approx(slots * np.log(2), rel=0.03)
    assert np.mean(steady > 3 * slots) == pytest.approx(np.exp(-3), rel=0.1)


def test_a_reservoir_of_b_is_no_permutation_of_blocks_of_b() -> None:
    """The second misbelief: a reservoir mixes like blocks of twice its size."""
    shards, labels = [2000] * 40, np.repeat(np.arange(40), 2000)
    ratios = {}
    for name, order in (("buffer", Buffer(samples=2000)), ("block", Block(chunks=1))):
        epochs = [order.bind(shards, seed=0, epoch=epoch).ids(0, 80_000) for epoch in range(2)]
        ratios[name] = audit(np.stack(epochs), labels=labels, batch=64).vr[64]
    assert ratios["block"] == pytest.approx(64, rel=0.02)
    assert ratios["buffer"] < 0.6 * ratios["block"]


def test_every_permutation_of_blocks_is_local() -> None:
    ids = np.concatenate([begin + shuffled(256, seed) for seed, begin in enumerate(range(0, 1 << 15, 256))])
    assert found(audit(ids)) >= {"locality", "variance", "echo", "displacement"}


# ---- counts


def test_missing_repeated_and_unknown_samples_are_counted() -> None:
    ids = shuffled(5000)
    ids[[3, 700]] = ids[[4, 701]]
    lost = sorted(set(range(5000)) - set(ids.tolist()))
    result = audit(ids, num_samples=5000)
    assert (result.missing, result.repeated, result.unknown) == (2, 2, 0)
    assert text_of(result, "missing") == f"2 of 5,000 samples do not come: {lost[0]}, {lost[1]}"
    assert result.verdict.startswith("2 of 5,000 samples do not come")
    assert str(min(ids[3], ids[700])) in text_of(result, "repeated")
    assert audit(ids, num_samples=4000).unknown == np.count_nonzero(ids >= 4000)
    assert audit(ids, num_samples=5010).missing == 12


def test_counts_are_of_all_epochs() -> None:
    epochs = np.stack([shuffled(1000, seed) for seed in range(3)])
    epochs[1, 5] = epochs[1, 6]
    result = audit(epochs, num_samples=1000)
    assert (result.num_epochs, result.num_delivered) == (3, 3000)
    assert (result.missing, result.repeated) == (1, 1)


def test_the_part_of_a_rank_misses_nothing() -> None:
    result = audit(shuffled(40_000)[:10_000], num_samples=40_000, is_part=True)
    assert result.findings == ()
    assert result.missing == 30_000
    assert "none comes twice" in result.verdict


def test_few_samples_are_only_counted() -> None:
    result = audit([3, 1, 2, 0])
    assert (result.num_looks, result.findings) == (0, ())
    assert "too few samples" in result.verdict


# ---- between epochs and streams


def test_the_same_order_in_two_epochs_is_found() -> None:
    ids = shuffled(5000)
    assert "have the same order" in text_of(audit(np.stack([ids, ids])), "same order")
    assert "shifted by 7" in text_of(audit(np.stack([ids, np.roll(ids, 7)])), "same order")


def test_a_colliding_seed_is_found_in_whichever_epoch() -> None:
    first = np.stack([shuffled(3000, seed) for seed in (5, 6)])
    second = np.stack([shuffled(3000, seed) for seed in (6, 7)])
    result = audit(first, others={"seed 6": second})
    (where,) = [finding.where for finding in result.findings if finding.name == "same order"]
    assert where == "epoch 1 and seed 6, epoch 0"
    assert audit(first, others={"seed 9": np.stack([shuffled(3000, seed) for seed in (9, 10)]).ravel()}).findings == ()


def test_labels_that_come_in_one_order_are_found_where_samples_do_not() -> None:
    """Two mixes with different samples, whose sources take turns alike."""
    labels = np.arange(8000) // 4000
    source = np.random.default_rng(0).permutation(np.repeat([0, 1], 1500))
    streams = []
    for seed in (1, 2):
        ids = np.empty(3000, dtype=np.int64)
        for kind in (0, 1):
            ids[source == kind] = shuffled(4000, 10 * seed + kind)[:1500] + 4000 * kind
        streams.append(ids)
    result = audit(streams[0], labels=labels, num_samples=8000, is_part=True, others={"seed 2": streams[1]})
    assert "in step" in found(result)


def test_neighbours_that_stay_together_are_found() -> None:
    groups = np.arange(8192).reshape(-1, 16)
    epochs = [np.concatenate([groups[i][shuffled(16, i)] for i in shuffled(512, seed)]) for seed in range(2)]
    result = audit(np.stack(epochs), batch=16)
    assert "neighbours met again" in found(result)
    assert result.remet == 1.0
    fair = audit(np.stack([shuffled(8192, seed) for seed in range(2)]), batch=16)
    assert fair.expected_remet == pytest.approx(15 / 8191)
    assert fair.remet == pytest.approx(fair.expected_remet, rel=0.3)


# ---- what shipped loaders do


@pytest.mark.parametrize(
    ("stream", "arguments", "expected"),
    [
        ("grain/seed5", {}, {"echo", "parity"}),
        ("levanter/ids", {"batch": 256}, {"echo", "parity", "steps"}),
        ("streaming/py1br", {}, {"storage order", "runs", "start and end"}),
        ("litdata/ids", {}, {"variance", "locality", "echo"}),
        ("datasets/passes", {}, {"same order", "variance", "start and end"}),
        ("webdataset/epochs", {}, {"in step", "variance"}),
    ],
)
def test_defects_of_shipped_loaders_are_found(stream: str, arguments: Any, expected: set[str]) -> None:
    name, _, key = stream.partition("/")
    result = audit(emitted(name)[key], **arguments)
    assert result.missing == result.repeated == 0
    assert found(result) >= expected


def test_the_numbers_of_shipped_loaders() -> None:
    grain = audit(emitted("grain")["seed5"])
    assert max(abs(f.measured) for f in grain.findings if f.name == "echo") > 0.15
    assert "even and odd ids take turns in 0.4% of all steps" in text_of(audit(emitted("levanter")["ids"]), "parity")
    tail = audit(emitted("streaming")["py1br"])
    assert "longest span in storage order has 1,000 samples, from position 30,000" in text_of(tail, "storage order")
    assert audit(emitted("litdata")["ids"]).distinct[64] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "first", "second", "num_samples"),
    [
        ("grain", "seed5", "seed6", 1 << 15),
        ("streaming_naive", "seed7", "seed8", 32_000),
        ("streaming_mix", "first", "second", 8000),
        ("datasets", "mix_seed1", "mix_seed2", 20_000),
    ],
)
def test_seed_collisions_of_shipped_loaders_are_found(name: str, first: str, second: str, num_samples: int) -> None:
    streams = emitted(name)
    result = audit(
        streams[first],
        num_samples=num_samples,
        is_part=num_samples > len(streams[first]),
        others={second: streams[second]},
    )
    assert {"same order", "in step"} <= found(result)


# ---- what is handed over


def test_ids_come_as_any_loader_gives_them() -> None:
    ids = shuffled(1000)
    expected = audit(ids).to_dict()
    batches = [ids[begin : begin + 30] for begin in range(0, 1000, 30)]
    for given in (
        ids.tolist(),
        iter(ids.tolist()),
        batches,
        iter(batches),
        ids.astype(np.uint16),
        ids.astype(np.int32),
    ):
        assert audit(given).to_dict() == expected
    two = audit(np.concatenate([ids, shuffled(1000, 1)]), epochs=2)
    assert two.to_dict() == audit(np.stack([ids, shuffled(1000, 1)])).to_dict()


def test_numbers_as_labels_are_averaged() -> None:
    values = np.sort(np.random.default_rng(0).standard_normal(4000))
    ids = np.arange(4000)
    assert audit(ids, labels=values).vr[64] > 50
    assert audit(shuffled(4000), labels=values).vr[64] == pytest.approx(1, abs=0.5)


def test_a_result_is_json_and_words() -> None:
    result = audit(np.arange(1000))
    record = json.loads(json.dumps(result.to_dict()))
    assert {"num_samples", "missing", "repeated", "vr", "findings"} <= set(record)
    assert record["vr"]["64"] == result.vr[64]
    assert str(result).splitlines()[:2] == [result.headline, result.verdict]
    assert len(str(result).splitlines()) == 2 + len(result.findings)
    assert {"grade", "headline"} <= set(record)
    assert all({"weight", "cause", "cure"} <= set(finding) for finding in record["findings"])


@pytest.mark.parametrize("structured", [False, True])
def test_long_epochs_are_looked_at_in_spans(structured: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(epoch_tests, "_MOST_TESTED", 1 << 14)
    ids = shuffled(1 << 17) if not structured else Block(chunks=4).bind([64] * 2048, seed=1).ids(0, 1 << 17)
    np.save(tmp_path / "ids.npy", ids)
    result = audit(np.load(tmp_path / "ids.npy", mmap_mode="r"), labels=np.arange(1 << 17) // 1000)
    assert (result.num_delivered, result.missing, result.repeated) == (1 << 17, 0, 0)
    assert (found(result) >= {"variance", "locality"}) if structured else (result.findings == ())


@pytest.mark.parametrize(
    ("ids", "arguments", "message"),
    [
        ([], {}, "at least one"),
        ([0.5, 1.0], {}, "integers; got float64"),
        (np.arange(10), {"epochs": 3}, "cannot be cut into 3 epochs"),
        (np.arange(10).reshape(2, 5), {"epochs": 3}, "2 epochs were given, but epochs=3"),
        (np.arange(10), {"labels": [1, 2]}, r"each of 10 samples by id; got shape \(2,\)"),
        (np.arange(10), {"labels": [1] * 10}, "all 10 labels are equal"),
        (np.arange(10), {"batch": 0}, "batch=0"),
        (np.arange(10) + 10**12, {}, "ids go up to 1,000,000,000,009, but there are 10 of them"),
    ],
)
def test_what_cannot_be_audited_is_refused(ids: Any, arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        audit(ids, **arguments)


@pytest.mark.parametrize(
    "ids",
    [
        np.full(500, 7),
        np.tile([0, 1], 300),
        np.repeat(np.arange(200), 4),
        np.random.default_rng(0).integers(-5, 500, 500),
        shuffled(900) * 37,
    ],
    ids=["one sample", "two", "four times each", "unknown ones", "far between"],
)
@pytest.mark.parametrize("epochs", [1, 2])
def test_odd_ids_are_audited_all_the_same(ids: NDArray[np.int64], epochs: int) -> None:
    result = audit(ids, epochs=epochs, others={"another": ids[::-1]})
    assert json.loads(json.dumps(result.to_dict()))["num_delivered"] == len(ids)
    assert result.missing + (result.num_delivered - result.repeated - result.unknown) == epochs * result.num_samples
    assert result.verdict


# ---- the parts


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_curves_are_the_ratios_one_by_one(kind: str) -> None:
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(0, 20, 5000))[np.argsort(np.arange(5000) + rng.uniform(0, 500, 5000))]
    if kind == "labels":
        shares = np.bincount(labels) / 5000
        keys = Keys(labels, shares, 1 - float(shares @ shares))
    else:
        numbers = labels + 0.5
        keys = Keys(numbers - numbers.mean(), None, float(numbers.var()))
    curve = variance_curve(keys, batch_sizes(30, 5000))
    assert curve.sizes.tolist() == [30, 60, 120, 240, 480, 960, 1920]
    for size, ratio, distinct in zip(curve.sizes.tolist(), curve.ratios, curve.distinct, strict=True):
        assert ratio == pytest.approx(variance_ratio(labels if kind == "labels" else labels + 0.5, size), rel=1e-9)
        if kind == "labels":
            assert distinct == pytest.approx(distinct_per_batch(labels, size))


def test_the_freedom_of_a_curve_is_that_of_perfect_shuffles() -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat([0, 1, 2, 3], [1200, 500, 200, 100])
    shares = np.bincount(labels) / 2000
    ratios = []
    for _ in range(800):
        curve = variance_curve(Keys(rng.permutation(labels), shares, 1 - float(shares @ shares)), [8, 64, 500])
        ratios.append(curve.ratios)
    assert np.mean(ratios, axis=0) == pytest.approx([1, 1, 1], abs=0.1)
    assert np.std(ratios, axis=0) == pytest.approx(np.sqrt(2 / curve.freedom), rel=0.15)


def test_tails_are_those_of_their_distributions() -> None:
    rng = np.random.default_rng(3)
    counts = rng.poisson(4.0, 200_000)
    assert poisson_tail(9, 4.0) == pytest.approx(np.mean(counts >= 9), rel=0.1)
    assert poisson_tail(2_001_000, 2e6) == pytest.approx(0.24, abs=0.01)
    squares = rng.chisquare(12, 200_000) / 12
    for ratio in (0.25, 2.2):
        both = 2 * min(np.mean(squares <= ratio), np.mean(squares >= ratio))
        assert ratio_tail(ratio, 12) == pytest.approx(both, rel=0.15)


@pytest.mark.drill
def test_the_table_of_the_guide_is_what_the_audits_say() -> None:
    guide = Path(__file__).parent.parent.parent / "docs" / "guides" / "how-good-is-my-shuffle.md"
    made = runpy.run_path(str(DATA / "table.py"))["table"]()
    assert made in guide.read_text(encoding="utf-8"), "python tests/quality/data/table.py"
