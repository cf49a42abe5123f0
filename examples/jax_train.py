"""Train a small classifier on tar shards with JAX, on any number of processes, and go on after any stop.

    python examples/jax_train.py DATA CHECKPOINT
    python examples/jax_train.py DATA CHECKPOINT HOST:PORT NUM_PROCESSES PROCESS_ID   # once for each process

DATA is a directory of tar shards with the fields txt and cls. The checkpoint is written every few steps; stop the job
when you like, and go on with as many processes as you like: batches lie over all devices of all of them.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

import shoal
import shoal.jax

GLOBAL_BATCH = 24  # over all processes and devices: another number of them sees the same batches
NUM_EPOCHS = 2
SAVE_EVERY = 5


def features(sample: dict[str, bytes]) -> dict[str, Any]:
    """A text as counts of its letters, and its class."""
    letters = np.frombuffer(sample["txt"], dtype=np.uint8)
    return {"x": np.bincount(letters, minlength=128)[:128].astype(np.float32), "y": np.int32(sample["cls"])}


def loss_of(weights: Any, batch: dict[str, Any]) -> Any:
    """The mean over samples; the repeats that fill the last batch of an epoch do not count."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(batch["x"] @ weights), batch["y"][:, None], axis=1)[:, 0]
    real = ~batch["__pad__"]
    return -jnp.where(real, picked, 0).sum() / real.sum()


def step_of(everywhere: Any) -> Any:
    """One step of descent, compiled: the gradients of all processes are joined in it."""

    @partial(jax.jit, out_shardings=(everywhere, everywhere))
    def step(weights: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
        loss, gradient = jax.value_and_grad(loss_of)(weights, batch)
        return weights - 1e-3 * gradient, loss

    return step


def save(checkpoint: Path, weights: Any, state: dict[str, Any], step: int) -> None:
    """A checkpoint in one file; a stop in the middle leaves the old one."""
    part = checkpoint.with_suffix(".part.npz")
    np.savez(part, weights=np.asarray(weights), loader=json.dumps(state), step=step)
    part.rename(checkpoint)


def main() -> None:
    """Train, and save where we are."""
    data, checkpoint = sys.argv[1], Path(sys.argv[2])
    if sys.argv[3:]:
        jax.distributed.initialize(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    ds = shoal.open(data).shuffle(seed=0, window="1GiB").map(features)
    ds = ds.batch(global_batch_size=GLOBAL_BATCH, remainder="pad")  # JAX wants batches of one shape
    batches = iter(shoal.jax.DataLoader(ds, sharding=rows, num_epochs=NUM_EPOCHS))

    weights, number = np.zeros((128, 10), np.float32), 0
    if checkpoint.exists():
        saved = np.load(checkpoint)
        weights, number = saved["weights"], int(saved["step"])
        batches.set_state(json.loads(str(saved["loader"])))  # the same file in every process
    weights, step = jax.device_put(weights, everywhere), step_of(everywhere)
    for batch in batches:
        weights, loss = step(weights, batch)
        number += 1
        if number % SAVE_EVERY == 0:
            if jax.process_index() == 0:
                state = batches.get_state()
                save(checkpoint, weights, state, number)
                print(f"epoch {state['epoch']}, step {number}: loss {float(loss):.3f}")
            if jax.process_count() > 1:
                multihost_utils.sync_global_devices("saved")


if __name__ == "__main__":
    main()
