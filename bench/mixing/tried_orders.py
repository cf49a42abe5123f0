# ruff: noqa: ARG001
"""Orders of rows in numpy: shoal's own, and ideas for the window that were tried beside it.

Every function returns row numbers, shape (num_rows,), from chunks of ``chunk_rows`` consecutive rows and memory for
``memory_rows`` rows.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shoal

Ids = NDArray[np.int64]


def _chunks(num_rows: int, chunk_rows: int) -> list[int]:
    whole, rest = divmod(num_rows, chunk_rows)
    return [chunk_rows] * whole + [rest] * (rest > 0)


def of_shoal(order: Any, num_rows: int, chunk_rows: int, seed: int) -> Ids:
    """Return the ids of an order of `shoal.orders`."""
    bound = order.bind(_chunks(num_rows, chunk_rows), seed=seed)
    return np.asarray(bound.ids(0, num_rows))


def full(num_rows: int, chunk_rows: int, memory_rows: int, seed: int) -> Ids:
    """Return a permutation of all rows."""
    return of_shoal(shoal.orders.Full(), num_rows, chunk_rows, seed)


def window(num_rows: int, chunk_rows: int, memory_rows: int, seed: int) -> Ids:
    """Return the default order."""
    order = shoal.orders.Window(memory_rows // chunk_rows, num_canonical_nodes=1)
    return of_shoal(order, num_rows, chunk_rows, seed)


def block(num_rows: int, chunk_rows: int, memory_rows: int, seed: int) -> Ids:
    """Return groups of chunks, each permuted as a whole."""
    return of_shoal(shoal.orders.Block(memory_rows // chunk_rows), num_rows, chunk_rows, seed)


def buffer(num_rows: int, chunk_rows: int, memory_rows: int, seed: int) -> Ids:
    """Return a reservoir over shuffled shards, here of ``chunk_rows`` rows."""
    return of_shoal(shoal.orders.Buffer(memory_rows), num_rows, chunk_rows, seed)


def storage(num_rows: int, chunk_rows: int, memory_rows: int, seed: int) -> Ids:
    """Return the rows as they are stored."""
    return np.arange(num_rows)


# ---- ideas, simulated


def timeline(chunk_at_slot: Ids, num_rows: int, chunk_rows: int, width: int, draws: np.random.Generator) -> Ids:
    """Return the rows of chunks that live for ``width`` slots, evenly spread, at random within slabs."""
    sizes = np.minimum(chunk_rows, num_rows - chunk_at_slot * chunk_rows)
    slots, num_slots = np.arange(len(sizes)), len(sizes)
    births = np.where(slots < width, 0.0, slots - width / 2)
    deaths = np.where(slots >= num_slots - width, num_slots, slots + width / 2)
    of_slot = np.repeat(slots, sizes)
    ranks = np.concatenate([draws.permutation(size) for size in sizes])
    phases = draws.random(num_slots)[of_slot]
    rows = np.concatenate(
        [chunk * chunk_rows + np.arange(size) for chunk, size in zip(chunk_at_slot, sizes, strict=True)]
    )
    times = births[of_slot] + (deaths - births)[of_slot] * (ranks + phases) / sizes[of_slot]
    slab = (times * chunk_rows / max(2, width // 4)).astype(np.int64)
    return np.asarray(rows[np.lexsort((draws.random(num_rows), slab))])


def strata(num_chunks: int, width: int, draws: np.random.Generator) -> Ids:
    """Return chunks such that each run of ``width`` slots has one chunk of each of ``width`` stretches of storage."""
    borders = np.arange(width + 1) * num_chunks // width
    stretches = [draws.permutation(np.arange(first, end)) for first, end in itertools.pairwise(borders)]
    cycles = max(map(len, stretches))
    return np.concatenate(
        [draws.permutation([each[cycle] for each in stretches if cycle < len(each)]) for cycle in range(cycles)]
    )


def simulated_window(num_rows: int, chunk_rows: int, memory_rows: int, seed: int) -> Ids:
    """Return the window with chunks in random order, to check the simulation."""
    draws = np.random.default_rng(seed)
    num_chunks = -(-num_rows // chunk_rows)
    return timeline(draws.permutation(num_chunks), num_rows, chunk_rows, memory_rows // chunk_rows, draws)


def stratified_window(num_rows: int, chunk_rows: int, memory_rows: int, seed: int) -> Ids:
    """Return a window whose chunks come from all stretches of storage in turn."""
    draws = np.random.default_rng(seed)
    width = memory_rows // chunk_rows
    chunks = strata(-(-num_rows // chunk_rows), width, draws)
    return timeline(chunks, num_rows, chunk_rows, width, draws)


def released_window(num_rows: int, chunk_rows: int, memory_rows: int, seed: int) -> Ids:
    """Return a window of twice as many chunks: the memory if every delivered row is freed at once."""
    return window(num_rows, chunk_rows, 2 * memory_rows, seed)


def window_into_buffer(num_rows: int, chunk_rows: int, memory_rows: int, seed: int) -> Ids:
    """Return a window of half the memory that fills a buffer of the other half."""
    draws = np.random.default_rng(seed)
    first = window(num_rows, chunk_rows, memory_rows // 2, seed)
    held, delivered = list(first[: memory_rows // 2]), []
    for row in first[memory_rows // 2 :]:
        slot = draws.integers(len(held))
        delivered.append(held[slot])
        held[slot] = row
    return np.array([*delivered, *draws.permutation(held)])


def two_visits(num_rows: int, chunk_rows: int, memory_rows: int, seed: int) -> Ids:
    """Return a window that reads every chunk twice, and takes every second row of the chunk at each visit."""
    draws = np.random.default_rng(seed)
    num_halves = 2 * -(-num_rows // chunk_rows)
    visits = draws.permutation(num_halves)  # a visit holds the whole chunk, so the window has as many chunks
    ids = timeline(visits, num_halves * chunk_rows // 2, chunk_rows // 2, memory_rows // chunk_rows, draws)
    visit, rank = np.divmod(ids, max(1, chunk_rows // 2))
    rows = visit // 2 * chunk_rows + 2 * rank + visit % 2
    return rows[rows < num_rows]


TRIED = {
    each.__name__: each
    for each in (full, window, block, buffer, storage, simulated_window, stratified_window, released_window,
                 window_into_buffer, two_visits)
}  # fmt: skip
