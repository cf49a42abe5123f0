"""Four processes of a job: those that differ in the model axis share samples, and one that differs is found.

Usage: agree_jax.py DATA COORDINATOR NUM_PROCESSES PROCESS_ID
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from tests.integration.laws.notes import GLOBAL_BATCH, dataset

import shoal
import shoal.jax
from shoal.errors import UsageError


def refusal(ask: Callable[[], object]) -> str:
    """What an error says that must come."""
    try:
        ask()
    except UsageError as error:
        return str(error)
    return "nobody refused"


def main() -> None:
    data, coordinator, num_processes, process_id = sys.argv[1:]
    jax.distributed.initialize(coordinator, int(num_processes), int(process_id))
    ds = dataset(data, remainder="drop")
    rows = NamedSharding(jax.make_mesh((2, 2), ("data", "model")), PartitionSpec("data"))
    assert "shoal.jax.partition(ds, sharding)" in refusal(lambda: shoal.jax.DataLoader(ds, sharding=rows))
    loader = shoal.jax.DataLoader(shoal.jax.partition(ds, rows), sharding=rows)
    shoal.jax.compare_ranks(loader)
    for step, batch in enumerate(loader):
        assert batch["ids"].shape == (GLOBAL_BATCH,)
        together = multihost_utils.process_allgather(batch["ids"], tiled=True)
        own = np.concatenate([part.data for part in batch["ids"].addressable_shards])
        everybody = np.asarray(multihost_utils.process_allgather(own))
        at = step * GLOBAL_BATCH
        assert sorted(together.tolist()) == sorted(ds.ids(0, at, at + GLOBAL_BATCH).tolist())
        assert {tuple(part) for part in everybody.tolist()} == {tuple(together[:6]), tuple(together[6:])}
    assert step == 38
    other = shoal.open(data).shuffle(seed=12 if jax.process_index() == 2 else 11).batch(4)
    assert "seed: 11 on ranks 0, 1, 3, but 12 on rank 2" in refusal(lambda: shoal.jax.compare_ranks(other))
    multihost_utils.sync_global_devices("all of them are here, and none waits")
    os.write(1, f"process {jax.process_index()} agrees\n".encode())  # at once, as agree_torch.py does


if __name__ == "__main__":
    main()
