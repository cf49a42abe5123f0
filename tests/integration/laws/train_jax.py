"""JAX over several processes: global arrays, and the iterator's state as JSON."""

from __future__ import annotations

import json
import os

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from tests.integration.laws.notes import NUM_EPOCHS, SAVE_EVERY, Notes, arguments, dataset, latest, saved

import shoal.jax


def main() -> None:
    data, out, _, _ = arguments()
    if (num_processes := int(os.environ["NUM_PROCESSES"])) > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{os.environ['COORDINATOR_PORT']}", num_processes, int(os.environ["PROCESS_ID"])
        )
    notes = Notes(out, jax.process_index())
    rows = NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), PartitionSpec("data"))
    loader = shoal.jax.DataLoader(dataset(data, remainder="pad"), sharding=rows, num_epochs=NUM_EPOCHS)
    iterator = iter(loader)
    name = latest(out)
    if name is not None:
        iterator.set_state(json.loads((out / name).read_text()))
    step = notes.steps = 0 if name is None else int(name.partition(".")[0])
    total = jax.jit(lambda batch: jax.numpy.where(batch["__pad__"], 0, batch["ids"]).sum())
    before = iterator.get_state()
    for batch in iterator:
        mine = {key: np.concatenate([part.data for part in value.addressable_shards]) for key, value in batch.items()}
        notes.step(before, mine)
        total(batch).block_until_ready()  # over all processes: here they meet
        before = iterator.get_state()
        step += 1
        if step % SAVE_EVERY == 0:
            if jax.process_index() == 0:
                part = out / f"{step:06d}.part"
                part.write_text(json.dumps(iterator.get_state()))
                part.rename(out / f"{step:06d}.json")
                saved(out, f"{step:06d}.json")
            if num_processes > 1:
                multihost_utils.sync_global_devices("saved")


if __name__ == "__main__":
    main()
