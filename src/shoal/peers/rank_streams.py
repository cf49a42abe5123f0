"""An order made of streams: one stream for every worker of every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.vectorized import expand
from shoal.order.protocol import Order
from shoal.peers.loader_batches import LoaderBatches
from shoal.peers.peer_epoch import PeerEpoch, RepeatingEpoch

_SPAN = 1 << 17
_SPAN_OF_STREAM = 1 << 11  # shorter spans make calls of streams too expensive
_MOST_SPAN = 1 << 21


class SampleStream(Protocol):
    """The samples of one worker, in its order."""

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids of the samples ``[start, stop)`` of the stream; cheap from the end of the last call on."""

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each sample id in the stream."""


class RankStreams(PeerEpoch):
    """The order of one epoch of streams; streams have no common samples.

    With the global batch and the world size of the library's run, each rank gets its own stream. A run at another world
    size has the same global batches, divided differently among ranks.

    Parameters
    ----------
    order
        The order; the epoch has its version and parameters.
    batches
        The batches of the run.
    streams
        The streams of the workers of rank 0, then of rank 1, and so on.
    chunk_samples
        Samples of each chunk.
    stream_of
        Returns the number of the stream of each sample id, -1 for no stream; None if samples repeat.
    """

    def __init__(
        self,
        order: Order,
        batches: LoaderBatches,
        streams: Sequence[SampleStream],
        chunk_samples: NDArray[np.int64],
        stream_of: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None,
    ) -> None:
        super().__init__(order, chunk_samples, batches.num_samples)
        self._batches, self._streams, self._stream_of = batches, tuple(streams), stream_of
        self.span = min(max(_SPAN, _SPAN_OF_STREAM * len(self._streams)), _MOST_SPAN)

    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids; O(num_streams) calls of streams."""
        if len(self._streams) == 1:
            return self._streams[0].ids(start, stop)
        pieces = self._batches.pieces(start, stop)
        by_stream = np.argsort(pieces.streams, kind="stable")
        positions, lengths = expand(pieces.begins[by_stream], pieces.ends[by_stream])
        cuts = np.flatnonzero(np.diff(pieces.streams[by_stream])) + 1
        ids = np.empty(stop - start, dtype=np.int64)
        at = 0
        for rows in np.split(np.arange(len(by_stream)), cuts) if len(by_stream) else ():
            # The samples of a stream come one after another, without gaps.
            piece, count = by_stream[rows[0]], int(lengths[rows].sum())
            low = int(pieces.numbers[piece])
            ids[positions[at : at + count] - start] = self._streams[pieces.streams[piece]].ids(low, low + count)
            at += count
        return ids

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each sample id, as fast as its stream finds it."""
        assert self._stream_of is not None  # noqa: S101  # samples that repeat have a table
        streams, numbers = self._stream_of(ids), np.zeros_like(ids)
        for stream in np.unique(streams[streams >= 0]).tolist():
            in_stream = streams == stream
            numbers[in_stream] = self._streams[stream].numbers(ids[in_stream])
        positions, has_position = np.full(len(ids), -1, dtype=np.int64), streams >= 0
        ranks, workers = np.divmod(streams[has_position], self._batches.num_workers)
        positions[has_position] = self._batches.positions(ranks, workers, numbers[has_position])
        return positions

    def first_of_step(self, step: int) -> int:
        """Return the first position of a step; every unfinished rank has a batch in a step."""
        return self._batches.first_of_step(step)

    def _rank_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._batches.locate(positions)[0]


class RepeatingStreams(RepeatingEpoch, RankStreams):
    """The order of one epoch of streams with repeated or missing samples."""
