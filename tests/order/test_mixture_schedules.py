"""The source of every position: choices, changes and ramps as a pure function; a change moves nothing before it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples import few_examples
from tests.order.mixtures import CHOICES, NAMES, schedules, weights_of

from shoal.errors import UsageError
from shoal.order.mixture.integer_weights import integer_weights
from shoal.order.mixture.source_choice import Even, PerBatch, PerRank, Random
from shoal.order.mixture.source_schedule import Change, SourceSchedule

END = 5000


@few_examples(20)
@given(schedules(), st.integers(0, END), st.integers(0, 700))
def test_counts_are_those_of_the_sources_before(schedule: SourceSchedule, start: int, length: int) -> None:
    whole = schedule.sources(0, END + 700)
    assert np.array_equal(schedule.sources(start, start + length), whole[start : start + length])
    assert schedule.counts(start).tolist() == np.bincount(whole[:start], minlength=len(schedule.names)).tolist()


@few_examples(20)
@given(schedules(), st.integers(0, 7), st.integers(0, 600))
def test_positions_of_samples_are_found(schedule: SourceSchedule, source: int, number: int) -> None:
    source %= len(schedule.names)
    places = np.flatnonzero(schedule.sources(0, END) == source)
    found = schedule.position_of(source, number)
    if number < len(places):
        assert found == places[number]
    else:
        assert found is None or found >= END
        assert found is not None or not schedule.weights_at(10**9)[schedule.names[source]]


@few_examples(20)
@given(schedules(), st.data())
def test_a_later_change_leaves_everything_before_it_alone(schedule: SourceSchedule, data: st.DataObject) -> None:
    last = schedule.changes[-1].at
    at = data.draw(st.integers(last + 1, last + 4000))
    ramp = data.draw(st.sampled_from([0, 1, 700]))
    change = Change(at, data.draw(weights_of(schedule.names)), ramp)
    changed = SourceSchedule(schedule.names, [*schedule.changes, change], schedule.choice, seed=schedule.seed)
    assert np.array_equal(schedule.sources(0, at), changed.sources(0, at))
    after = changed.sources(at + ramp, at + ramp + 300)
    assert all(change.weights[schedule.names[source]] for source in np.unique(after).tolist())


@few_examples(10)
@given(schedules(), st.data())
def test_the_first_position_of_a_condition_is_found(schedule: SourceSchedule, data: st.DataObject) -> None:
    sizes = np.array([data.draw(st.integers(1, 300)) for _ in schedule.names])
    repeats = [schedule.position_of(source, size) for source, size in enumerate(sizes.tolist())]
    ends = [schedule.position_of(source, size - 1) for source, size in enumerate(sizes.tolist())]
    known = [at for at in repeats if at is not None]
    assert schedule.first_position(lambda counts: (counts > sizes).any()) == (min(known) + 1 if known else None)
    last = None if None in ends else max(at for at in ends if at is not None) + 1
    assert schedule.first_position(lambda counts: (counts >= sizes).all()) == last


@few_examples(20)
@given(schedules(), st.integers(0, END), st.integers(0, 60))
def test_expected_counts_are_sums_of_shares(schedule: SourceSchedule, start: int, length: int) -> None:
    shares = np.zeros(len(schedule.names))
    for position in range(start, start + length):
        weights = np.array(list(schedule.weights_at(position).values()), dtype=float)
        shares += weights / weights.sum()
    assert np.allclose(schedule.expected(start, start + length), shares)


@few_examples(20)
@given(schedules(), st.randoms())
def test_the_order_of_names_is_irrelevant(schedule: SourceSchedule, random: Any) -> None:
    names = list(schedule.names)
    random.shuffle(names)
    other = SourceSchedule(names, schedule.changes, schedule.choice, seed=schedule.seed)
    ours, theirs = schedule.sources(0, 3000), other.sources(0, 3000)
    assert np.array_equal(np.array(schedule.names)[ours], np.array(names)[theirs])
    assert dict(zip(names, other.counts(2345), strict=True)) == dict(
        zip(schedule.names, schedule.counts(2345), strict=True)
    )
    assert schedule.weights_at(777) == other.weights_at(777)


@few_examples(20)
@given(schedules(), st.sampled_from(["a", "s00b", "z"]))
def test_a_source_without_weight_changes_nothing(schedule: SourceSchedule, name: str) -> None:
    names = (*schedule.names, name)
    other = SourceSchedule(names, schedule.changes, schedule.choice, seed=schedule.seed)
    assert np.array_equal(schedule.sources(0, 4000), other.sources(0, 4000))


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.name)
def test_counts_stay_close_to_the_weights(choice: Any) -> None:
    weights = dict(zip(NAMES, [900, 50, 30, 10, 5, 3, 1, 1], strict=False))
    schedule = SourceSchedule(NAMES[:8], [Change(0, weights)], choice, seed=3)
    shares = np.array(list(weights.values())) / 1000
    sources = schedule.sources(0, 200 * 64 * choice.run if choice.block == 64 else 4 * choice.block)
    block = choice.block * choice.run
    counts = np.cumsum(np.eye(8, dtype=np.int64)[sources], axis=0)[block - 1 :: block]
    expected = shares * block * np.arange(1, len(counts) + 1)[:, None]
    assert np.abs(counts - expected).max() < 1.1 * choice.run
    if choice.run > 1:
        assert all(len(np.unique(run)) == 1 for run in sources.reshape(-1, choice.run))


def test_even_positions_are_off_by_a_few_at_most_and_random_ones_by_chance() -> None:
    weights = dict.fromkeys(NAMES[:4], 1)
    off = {}
    for choice in (Even(), Random()):
        sources = SourceSchedule(NAMES[:4], [Change(0, weights)], choice, seed=1).sources(0, 1 << 17)
        off[choice.name] = np.abs(np.cumsum(sources == 0) - np.arange(1, len(sources) + 1) / 4).max()
        batches = (sources == 0).reshape(-1, 512).sum(axis=1)
        off[f"{choice.name} batches"] = batches.std()
    assert off["even"] < 12  # within a block
    assert off["even batches"] < 1
    assert 8 < off["random batches"] < 11  # a binomial has 9.8
    assert off["random"] < 400


def test_ranks_that_take_every_eighth_position_get_all_sources() -> None:
    schedule = SourceSchedule(NAMES[:8], [Change(0, dict.fromkeys(NAMES[:8], 1))], Even(), seed=5)
    sources = schedule.sources(0, 8 * 8000)
    for rank in range(8):
        assert np.abs(np.bincount(sources[rank::8], minlength=8) / 1000 - 1).max() < 0.12


def test_ramps_go_from_one_mixture_to_the_other() -> None:
    changes = [Change(0, {"a": 1, "b": 0}), Change(10_000, {"a": 0, "b": 1}, ramp=64_000)]
    schedule = SourceSchedule(["a", "b"], changes, Even())
    sources = schedule.sources(0, 84_000)
    assert not sources[:10_000].any()
    assert sources[74_000:].all()
    parts = sources[10_000:74_000].reshape(10, -1).mean(axis=1)
    assert np.allclose(parts, np.arange(0.05, 1, 0.1), atol=0.005)
    assert schedule.weights_at(42_000)["a"] == pytest.approx(schedule.weights_at(42_000)["b"], rel=0.02)
    # A change within the ramp cuts it, and what came before it stays.
    cut = SourceSchedule(["a", "b"], [*changes, Change(42_000, {"a": 3, "b": 1})], Even())
    assert np.array_equal(cut.sources(0, 42_000), sources[:42_000])
    assert cut.sources(42_000, 84_000).mean() == pytest.approx(0.25, abs=0.001)


@pytest.mark.parametrize("ramp", [1000, 6400, 16_384, 20_000])
def test_counts_stay_close_to_the_weights_of_a_ramp(ramp: int) -> None:
    """Where every step rounded anew, a source of 0.5 % got none of its 82 samples in a ramp of 16,384."""
    changes = [Change(0, {"a": 800, "b": 195, "rare": 5}), Change(6400, {"a": 195, "b": 800, "rare": 5}, ramp)]
    schedule = SourceSchedule(["a", "b", "rare"], changes, Even())
    off = _off(schedule, 6400, 6400 + ramp)
    assert np.abs(off[63::64][: ramp // 64 - 1]).max() < 2
    assert np.abs(off).max() < 10  # within a block


@pytest.mark.parametrize("ramp", [64, 100, 160, 20_000])
def test_a_ramp_is_linear_on_average_whatever_its_steps(ramp: int) -> None:
    schedule = SourceSchedule(["a", "b"], [Change(0, {"a": 1}), Change(64, {"b": 1}, ramp)], Even())
    weights = [schedule.weights_at(position) for position in range(64, 64 + ramp)]
    assert sum(each["b"] / sum(each.values()) for each in weights) == pytest.approx(ramp / 2)


@pytest.mark.parametrize("every", [100, pytest.param(64, marks=pytest.mark.drill)])
def test_counts_stay_close_to_the_weights_over_many_changes(every: int) -> None:
    changes = [Change(every * each, {"a": 800 - each, "b": 196 + each, "rare": 4}) for each in range(200)]
    schedule = SourceSchedule(["a", "b", "rare"], changes, Even())
    at_changes = _off(schedule, 0, 200 * every)[every - 1 :: every]
    assert np.abs(at_changes).max() < (20 if every % 64 else 2)  # blocks that changes cut stray


def _off(schedule: SourceSchedule, start: int, end: int) -> NDArray[np.float64]:
    """Return the counts after each position, less the sums of weights; shape (positions, sources)."""
    weights = np.array([list(schedule.weights_at(position).values()) for position in range(start, end)])
    counts = np.cumsum(np.eye(len(schedule.names))[schedule.sources(start, end)], axis=0)
    off: NDArray[np.float64] = counts - np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=0)
    return off


@pytest.mark.parametrize("at", [[1], [0, -1]])
def test_the_first_weights_hold_from_position_0(at: list[int]) -> None:
    with pytest.raises(UsageError, match="beginning at 0"):
        SourceSchedule(["a"], [Change(each, {"a": 1}) for each in at], Even())


def test_sizes_of_batches_and_numbers_of_sources_have_limits() -> None:
    for kind in (PerBatch, PerRank):
        for samples in (0, -1, 2**31):
            with pytest.raises(UsageError, match="from 1 to"):
                kind(samples)
        with pytest.raises(UsageError, match="must be an integer"):
            kind(1.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="1 to 65536 sources"):
        SourceSchedule([], [Change(0, {})], Even())
    names = [str(number) for number in range(1 << 16)]
    counts = SourceSchedule(names, [Change(0, dict.fromkeys(names, 1))], Even()).counts(1 << 16)
    assert counts.tolist() == [1] * (1 << 16)


def test_far_positions_are_found_at_once() -> None:
    weights = {"a": 1, "b": 2**40 - 1}
    schedule = SourceSchedule(["a", "b"], [Change(0, weights)], Even(), seed=2**64 - 1)
    for position in (10**15, 2**61):
        counts = schedule.counts(position)
        assert counts.sum() == position
        assert abs(int(counts[0]) - position / 2**40) <= 2
        assert schedule.position_of(0, int(counts[0])) >= position  # type: ignore[operator]
        assert np.array_equal(
            schedule.sources(position, position + 9), schedule.sources(position - 50, position + 9)[50:]
        )


def test_sources_are_those_of_every_release() -> None:
    found = hashlib.sha256()
    changes = [
        Change(0, {"web": 70, "code": 20, "books": 10}),
        Change(1000, {"web": 1, "code": 1, "books": 0}, ramp=900),
        Change(5000, {"web": 0, "code": 3, "books": 5}),
    ]
    for choice in CHOICES:
        for seed in (0, 1, 2**64 - 1):
            schedule = SourceSchedule(["web", "code", "books"], changes, choice, seed=seed)
            found.update(schedule.sources(0, 8000).astype("<i8").tobytes())
            found.update(schedule.sources(10**14, 10**14 + 500).astype("<i8").tobytes())
    assert found.hexdigest()[:16] == "655c213668d9c542"


@few_examples(20)
@given(st.lists(st.integers(0, 900), min_size=1, max_size=6).filter(any), st.integers(0, 2000), st.integers(0, 500))
def test_epochs_with_counts_have_exactly_these(chosen: list[int], start: int, length: int) -> None:
    names, size = [f"source {number}" for number in range(len(chosen))], sum(chosen)
    weights = integer_weights(dict(zip(names, chosen, strict=True)))
    schedule = SourceSchedule(names, [Change(0, weights)], Even(), seed=3, epoch=size)
    whole = schedule.sources(0, max(3 * size, 2500))
    for epoch in range(3):
        epoch_counts = np.bincount(whole[epoch * size : (epoch + 1) * size], minlength=len(names))
        assert epoch_counts.tolist() == chosen
        assert schedule.counts((epoch + 1) * size).tolist() == [(epoch + 1) * count for count in chosen]
    assert np.array_equal(schedule.sources(start, start + length), whole[start : start + length])
    assert schedule.counts(start).tolist() == np.bincount(whole[:start], minlength=len(names)).tolist()
    most = int(np.argmax(chosen))
    places = np.flatnonzero(whole == most)
    assert [schedule.position_of(most, number) for number in range(0, 40, 7)] == places[:40:7].tolist()
