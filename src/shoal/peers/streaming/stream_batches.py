"""Batches of Streaming with fixed parts of each stream, or with samples of a single stream.

Each stream is shuffled separately, with the same seed, and its rows are read as in `Rows`. Batches come until the first
stream ends (stratified) or until all streams end (per_stream, device_per_stream), without incomplete batches:

* *stratified*: global batches with a fixed number of samples of each stream, by its part of the epoch;
* *per_stream*: global batches of one stream, in random order;
* *device_per_stream*: batches of a rank of one stream, in random order for each physical node; the batches of nodes
  alternate.

References
----------
``streaming/base/batching/stratified.py``, ``per_stream.py`` and ``device_per_stream.py`` of mosaicml-streaming 0.13.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.peers.streaming.canonical_rows import Rows, part_starts
from shoal.peers.streaming.streaming_shuffles import Ids

BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")


class BatchShape(NamedTuple):
    """Numbers of canonical nodes, of physical nodes and of ranks, and the batch size of a rank."""

    canonical_nodes: int
    nodes: int
    ranks_per_node: int
    batch_size: int
    parity: bool

    @property
    def global_batch(self) -> int:
        """Samples of a batch of all ranks."""
        return self.nodes * self.ranks_per_node * self.batch_size

    def rows(self, num_samples: int, batching: str) -> Rows:
        """Return the rows of a stream with this number of samples."""
        if not self.parity:
            return Rows.once(num_samples, self.canonical_nodes)
        nodes = {"stratified": 1, "device_per_stream": self.canonical_nodes}.get(batching, self.nodes)
        return Rows.padded(num_samples, self.canonical_nodes, num_nodes=nodes, ranks_per_node=self.ranks_per_node)


def portions(proportions: NDArray[np.float64], global_batch: int) -> NDArray[np.int64]:
    """Return the samples of each stream in a stratified global batch: its share, rounded down or up.

    Raises `UsageError` if a stream has no sample in a batch.
    """
    counts = np.array([int(part * global_batch) for part in proportions])
    lacking = global_batch - int(counts.sum())
    left = global_batch * proportions - counts
    counts[np.flip(np.argsort(left))[:lacking]] += 1
    if not counts.all():
        msg = f"stream {int(np.argmin(counts))} has no sample in a global batch of {global_batch}"
        raise UsageError(msg, hint="set a larger batch_size, or give this stream a larger part")
    return counts


def num_batched(batching: str, shape: BatchShape, samples: NDArray[np.int64], proportions: NDArray[np.float64]) -> int:
    """Return the number of samples in an epoch of streams with these numbers of samples."""
    lengths = [len(shape.rows(_whole(count), batching)) for count in samples.tolist()]
    if batching == "stratified":
        parts = portions(proportions, shape.global_batch).tolist()
        return shape.global_batch * min(length // int(part) for length, part in zip(lengths, parts, strict=True))
    if batching == "per_stream":
        return sum(_whole(length // shape.global_batch) for length in lengths) * shape.global_batch
    per_node = [_node_lengths(count, shape).tolist() for count in samples.tolist()]
    return sum(_whole(length // shape.batch_size) for of_nodes in per_node for length in of_nodes) * shape.batch_size


def batched_ids(
    batching: str, shape: BatchShape, streams: Sequence[Ids], proportions: NDArray[np.float64], rng: np.random.Generator
) -> Ids:
    """Return the ids of an epoch by position, from the shuffled ids of streams; O(num_samples)."""
    if batching == "device_per_stream":
        return _device_per_stream(shape, streams, rng)
    flat = [ids[(rows := shape.rows(len(ids), batching)).numbers(0, len(rows))] for ids in streams]
    if batching == "stratified":
        parts = portions(proportions, shape.global_batch).tolist()
        count = min(len(ids) // part for ids, part in zip(flat, parts, strict=True))
        columns = [ids[: count * part].reshape(count, part) for ids, part in zip(flat, parts, strict=True)]
        return np.concatenate(columns, axis=1).reshape(-1)
    batches = [ids[: len(ids) // shape.global_batch * shape.global_batch] for ids in flat]
    return _in_turns([ids.reshape(-1, shape.global_batch) for ids in batches], rng).reshape(-1)


def _in_turns(batches: Sequence[Ids], rng: np.random.Generator) -> Ids:
    """Merge the batches of streams, of shape (num_batches, size) each, in random turns; streams keep their order."""
    origins = np.repeat(np.arange(len(batches)), [_whole(len(of_stream)) for of_stream in batches])
    rng.shuffle(origins)
    ids = np.empty((len(origins), batches[0].shape[1]), dtype=batches[0].dtype)
    for stream, of_stream in enumerate(batches):
        ids[origins == stream] = of_stream
    return ids


def _device_per_stream(shape: BatchShape, streams: Sequence[Ids], rng: np.random.Generator) -> Ids:
    nodes, size = shape.nodes, shape.batch_size
    shares = [_node_shares(ids, shape) for ids in streams]
    of_nodes = []
    for node in range(nodes):
        batches = [of_stream[node] for of_stream in shares]
        of_nodes.append(_in_turns([ids[: len(ids) // size * size].reshape(-1, size) for ids in batches], rng))
    # The batches of nodes alternate; finished nodes are skipped.
    turns = np.concatenate([np.arange(len(batches)) * nodes + node for node, batches in enumerate(of_nodes)])
    return np.concatenate(of_nodes)[np.argsort(turns)].reshape(-1)


def _node_shares(ids: Ids, shape: BatchShape) -> list[Ids]:
    """Return the samples of a stream for each physical node: its rows, in turns of one sample per rank."""
    rows = shape.rows(len(ids), "device_per_stream")
    numbers = rows.numbers(0, len(rows))
    column, row = np.divmod(np.arange(len(numbers)), shape.canonical_nodes)
    if not shape.parity:  # the last column lists the longer rows only
        last = len(rows.starts) * rows.width
        row[last:] = np.searchsorted(rows.starts, numbers[last:], side="right") - 1
    of_node = row // (shape.canonical_nodes // shape.nodes)
    in_turn = np.lexsort((column, row, column // shape.ranks_per_node, of_node))
    numbers, cuts = numbers[in_turn], np.searchsorted(of_node[in_turn], np.arange(1, shape.nodes))
    return [ids[share] for share in np.split(numbers, cuts)]


def _node_lengths(num_samples: int, shape: BatchShape) -> NDArray[np.int64]:
    """Return the number of samples of a stream on each physical node."""
    if shape.parity:
        return np.full(shape.nodes, len(shape.rows(num_samples, "device_per_stream")) // shape.nodes)
    rows_per_node = shape.canonical_nodes // shape.nodes
    counts: NDArray[np.int64] = (
        np.diff(part_starts(num_samples, shape.canonical_nodes)).reshape(-1, rows_per_node).sum(axis=1)
    )
    return counts


def _whole(num_batches: int) -> int:
    if not num_batches:
        msg = "a stream has too few samples for a single batch"
        raise UsageError(msg, hint="set a smaller batch_size, or give this stream more samples")
    return num_batches
