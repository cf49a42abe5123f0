from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples import few_examples
from tests.order.datasets import chunk_of, datasets, orders, scan, windows

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute, permute_each
from shoal.order.protocol import chunk_starts
from shoal.order.seeds import draws, key
from shoal.order.window import timeline_slabs
from shoal.order.window.canonical_nodes import CanonicalNodes
from shoal.order.window.timeline_slabs import _fixed_point_bits
from shoal.orders import Block, BoundOrder, Buffer, Full, Order, Sequential, Window

SEEDS = st.integers(0, 2**64 - 1)


# ---- laws of every order


@few_examples(25)
@given(samples=datasets(), order=orders(), seed=SEEDS, data=st.data())
def test_any_span_is_that_of_a_scan(samples: NDArray[np.int64], order: Order, seed: int, data: st.DataObject) -> None:
    bound = order.bind(samples, seed=seed, epoch=2)
    whole = scan(bound)
    assert np.array_equal(np.bincount(whole, minlength=bound.num_samples), np.ones(bound.num_samples, dtype=np.int64))
    for _ in range(4):
        start = data.draw(st.integers(0, bound.num_samples))
        stop = start + data.draw(st.integers(0, min(bound.num_samples - start, 3000)))
        fresh = order.bind(samples, seed=seed, epoch=2)  # no cache of the scan
        ids, chunks = fresh.locate(start, stop)
        assert np.array_equal(ids, whole[start:stop])
        assert np.array_equal(chunks, chunk_of(samples, ids))
        assert np.array_equal(fresh.positions(ids), np.arange(start, stop))


@pytest.mark.parametrize("order", [Window(chunks=40, num_canonical_nodes=3), Block(chunks=7), Buffer(samples=900)])
def test_spans_of_any_length_one_after_the_other(order: Order) -> None:
    samples = np.full(5000, 110)  # several spans
    bound = order.bind(samples, seed=1)
    whole = scan(order.bind(samples, seed=1))
    at, rng = 0, np.random.default_rng(0)
    while at < bound.num_samples:
        stop = min(at + int(rng.integers(1, 120_000)), bound.num_samples)
        assert np.array_equal(bound.ids(at, stop), whole[at:stop])
        at = stop


@few_examples(25)
@given(samples=datasets(max_samples=20_000), order=orders(), seed=SEEDS)
def test_positions_of_all_ids_in_any_order(samples: NDArray[np.int64], order: Order, seed: int) -> None:
    bound = order.bind(samples, seed=seed)
    ids = np.random.default_rng(0).permutation(bound.num_samples)
    assert np.array_equal(scan(bound)[bound.positions(ids)], ids)


@few_examples(25)
@given(order=orders())
def test_nothing_has_an_order_of_nothing(order: Order) -> None:
    for samples in ([], [0], [0, 0, 0]):
        bound = order.bind(samples)
        assert bound.num_samples == 0
        assert bound.ids(0, 0).tolist() == []
        assert bound.positions(np.array([], dtype=np.int64)).tolist() == []


@pytest.mark.parametrize("order", [Window(chunks=4), Full(), Sequential(), Block(), Buffer(samples=5)], ids=repr)
class TestEveryOrder:
    def bound(self, order: Order) -> BoundOrder:
        return order.bind([3, 4, 5, 0, 6, 7], seed=2)

    def test_positions_outside_of_the_epoch(self, order: Order) -> None:
        for start, stop in [(0, 26), (-1, 3), (5, 4), (26, 26)]:
            with pytest.raises(UsageError, match=rf"positions \[{start}, {stop}\) .* \[0, 25\)"):
                self.bound(order).ids(start, stop)

    def test_ids_outside_of_the_dataset(self, order: Order) -> None:
        for ids in ([25], [-1], [3, 99]):
            with pytest.raises(UsageError, match=r"sample ids must lie in \[0, 25\)"):
                self.bound(order).positions(np.array(ids))
        with pytest.raises(UsageError, match="sample ids must be integers; got float64"):
            self.bound(order).positions(np.array([1.0]))

    def test_samples_per_chunk_of_a_wrong_kind(self, order: Order) -> None:
        for samples in ([1.0, 2.0], ["a"], [[1, 2]], 7, [True, False], [None]):
            with pytest.raises(UsageError, match="one-dimensional array of integers; got"):
                order.bind(samples)
        with pytest.raises(UsageError, match="must not be negative; chunk 1 has -2"):
            order.bind([1, -2, 3])

    def test_ids_are_int64_and_ours_to_change(self, order: Order) -> None:
        bound = self.bound(order)
        ids, chunks = bound.locate(0, 25)
        assert ids.dtype == chunks.dtype == np.dtype(np.int64)
        kept = ids.copy()
        ids[:] = 0
        chunks[:] = 0
        assert np.array_equal(bound.ids(0, 25), kept)

    def test_samples_per_chunk_may_be_of_any_integer_type(self, order: Order) -> None:
        expected = self.bound(order).ids(0, 25)
        for dtype in (np.uint8, np.uint64, np.int16, ">i4"):
            assert np.array_equal(order.bind(np.array([3, 4, 5, 0, 6, 7], dtype=dtype), seed=2).ids(0, 25), expected)

    def test_what_an_order_says_of_itself(self, order: Order) -> None:
        bound = self.bound(order)
        assert bound.version == order.version
        assert bound.parameters == order.parameters
        assert all(type(value) is int for value in order.parameters.values())


# ---- the window itself


def naive_window(
    samples: NDArray[np.int64], *, chunks: int, num_nodes: int, seed: int, epoch: int, bits: int = 20
) -> list[int]:
    """The window order from its description, one sample at a time."""
    nodes = CanonicalNodes(chunk_starts(samples), seed=seed, num_nodes=num_nodes)
    width = chunks // num_nodes
    lines: list[list[int]] = []
    for node in range(num_nodes):
        first, count = int(nodes.node_first_part[node]), int(nodes.node_end_part[node] - nodes.node_first_part[node])
        slot_key, chunk_key = (np.uint64(key(seed, epoch, what, node)) for what in ("place", "chunk"))
        sizes = [
            int(nodes.part_samples[first + int(permute(np.array([slot]), count, int(slot_key))[0])])
            for slot in range(count)
        ]
        first_slab, found = naive_slabs(sizes, width), []
        block = 1 << ((max(2, width // 4) - 1).bit_length() + bits)
        for slot in range(count):
            part = first + int(permute(np.array([slot]), count, int(slot_key))[0])
            size = int(nodes.part_samples[part])
            its_key = draws(np.array([chunk_key]), np.array([slot]))
            phase = int(draws(its_key, np.array([0]))[0]) >> (64 - bits)
            inside = permute_each(np.arange(size), np.full(size, size), draws(its_key.repeat(size), np.full(size, 1)))
            begin = int(nodes.part_first_id(np.array([node]), np.array([part]))[0])
            for rank in range(size):
                born = 0 if slot < width else slot * 2**bits - width * 2 ** (bits - 1)
                died = count * 2**bits if slot >= count - width else slot * 2**bits + width * 2 ** (bits - 1)
                time = born + (died - born) * (rank * 2**bits + phase) // (size * 2**bits)
                before, after = first_slab[time // block], first_slab[time // block + 1]
                slab = before + time % block * (after - before) // block
                random = int(draws(its_key, np.array([rank + 2]))[0]) >> 40
                found.append((slab, random, slot, rank, begin + int(inside[rank])))
        lines.append([row[-1] for row in sorted(found)])
    return [lines[position % num_nodes][position // num_nodes] for position in range(int(samples.sum()))]


def naive_slabs(sizes: list[int], width: int) -> list[int]:
    """How many slabs come before each block of a node, given the samples of the chunk at each slot."""
    slab = max(2, width // 4)
    units = 1 << (slab - 1).bit_length()
    num_blocks = -(-len(sizes) // units)
    if len(sizes) <= width:
        return list(range(num_blocks + 1))
    reach, alive = -(-width // (2 * units)), []
    for block in range(num_blocks):  # the blocks whose chunks may be alive in it
        begin = min(max(block - reach, 0), (len(sizes) - width) // units)
        alive.append(range(begin, min(max(block + reach + 1, -(-width // units)), num_blocks)))
    shares = []
    for block in range(num_blocks):
        life = sum(min(units, len(sizes) - other * units) for other, others in enumerate(alive) if block in others)
        shares.append((sum(sizes[block * units : (block + 1) * units]) << 8) // life * units)
    first, samples = [0], [0]
    for others in alive:
        samples.append(samples[-1] + sum(shares[other] for other in others))
        wanted = samples[-1] // (slab << 8) - samples[-2] // (slab << 8)
        first.append(first[-1] + max(1, wanted))
    return first


@pytest.mark.parametrize(
    ("samples", "chunks", "num_nodes"),
    [
        (np.full(40, 9), 8, 1),
        (np.array([3, 1, 400, 2, 7, 5] * 5), 11, 1),
        (np.full(12, 9), 7, 1),
        (np.full(9, 30), 8, 1),
        (np.full(60, 7), 9, 3),
        (np.array([5, 0, 30, 1, 1, 0, 12, 3, 9, 44, 2, 2, 6] * 2), 4, 2),
        (np.arange(30), 6, 1),
        (np.full(300, 2), 64, 4),
    ],
)
def test_a_window_is_what_its_description_says(samples: NDArray[np.int64], chunks: int, num_nodes: int) -> None:
    bound = Window(chunks=chunks, num_canonical_nodes=num_nodes).bind(samples, seed=3, epoch=5)
    naive = naive_window(samples, chunks=chunks, num_nodes=num_nodes, seed=3, epoch=5)
    assert scan(bound).tolist() == naive


@pytest.mark.parametrize("bits", [1, 3, 5])
def test_samples_on_the_border_of_a_slab(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Time so coarse that samples often come exactly when a slab begins."""
    monkeypatch.setattr(timeline_slabs, "_fixed_point_bits", lambda *_: bits)
    for samples in (np.full(40, 9), np.array([5, 30, 1, 1, 12, 3, 9, 44, 2, 2, 6] * 2)):
        order = Window(chunks=8, num_canonical_nodes=2)
        naive = naive_window(samples, chunks=8, num_nodes=2, seed=3, epoch=5, bits=bits)
        assert scan(order.bind(samples, seed=3, epoch=5)).tolist() == naive
        bound = order.bind(samples, seed=3, epoch=5)
        bound.span = 6  # many spans, each with borders of its own
        assert scan(bound).tolist() == naive
        assert np.array_equal(bound.positions(np.array(naive)), np.arange(len(naive)))


@few_examples(25)
@given(samples=datasets(max_samples=5000, max_chunks=60), order=windows(max_chunks=80), seed=SEEDS)
@example(samples=np.full(16, 10), order=Window(chunks=16), seed=0)
def test_a_window_of_all_chunks_is_a_full_permutation(samples: NDArray[np.int64], order: Window, seed: int) -> None:
    """Each node's samples are permuted as one, so any of them can come first, not only those near an end."""
    if order.chunks < len(samples):
        return
    bound = order.bind(samples, seed=seed)
    ids = scan(bound)
    assert sorted(ids.tolist()) == list(range(bound.num_samples))
    if order.resolved_nodes == 1 and bound.num_samples:
        nodes = CanonicalNodes(chunk_starts(samples), seed=seed, num_nodes=1)
        line = permute(np.arange(bound.num_samples), bound.num_samples, key(seed, 0, "whole", 0))
        parts = np.repeat(np.arange(len(nodes.part_samples)), nodes.part_samples.astype(np.int64))[line]
        assert np.array_equal(chunk_of(samples, ids), nodes.part_chunk[parts])


def test_epochs_share_their_nodes_and_nothing_else() -> None:
    samples = np.full(400, 10)
    order = Window(chunks=32, num_canonical_nodes=4)
    one, other = (order.bind(samples, seed=1, epoch=epoch) for epoch in (0, 1))
    for node in range(4):
        assert set(scan(one)[node::4].tolist()) == set(scan(other)[node::4].tolist())
    another = set(scan(order.bind(samples, seed=2))[::4].tolist())
    assert len(another & set(scan(one)[::4].tolist())) < 500


@pytest.mark.parametrize(("chunks", "nodes"), [(1, 1), (0, 1), (-3, None), (1, None)])
def test_a_window_of_less_than_two_chunks(chunks: int, nodes: int | None) -> None:
    with pytest.raises(UsageError, match=f"at least 2 chunks; got chunks={chunks}"):
        Window(chunks=chunks, num_canonical_nodes=nodes)


@pytest.mark.parametrize(("chunks", "nodes", "most"), [(2, 2, 1), (64, 33, 32), (65, 33, 32), (64, 0, 32), (8, -1, 4)])
def test_more_nodes_than_pairs_of_chunks(chunks: int, nodes: int, most: int) -> None:
    with pytest.raises(UsageError, match=f"of {chunks} chunks allows 1 to {most} canonical nodes; got {nodes}"):
        Window(chunks=chunks, num_canonical_nodes=nodes)


def test_the_default_number_of_nodes() -> None:
    resolved = {chunks: Window(chunks=chunks).resolved_nodes for chunks in (2, 16, 31, 32, 256, 1023, 1024, 5000)}
    assert resolved == {2: 1, 16: 1, 31: 1, 32: 2, 256: 16, 1023: 63, 1024: 64, 5000: 64}


def test_what_leaves_no_room_for_time_is_refused() -> None:
    with pytest.raises(UsageError, match="exceeds 64-bit times"):
        _fixed_point_bits(2**31, 2**31, 2**31)


def test_huge_chunks_keep_their_order_exact() -> None:
    """Fewer bits behind the point, the same laws."""
    samples = np.full(64, 2**31)
    bound = Window(chunks=16, num_canonical_nodes=2).bind(samples, seed=1)
    for start in (0, 2**33 + 1, bound.num_samples - 1000):
        ids = bound.ids(start, start + 1000)
        assert np.array_equal(bound.positions(ids), np.arange(start, start + 1000))


def test_a_chunk_too_large_to_permute_is_refused() -> None:
    with pytest.raises(UsageError, match="2\\*\\*32 - 1"):
        Window(chunks=4).bind([2**33, *[10] * 20])


def test_one_giant_chunk_among_small_ones_is_found_closely() -> None:
    samples = np.full(200_000, 3)
    samples[70_000] = 10**9
    bound = Window(chunks=256).bind(samples, seed=3, epoch=2)
    for start in (0, bound.num_samples // 4, bound.num_samples // 2, bound.num_samples - 100):
        ids = bound.ids(start, start + 100)
        assert bound.positions(ids).tolist() == list(range(start, start + 100))
