"""Weights that change while documents are packed: sequences follow the schedule, and those before a change stay."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import StateError, UsageError
from shoal.mixing import MixedDataset
from shoal.order.mixture.source_schedule import Change
from shoal.order.state_dict import sealed
from shoal.reading.mixture.mix_request import MixRequest
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore:a window of")

SIZES = {"a": 1500, "b": 1500, "c": 300}
FIRST = {"a": 0, "b": 10_000, "c": 20_000}
LENGTH, EPOCH = 64, 1600
STRATEGIES = st.sampled_from(["concat", "first_fit", "best_fit"])
MANY, FEW = {"a": 0.9, "b": 0.1}, {"a": 0.1, "b": 0.9}


def tokens_of(document: int) -> list[int]:
    size = 1 + document * 7919 % 90
    return [document * 100 + place for place in range(size)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    home = tmp_path_factory.mktemp("sources")
    for name, size in SIZES.items():
        documents = (tokens_of(number) for number in range(FIRST[name], FIRST[name] + size))
        samples = ({"tokens": np.array(each, dtype=np.int32), "num_tokens": len(each)} for each in documents)
        shoal.pack.pack(samples, home / name, format="mds", columns=["num_tokens"])
    return {name: shoal.open(home / name) for name in SIZES}


def mixed(sources: dict[str, Dataset], **how: Any) -> MixedDataset:
    two = {name: sources[name] for name in ("a", "b")}
    return shoal.mix(two, **{"weights": MANY, "epoch_size": EPOCH, "seed": 2, **how}).shuffle(seed=1)


def packed(
    sources: dict[str, Dataset], strategy: str = "best_fit", *, epoch_size: int = EPOCH, **how: Any
) -> MixedDataset:
    return mixed(sources, epoch_size=epoch_size).pack_sequences(LENGTH, strategy=strategy, **how)


def sequences_of(dataset: Iterable[Any]) -> list[list[int]]:
    return [sequence["tokens"][sequence["segment_ids"] > 0].tolist() for sequence in dataset]


def changes_of(dataset: Dataset) -> tuple[Change, ...]:
    request = dataset.stream.spec.request
    assert isinstance(request, MixRequest)
    return request.changes


def share_of_b(sequences: list[list[int]]) -> float:
    tokens = list(itertools.chain(*sequences))
    return sum(FIRST["b"] <= token // 100 < FIRST["c"] for token in tokens) / len(tokens)


def eighths(sequences: list[list[int]]) -> list[float]:
    borders = [len(sequences) * number // 8 for number in range(9)]
    return [share_of_b(sequences[begin:end]) for begin, end in itertools.pairwise(borders)]


def test_a_schedule_of_documents_is_that_of_sequences(sources: dict[str, Dataset]) -> None:
    """A block of 65,536 documents would mix all of these epochs, and show no schedule."""
    changed = mixed(sources).reweight(at=EPOCH // 2, weights=FEW)
    shares = eighths(sequences_of(changed.pack_sequences(LENGTH, strategy="best_fit")))
    assert max(shares[:4]) < 0.2
    assert min(shares[4:]) > 0.8
    ramped = mixed(sources).reweight(at=EPOCH // 4, ramp=EPOCH // 2, weights=FEW)
    shares = eighths(sequences_of(ramped.pack_sequences(LENGTH)))
    assert np.allclose(shares, [0.1, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.9], atol=0.07)


def test_no_sequence_holds_documents_from_both_sides_of_a_change(sources: dict[str, Dataset]) -> None:
    changed = mixed(sources).reweight(at=700, weights=FEW)
    first = set(changed.ids(0, 0, 700).tolist())
    order: Any = changed.pack_sequences(LENGTH).stream.resolved.untouched(0)
    pieces = order.pieces(np.arange(order.num_samples))
    before = [{*pieces.ids[low:high].tolist()} <= first for low, high in itertools.pairwise(pieces.first.tolist())]
    assert before == sorted(before, reverse=True)
    assert 0 < sum(before) < len(before)


@settings(max_examples=15)
@given(
    strategy=STRATEGIES,
    at=st.integers(1, 200),
    ramp=st.sampled_from([0, 0, 30]),
    block=st.sampled_from([50, 1 << 16]),
    stop=st.integers(0, 200),
)
def test_sequences_before_a_change_stay_and_every_document_comes_once(
    sources: dict[str, Dataset], strategy: str, at: int, ramp: int, block: int, stop: int
) -> None:
    plain = packed(sources, strategy, epoch_size=320, block=block)

    def reweighted() -> MixedDataset:
        changed = packed(sources, strategy, epoch_size=320, block=block).reweight(at=at, ramp=ramp, weights=FEW)
        return changed.reweight(at=at + 40, weights={"a": 1, "b": 1})

    changed = reweighted()
    before, after = sequences_of(plain), sequences_of(changed)
    assert before[:at] == after[:at]
    tokens = Counter(itertools.chain(*after))
    assert tokens == Counter(token for document in {token // 100 for token in tokens} for token in tokens_of(document))
    again = reweighted()
    stop = min(stop, len(after) - 1)
    again.load_state_dict(json.loads(json.dumps(changed.state_at(stop))))
    assert sequences_of(again) == after[stop:]


def test_a_change_in_a_run_takes_effect_with_the_next_sequence(sources: dict[str, Dataset]) -> None:
    running = packed(sources).batch(8)
    steps = iter(running)
    first = [batch["tokens"].tolist() for batch in itertools.islice(steps, 13)]
    state = json.loads(json.dumps(running.state_dict()))
    changed = running.reweight(at=state["position"], epoch=state["epoch"], weights={"a": 0, "b": 1})
    changed.load_state_dict(state)
    rest = list(changed)
    tokens = np.concatenate([batch["tokens"][batch["segment_ids"] > 0] for batch in rest])
    cut = {token // 100 for batch in first for row in batch for token in row}  # whose rests come now
    assert {document for document in (tokens // 100).tolist() if document < FIRST["b"]} <= cut
    whole = packed(sources).batch(8).reweight(at=104, weights={"a": 0, "b": 1})
    assert [batch["tokens"].tolist() for batch in whole] == first + [batch["tokens"].tolist() for batch in rest]


def test_a_state_brings_changes_along(sources: dict[str, Dataset]) -> None:
    changed = packed(sources).reweight(at=50, ramp=30, weights=FEW).reweight(at=400, weights=MANY)
    for position in (10, 60, 500):
        resumed = packed(sources)
        resumed.load_state_dict(json.loads(json.dumps(changed.state_at(position))))
        assert sequences_of(resumed) == sequences_of(changed)[position:]
        changed.set_epoch(0)
    before = packed(sources).state_at(50)
    changed.load_state_dict(before)
    with pytest.raises(StateError, match="the weights before sequence 51 of epoch 0 differ"):
        changed.load_state_dict(packed(sources).state_at(51))
    many = packed(sources)
    for at in range(1, 40):
        many = many.reweight(at=at * 10, weights={"a": at, "b": 100 + at})
    state = many.state_at(300)
    assert len(json.dumps(state)) < 2000
    many.load_state_dict(state)
    with pytest.raises(StateError, match="the weights before sequence 300 of epoch 0 differ"):
        packed(sources).load_state_dict(state)


@pytest.mark.parametrize(
    "changes", [5, [[0, 5]], [[0, -5, 0, {"a": 1}]], [[0, 5, 0, {"a": 0}]], [[0, 5, 0, {"a": "x"}]], [[0, 5, 7, 7]]]
)
def test_a_forged_list_of_changes_is_refused(sources: dict[str, Dataset], changes: Any) -> None:
    state = packed(sources).state_at(50)
    order = {**state["order"], "packed": {**state["order"]["packed"], "changes": changes}}
    with pytest.raises(StateError, match="changes"):
        packed(sources).load_state_dict(sealed({**{k: v for k, v in state.items() if k != "check"}, "order": order}))


def test_later_epochs_go_on_at_the_weights(sources: dict[str, Dataset]) -> None:
    num_sequences = packed(sources).num_samples
    changed = packed(sources).reweight(at=num_sequences + 100, weights=FEW)
    epochs = [sequences_of(changed) for _ in range(3)]
    plain = packed(sources)
    assert epochs[0] == sequences_of(plain)
    assert epochs[1][:100] == sequences_of(plain)[:100]
    assert share_of_b(epochs[1][100:]) > 0.8
    assert share_of_b(epochs[2]) > 0.8
    same = packed(sources).reweight(at=100, epoch=1, weights=FEW)
    same.set_epoch(1)
    assert sequences_of(same) == epochs[1]
    used = Counter(token // 100 for epoch in epochs[:2] for token in {t // 100 * 100 for s in epoch for t in s})
    assert {document for document, times in used.items() if times > 1 and document >= FIRST["b"]} == set()


def test_a_source_is_added_in_a_run(sources: dict[str, Dataset]) -> None:
    running = packed(sources)
    first = sequences_of(itertools.islice(running, 70))
    state = running.state_dict()
    thirds = {"a": 1, "b": 1, "c": 1}
    changed = running.reweight(at=70, add={"c": sources["c"]}, weights=thirds)
    changed.load_state_dict(state)
    rest = sequences_of(changed)
    whole = packed(sources).reweight(at=70, add={"c": sources["c"]}, weights=thirds)
    assert first + rest == sequences_of(whole)
    assert sum(token // 100 >= FIRST["c"] for sequence in rest[:200] for token in sequence) > 1000


def test_groups_of_documents_that_are_packed_as_they_come_end_at_a_change(sources: dict[str, Dataset]) -> None:
    changed = mixed(sources).reweight(at=EPOCH // 2, weights=FEW).pack_sequences(LENGTH, lengths=None)
    ranks = [changed.batch(2, steps="apart").partition(rank=rank, world_size=2) for rank in range(2)]
    for rank in ranks:
        found = [batch["tokens"][batch["segment_ids"] > 0].tolist() for batch in rank]
        shares = eighths(found)
        assert max(shares[:3]) < 0.2
        assert min(shares[5:]) > 0.8
    first = ranks[0]
    first.set_epoch(0)
    wanted = [batch["tokens"].tolist() for batch in first]
    first.set_epoch(0)
    begun = [batch["tokens"].tolist() for batch in itertools.islice(first, len(wanted) // 2)]
    again = changed.batch(2, steps="apart").partition(rank=0, world_size=2)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun + [batch["tokens"].tolist() for batch in again] == wanted


def test_steps_and_tokens_say_where_as_well(sources: dict[str, Dataset]) -> None:
    batched = packed(sources).batch(4)
    expected = [b["tokens"].tolist() for b in batched.reweight(at=100, ramp=40, weights=FEW)]
    given: list[Any] = [{"at": 25, "ramp": 10, "in_steps": True}, {"at": 6400, "ramp": 2560, "in_tokens": True}]
    for how in given:
        assert [b["tokens"].tolist() for b in batched.reweight(weights=FEW, **how)] == expected
    in_tokens = mixed(sources, unit="tokens", length="num_tokens").reweight(at=30_000, in_tokens=True, weights=FEW)
    at = changes_of(in_tokens)[1].at
    lengths = np.concatenate([sources[name].index_column("num_tokens") for name in ("a", "b")])
    assert abs(int(lengths[in_tokens.ids(0, 0, at)].sum()) - 30_000) < 600
    ramped = mixed(sources, unit="tokens", length="num_tokens")
    ramped = ramped.reweight(at=20_000, ramp=20_000, in_tokens=True, weights=FEW)
    change = changes_of(ramped)[1]
    assert abs(int(lengths[ramped.ids(0, change.at, change.at + change.ramp)].sum()) - 20_000) < 600


def test_ranks_and_batches_by_length_follow_as_well(sources: dict[str, Dataset]) -> None:
    changed = packed(sources).reweight(at=99, weights=FEW)
    ranks = [changed.batch(3).partition(rank=rank, world_size=2) for rank in range(2)]
    found = Counter(tuple(row) for rank in ranks for batch in rank for row in batch["tokens"].tolist())
    assert found == Counter(tuple(sequence["tokens"].tolist()) for sequence in changed)
    by_length = mixed(sources).batch_by_length(16)
    before = [batch["tokens"].tolist() for batch in by_length]
    after = [batch["tokens"].tolist() for batch in by_length.reweight(at=21, weights={"a": 0, "b": 1})]
    assert before[:21] == after[:21]
    assert all(token // 100 >= FIRST["b"] for batch in after[21:] for row in batch for token in row if token)


def test_what_cannot_change_is_refused(sources: dict[str, Dataset], tmp_path: Path) -> None:
    ds = packed(sources)
    refused: list[tuple[str, Any]] = [
        ("does not come after the change at 0", lambda: ds.reweight(at=0, weights=FEW)),
        ("does not come after the change at 9", lambda: ds.reweight(at=9, weights=FEW).reweight(at=8, weights=FEW)),
        ("counts batches, and this dataset has no batches", lambda: ds.reweight(at=9, in_steps=True, weights=FEW)),
        ("steps or tokens", lambda: ds.batch(2).reweight(at=9, in_steps=True, in_tokens=True, weights=FEW)),
        ("this mixture counts samples", lambda: mixed(sources).reweight(at=9, in_tokens=True, weights=FEW)),
        (
            "batch_by_length.. has many lengths",
            lambda: mixed(sources).batch_by_length(4).reweight(at=9, in_tokens=True, weights=FEW),
        ),
        (
            "the weights change at document 1500, and at a sequence whose documents come before",
            lambda: mixed(sources).reweight(at=1500, weights=FEW).pack_sequences(9).reweight(at=9, weights=FEW).ids(),
        ),
        (
            r"reweight\(\) was called behind pack_sequences\(\), and take\(\)",
            lambda: mixed(sources).take(900).pack_sequences(9).reweight(at=9, weights=FEW).ids(),
        ),
    ]
    for message, call in refused:
        with pytest.raises(UsageError, match=message):
            call()
