"""Checkpoints of ``IterableDataset`` and of loaders over it: the progress of a run.

A state has counters of the samples read, and no shuffle buffer. If the dataset comes in Arrow tables with known
features, the state also counts delivered samples, in ``batch_idx`` of the outermost ``RebatchedArrowExamplesIterable``.
Otherwise the number of arrived samples determines the number of emitted samples: exactly for a reservoir, to within a
flush for blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StateError

_HINT = "ds.load_state_dict(ds.state_at(position, epoch=epoch)) with the number of samples the run has seen"


class SavedLoader(NamedTuple):
    """A loader's number of workers, its batch size (0: unknown), and its number of yielded batches."""

    workers: int
    batch_size: int
    batches: int


class SavedRun(NamedTuple):
    """State of one stream, the epoch, and the loader or None."""

    stream: Mapping[str, Any]
    epoch: int
    loader: SavedLoader | None


def saved_run(checkpoint: Mapping[str, Any]) -> SavedRun | None:
    """Return the run in a state of ``IterableDataset`` or ``StatefulDataLoader``; None for other values."""
    saved = next(_streams(checkpoint), None)
    if saved is None:
        return None
    return SavedRun(saved["examples_iterable"], int(saved["epoch"]), _saved_loader(checkpoint))


def _saved_loader(checkpoint: Mapping[str, Any]) -> SavedLoader | None:
    if "_snapshot" in checkpoint:
        snapshot = checkpoint["_snapshot"]
        main = snapshot["_main_snapshot"]
        batches = int(snapshot["_snapshot_step"]) + int(checkpoint.get("_steps_since_snapshot", 0))
        return SavedLoader(int(main["_num_workers"]), _batch_size(main), batches)
    if "_num_yielded" in checkpoint:
        return SavedLoader(0, _batch_size(checkpoint), int(checkpoint["_num_yielded"]))
    return None


def _batch_size(loader: Mapping[str, Any]) -> int:
    batches, samples = loader.get("_sampler_iter_yielded"), (loader.get("_sampler_iter_state") or {})
    return int(samples.get("samples_yielded", 0)) // int(batches) if batches else 0


def _streams(state: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(state, Mapping):
        if "examples_iterable" in state and "epoch" in state:
            yield state
        else:
            for value in state.values():
                yield from _streams(value)


def delivered(stream: Mapping[str, Any]) -> int:
    """Return the number of samples delivered by a stream; 0 if the state does not count delivered samples."""
    is_counted = stream.get("type") == "RebatchedArrowExamplesIterable"
    return int(stream["batch_idx"]) if is_counted else 0


def arrived(stream: Mapping[str, Any], parts: list[NDArray[np.int64]], shard_samples: NDArray[np.int64]) -> int:
    """Return the number of samples arrived at the buffer from lists of shards in turn.

    Raises `StateError` if the state has other shards.
    """
    stream, counted = _innermost(stream), 0
    states = stream.get("previous_states", [stream])
    if len(states) != len(parts):
        msg = f"the state has {len(states)} lists of shards in turn; this order has {len(parts)}"
        raise StateError(msg, hint="use the dataset, release and max_buffer_input_shards= of the saved run")
    for state, shards in zip(states, parts, strict=True):
        if state is None:  # no sample of these shards was read
            continue
        reader = _innermost(state)
        before, inside = int(reader["shard_idx"]), int(reader["shard_example_idx"])
        samples = shard_samples[shards]
        if before > len(shards) or (inside and (before == len(shards) or inside > samples[before])):
            msg = f"the state is in shard {before} of a list at sample {inside}; the dataset has {samples.tolist()}"
            raise StateError(msg, hint="use the dataset and release of the saved run")
        counted += int(samples[:before].sum()) + inside
    return counted


def _innermost(state: Mapping[str, Any]) -> Mapping[str, Any]:
    while "examples_iterable" in state:
        state = state["examples_iterable"]
    return state


def only(low: int, high: int) -> int:
    """Return the number of delivered samples, or raise `StateError` if the number is not exact."""
    if low != high:
        msg = f"{low} to {high} samples had been delivered: this state of datasets has no exact number"
        raise StateError(msg, hint=_HINT)
    return low


def in_batches(samples: int, batch_size: int) -> int:
    """Return the number of batches taken by a rank, or raise `StateError` within a batch."""
    if samples % batch_size:
        msg = f"the rank of this state had {samples} samples, and these are not whole batches of {batch_size}"
        raise StateError(msg, hint=f"use a state saved between batches; or {_HINT}")
    return samples // batch_size


def of_one_process() -> StateError:
    """Return the error for a state of one of many processes."""
    msg = "the state is of one process, and does not count the samples of other processes"
    return StateError(msg, hint=f"the state of a StatefulDataLoader; or {_HINT}")


def check_loader(saved: SavedLoader, workers: int, batch_size: int) -> None:
    """Raise `StateError` unless a loader has the numbers of the order."""
    if saved.workers != workers or saved.batch_size not in {0, batch_size}:
        msg = f"the loader of this state had num_workers={saved.workers}, batch_size={saved.batch_size or 'unknown'}"
        hint = f"this order has num_workers={workers}, batch_size={batch_size}: set the loader's numbers"
        raise StateError(msg, hint=hint)
