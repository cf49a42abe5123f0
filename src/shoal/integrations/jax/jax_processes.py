"""The comparison of everything that the processes of a JAX job must agree on, made once."""

from __future__ import annotations

import json

import numpy as np

from shoal.errors import UsageError
from shoal.integrations.jax.jax_library import jax_library
from shoal.integrations.jax.jax_loader import DataLoader
from shoal.stream.dataset import Dataset
from shoal.stream.ranks import check_agreement

_MOST_BYTES = 4096


def compare_ranks(source: Dataset | DataLoader) -> None:
    """Check once that all processes are about to train on the same data; call it in every process, before the loop.

    It compares dataset, seed, order, epoch, position, batch size and the number of ranks; and checks that each part of
    the samples has an owner, and all parts equally many. It makes one collective call with 4 KiB from each process;
    with one process there is nothing to compare.

    Raises
    ------
    UsageError
        Processes differ; raised in all of them, with the ranks, the fields and both sides.
    """
    jax = jax_library()
    if jax.process_count() == 1:
        return
    from jax.experimental import multihost_utils  # noqa: PLC0415  # optional, like jax itself

    dataset = source.dataset if isinstance(source, DataLoader) else source
    settings = json.dumps(dataset.stream.iterator_spec().settings()).encode()
    if len(settings) > _MOST_BYTES:
        msg = f"what this process would tell the others has {len(settings)} bytes; {_MOST_BYTES} are the most"
        raise UsageError(msg, hint="an order of your own with large parameters? give it smaller ones")
    padded = np.zeros(_MOST_BYTES, dtype=np.uint8)
    padded[: len(settings)] = np.frombuffer(settings, dtype=np.uint8)
    everybody = np.asarray(multihost_utils.process_allgather(padded))
    check_agreement([tuple(json.loads(row.tobytes().rstrip(b"\0"))) for row in everybody])
