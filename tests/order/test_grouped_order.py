"""Batches by column as an order: every sample once, one group or P classes in each batch, whatever is asked first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.groups import grouped_order
from shoal.order.groups.group_batches import GroupBatches
from shoal.order.groups.grouped_order import GroupedOrder
from shoal.order.protocol import Dealing
from shoal.order.window.order import Window

GROUPS = st.lists(st.integers(0, 4), min_size=1, max_size=120)
ALIKE = st.integers(1, 4)


def order_of(groups: Any, grouping: GroupBatches, *, epoch: int = 0, nodes: int = 2) -> GroupedOrder:
    chunks = [10] * (len(groups) // 10) + [len(groups) % 10] * (len(groups) % 10 > 0)
    window = Window(chunks=4 * nodes, num_canonical_nodes=nodes).bind(chunks, seed=3, epoch=epoch)
    return GroupedOrder(window, np.array(groups, dtype=np.int32), grouping, seed=3, epoch=epoch)


def batches_of(order: GroupedOrder, numbers: Any = None) -> list[list[int]]:
    """The samples of some batches, or of all."""
    pieces = order.pieces(np.arange(order.num_samples) if numbers is None else np.array(numbers))
    assert order.documents.num_samples == 0 or [
        *order.documents.ids(0, order.documents.num_samples)[pieces.positions]
    ] == [*pieces.ids]
    return [pieces.ids[a:b].tolist() for a, b in zip(pieces.first, pieces.first[1:], strict=False)]


@given(groups=GROUPS, sizes=st.lists(st.integers(1, 7), min_size=5, max_size=5), alike=ALIKE, keeps=st.booleans())
def test_every_sample_comes_once_in_a_batch_of_its_group(
    groups: list[int], sizes: list[int], alike: int, *, keeps: bool
) -> None:
    order = order_of(groups, GroupBatches("kind", tuple(sizes), alike=alike, keeps_short=keeps))
    batches = batches_of(order)
    delivered = sorted(sample for batch in batches for sample in batch)
    assert len(delivered) == len(set(delivered)) == len(groups) - order.num_left_out
    of_batches = [{groups[sample] for sample in batch} for batch in batches]
    assert all(len(kinds) == 1 for kinds in of_batches)
    kinds = [kind for (kind,) in of_batches]
    is_short = [len(batch) < sizes[kind] for batch, kind in zip(batches, kinds, strict=True)]
    assert all(len(batch) <= sizes[kind] for batch, kind in zip(batches, kinds, strict=True))
    assert is_short == sorted(is_short)  # short batches are the last
    short = [kind for kind, shortened in zip(kinds, is_short, strict=True) if shortened]
    assert len(short) == len(set(short))
    assert keeps or not short
    left = [groups.count(kind) % sizes[kind] for kind in set(groups)]
    assert order.num_left_out == (0 if keeps else sum(left))


@given(groups=GROUPS, size=st.integers(1, 7), alike=ALIKE)
def test_consecutive_batches_are_alike_until_the_last_samples(groups: list[int], size: int, alike: int) -> None:
    batches = batches_of(order_of(groups, GroupBatches("kind", (size,), alike=alike)))
    num_alike = sum(groups.count(kind) // (size * alike) * alike for kind in set(groups))
    for begin in range(0, num_alike, alike):
        assert len({groups[sample] for batch in batches[begin : begin + alike] for sample in batch}) == 1
    assert all(len(batch) == size for batch in batches[:num_alike])


@given(groups=GROUPS, size=st.integers(1, 7))
def test_the_next_batch_is_the_first_that_is_complete(groups: list[int], size: int) -> None:
    order = order_of(groups, GroupBatches("kind", (size,)))
    waiting: dict[int, list[int]] = {}
    expected = []
    for sample in order.documents.ids(0, len(groups)).tolist():
        waiting.setdefault(groups[sample], []).append(sample)
        if len(waiting[groups[sample]]) == size:
            expected.append(waiting.pop(groups[sample]))
    assert batches_of(order)[: len(expected)] == expected
    assert sum(map(len, waiting.values())) <= len(set(groups)) * (size - 1)


def classes_simulated(order: GroupedOrder, groups: list[int], classes: int, each: int) -> list[set[int]]:
    """The batches of P classes, sample after sample: the newest K samples of each class, once P classes have K."""
    waiting: dict[int, list[int]] = {}
    ready: dict[int, list[list[int]]] = {}
    batches = []
    for sample in order.documents.ids(0, len(groups)).tolist():
        group = groups[sample]
        waiting.setdefault(group, []).append(sample)
        if len(waiting[group]) == each:
            ready.setdefault(group, []).append(waiting.pop(group))
        if len(ready) == classes:
            batches.append({sample for sets in ready.values() for sample in sets.pop()})
            ready = {group: sets for group, sets in ready.items() if sets}
    return batches


@given(groups=GROUPS, classes=st.integers(2, 4), each=st.integers(1, 4), alike=st.integers(1, 3))
def test_every_batch_has_p_classes_with_k_samples_each(groups: list[int], classes: int, each: int, alike: int) -> None:
    order = order_of(groups, GroupBatches("kind", (each,), classes=classes, alike=alike))
    batches = batches_of(order)
    for batch in batches:
        rows = np.array(groups)[batch].reshape(classes, each)
        assert (rows == rows[:, :1]).all()
        assert len(set(rows[:, 0].tolist())) == classes
    delivered = [sample for batch in batches for sample in batch]
    assert len(delivered) == len(set(delivered)) == len(groups) - order.num_left_out
    if alike == 1:
        assert [set(batch) for batch in batches] == classes_simulated(order, groups, classes, each)


def test_most_sets_of_classes_are_used() -> None:
    generator = np.random.default_rng(0)
    for weights in (np.ones(8), np.ones(100), 1 / np.arange(1, 101)):
        groups = generator.choice(len(weights), 20_000, p=weights / weights.sum())
        num_batches = order_of(groups, GroupBatches("kind", (4,), classes=8)).num_samples
        sets = np.bincount(groups) // 4
        most = max(number for number in range(1, 2_000) if np.minimum(sets, number).sum() >= 8 * number)
        assert 0.97 * most <= num_batches <= most


@given(
    groups=GROUPS,
    classes=st.integers(1, 3),
    size=st.integers(1, 5),
    alike=ALIKE,
    block=st.integers(1, 60),
    data=st.data(),
)
def test_batches_do_not_depend_on_blocks_or_on_what_is_asked_first(
    groups: list[int], classes: int, size: int, alike: int, block: int, data: st.DataObject
) -> None:
    grouping = GroupBatches("kind", (size,), classes=classes, alike=alike)
    whole = batches_of(order_of(groups, grouping))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped_order, "_LEAST_BLOCK", block)
        order = order_of(groups, grouping)
        assert batches_of(order) == whole
        if whole:
            some = data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=5))
            assert batches_of(order_of(groups, grouping), some) == [whole[number] for number in some]


@given(groups=GROUPS, size=st.integers(1, 5), classes=st.integers(1, 3), data=st.data())
def test_batches_with_a_sample_are_told_by_its_position(
    groups: list[int], size: int, classes: int, data: st.DataObject
) -> None:
    order = order_of(groups, GroupBatches("kind", (size,), classes=classes, alike=2))
    sample = data.draw(st.integers(0, len(groups) - 1))
    held = order.sequences_with(order.documents.positions(np.array([sample])))
    assert held.tolist() == [number for number, batch in enumerate(batches_of(order)) if sample in batch]


@given(groups=GROUPS, size=st.integers(1, 5), number=st.integers(0, 30))
def test_later_samples_do_not_change_the_first_batches(groups: list[int], size: int, number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped_order, "_LEAST_BLOCK", 7)
        order = order_of(groups, GroupBatches("kind", (size,)))
        before, stop = order.documents_before(min(number, order.num_samples)), order.num_samples
        pieces = order.pieces(np.arange(min(number, stop)))
        assert len(pieces.positions) == 0 or int(pieces.positions.max()) < before <= len(groups)


def test_the_oldest_sets_of_a_frequent_class_are_left_out() -> None:
    groups = [0] * 3_000 + [1] * 200
    order = order_of(groups, GroupBatches("kind", (2,), classes=2, look_ahead=20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped_order, "_LEAST_BLOCK", 100)
        limited = batches_of(order)
    pieces = order.pieces(np.arange(order.num_samples))
    spreads = [np.ptp(pieces.positions[a:b]) for a, b in zip(pieces.first, pieces.first[1:], strict=False)]
    assert len(limited) == 100
    assert max(spreads) < 200 + 20 * 16  # a block, and the twenty samples that wait
    assert order.num_left_out == 3_000 - 200


def test_epochs_differ_and_ranks_get_neighbouring_places() -> None:
    groups = np.random.default_rng(0).integers(0, 4, 2_000).tolist()
    grouping = GroupBatches("kind", (8,), alike=4)
    first, second = (batches_of(order_of(groups, grouping, epoch=epoch)) for epoch in (0, 1))
    assert first != second
    order = order_of(groups, grouping)
    assert isinstance(order, Dealing)
    assert order.locate(0, 6)[1].tolist() == [0, 1, 2, 3, 0, 1]


def nodes_read(order: GroupedOrder, alike: int) -> float:
    """The canonical nodes of the samples that a rank reads, of `alike` ranks."""
    pieces = order.pieces(np.arange(order.num_samples // 2))
    numbers = np.repeat(np.arange(len(pieces.first) - 1), np.diff(pieces.first))
    nodes: NDArray[np.int64] = pieces.positions % order.num_canonical_nodes
    return float(np.mean([len(np.unique(nodes[numbers % alike == rank])) for rank in range(alike)]))


def test_the_batches_of_a_run_share_the_canonical_nodes() -> None:
    groups = np.random.default_rng(0).integers(0, 4, 20_000).tolist()
    dealt = order_of(groups, GroupBatches("kind", (64,), alike=8), nodes=16)
    mixed = order_of(groups, GroupBatches("kind", (64,)), nodes=16)
    assert nodes_read(mixed, 8) == 16
    assert nodes_read(dealt, 8) < 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": (0,)}, "size of a batch must be from 1 "),
        ({"sizes": (2,), "alike": 0}, r"batch\(alike=\) must be from 1 "),
        ({"sizes": (2,), "classes": 1.5}, r"batch\(classes=\) must be an integer"),
        ({"sizes": (2,), "look_ahead": -1}, r"batch\(look_ahead=\) must be from 1 "),
        ({"sizes": (2,), "too_small": "keep"}, r"batch\(too_small=\)"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GroupBatches("kind", **arguments)
