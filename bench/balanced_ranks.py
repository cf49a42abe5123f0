"""The work of ranks at a step: how unequal it is, with and without balance, and how many ranks read a chunk for it.

python bench/balanced_ranks.py

The work of a rank is the sum of the squared lengths of its documents, as attention has it. A line has the largest of
all ranks by the mean of them: on average over steps, in the median, and 95th of 100 steps; ranks that read a chunk on
average, and machines of eight ranks that do; and the time of dealing a sequence, its packing included. Lengths are
log-normal, of mean 665 tokens and median 403.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shoal.order.partition import Partition
from shoal.order.sequences.groupings import LengthBatches, Packing
from shoal.order.sequences.packed_order import PackedOrder
from shoal.order.window.order import Window

LENGTH, MOST = 4_096, 16_384
OF_MACHINE = 8  # ranks
CHUNK = 100  # documents


def orders(num_documents: int, alike: int) -> Iterator[tuple[str, PackedOrder, list[int], list[int]]]:
    """Orders by name, with samples of a rank at a step, and balances to compare."""
    lengths = np.random.default_rng(0).lognormal(6, 1, num_documents).clip(1, MOST).astype(np.int64)
    window = Window(chunks=512, num_canonical_nodes=32)
    documents = window.bind(np.full(num_documents // CHUNK, CHUNK), seed=0, epoch=0)
    for strategy in ("best_fit", "concat"):
        packed = PackedOrder(documents, lengths, Packing(LENGTH, strategy), seed=0, epoch=0)
        yield strategy, packed, [4, 8, 16], [0, 8, 64]
    for name, batches in (
        ("16,384 tokens, any order", LengthBatches(max_tokens=MOST, alike=1)),
        (f"16,384 tokens, alike={alike}", LengthBatches(max_tokens=MOST, alike=alike)),
        ("32 documents, any order", LengthBatches(32, alike=1)),
        (f"32 documents, alike={alike}", LengthBatches(32, alike=alike)),
    ):
        yield name, PackedOrder(documents, lengths, batches, seed=0, epoch=0), [1], [0]


def spread(work: NDArray[np.float64], ranks: NDArray[np.int64], partition: Partition) -> tuple[float, float, float]:
    """The largest of all ranks by the mean: on average over steps, the median, and the 95th percentile."""
    steps = np.arange(len(ranks)) // partition.global_batch
    size = partition.world_size
    sums = np.bincount(steps * size + ranks, weights=work).reshape(-1, size)
    ratios = sums.max(1) / sums.mean(1)
    return float(ratios.mean()), float(np.median(ratios)), float(np.quantile(ratios, 0.95))


def dealt(order: PackedOrder, partition: Partition) -> NDArray[np.int64]:
    """The rank that gets each sequence of the full global batches, asked for about a block at a time, as in a run."""
    num_batches = order.num_samples // partition.global_batch
    each = max(1, order.span // partition.global_batch)
    spans = ((first, min(first + each, num_batches)) for first in range(0, num_batches, each))
    return np.concatenate([partition.dealt(order, *span)[1] for span in spans])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=400_000)
    arguments = parser.parse_args()
    print(f"{'':32} ranks  each  neighbours   work: mean, median, 95 %   padded: mean, fill   ranks, machines   us")
    for world_size in (8, 64):
        for name, order, per_rank, balances in orders(arguments.documents, world_size):
            pieces = order.pieces(np.arange(order.num_samples))
            counts, longest = np.diff(pieces.first), np.zeros(order.num_samples)
            np.maximum.at(longest, np.repeat(np.arange(order.num_samples), counts), pieces.stops - pieces.starts)
            for each in per_rank:
                for balance in [number for number in balances if number <= world_size]:
                    partition = Partition(world_size * each, world_size, balance=balance)
                    begun = time.process_time()
                    ranks = dealt(order, partition)
                    seconds = time.process_time() - begun
                    work = order.weights(np.arange(len(ranks))).astype(float)
                    mean, median, worst = spread(work, ranks, partition)
                    padded = ""
                    if each == 1:  # a row for each document: padding is computed, too
                        whole = spread((counts * longest**2)[: len(ranks)], ranks, partition)
                        fill = (pieces.stops - pieces.starts).sum() / (counts * longest).sum()
                        padded = f"{whole[0]:.3f} {fill:.4f}"
                    num_pieces = int(pieces.first[len(ranks)])
                    by = np.repeat(ranks, counts[: len(ranks)])
                    chunks = pieces.chunks[:num_pieces]
                    num_chunks = len(np.unique(chunks))
                    by_rank, by_machine = (
                        len(np.unique(chunks * world_size + readers)) / num_chunks for readers in (by, by // OF_MACHINE)
                    )
                    print(
                        f"{name:32} {world_size:5} {each:5} {balance or '-':>11}   {mean:10.3f} {median:7.3f}"
                        f" {worst:6.3f}   {padded:>18}   {by_rank:5.2f} {by_machine:8.2f}"
                        f"   {seconds / len(ranks) * 1e6:5.2f}"
                    )


if __name__ == "__main__":
    main()
