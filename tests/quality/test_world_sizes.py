"""VR of what ranks get: of the global batch, and of the part of each, over data in runs, stripes and fair chunks."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.order.partition import Partition
from shoal.orders import Window
from shoal.quality.metrics import chunk_correlation, variance_ratio
from shoal.quality.prediction import predicted_variance_ratio

EACH, NUM_CHUNKS, ALIVE, SEEDS = 32, 1024, 64, 3
PLACE = np.arange(EACH * NUM_CHUNKS)
LABELS = {
    "runs of a chunk": PLACE // EACH % 100,
    "longer runs": PLACE // 1000,
    "shorter runs": PLACE // 4 % 100,
    "stripes": PLACE % 100,
    "stratified": PLACE % 8,
}


@pytest.mark.parametrize(("world_size", "batch", "nodes"), [(1, 64, 1), (4, 128, 8), (8, 512, 1), (2, 256, 8)])
@pytest.mark.parametrize("data", LABELS)
def test_ranks_get_what_is_predicted(data: str, world_size: int, batch: int, nodes: int) -> None:
    """The global batch is the same at any world size; a rank's part of it varies as in a window of its share."""
    labels, samples = LABELS[data], np.full(NUM_CHUNKS, EACH)
    rho, num_steps = chunk_correlation(labels, samples), len(PLACE) // batch
    of_batches: list[float] = []
    of_ranks: list[float] = []
    for seed in range(SEEDS):
        bound, partition = Window(ALIVE, nodes).bind(samples, seed=seed), Partition(batch, world_size)
        shares = [partition.share(bound, rank, 0, num_steps) for rank in range(world_size)]
        whole = np.stack([share.ids.reshape(num_steps, -1) for share in shares], axis=1).reshape(-1)
        of_batches.append(variance_ratio(labels[whole], batch))
        each = [variance_ratio(labels[share.ids], batch // world_size) for share in shares]
        of_ranks.append(float(np.mean(each)))
    share_of_window = Window(ALIVE // world_size, 1)
    for found, order, size in [
        (of_batches, Window(ALIVE, nodes), batch),
        (of_ranks, share_of_window, batch // world_size),
    ]:
        predicted = predicted_variance_ratio(order, samples, size, rho=rho)
        error = np.std(found) / SEEDS**0.5
        assert abs(np.mean(found) - predicted) <= 0.1 * predicted + 3 * error, (found, predicted)
