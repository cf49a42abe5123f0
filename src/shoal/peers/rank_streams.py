"""An order that is made of streams, one for every worker of every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.vectorized import expand
from shoal.order.protocol import as_ids, as_span, chunk_starts
from shoal.peers.loader_batches import LoaderBatches

_SPAN = 1 << 17
_SPAN_OF_STREAM = 1 << 11  # so that a call of a stream is worth while
_MOST_SPAN = 1 << 21


class SampleStream(Protocol):
    """The samples of one worker, in its order."""

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids of the samples ``[start, stop)`` of the stream; cheap where the last call ended."""
        ...

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number in the stream of each sample id, all of which are in it."""
        ...


class RankStreams:
    """The order of one epoch of streams, of which no two have a sample in common.

    For a batch of as many samples as all ranks had together, and as many ranks, each rank gets its own stream again. A
    run at another world size has the same global batches, dealt otherwise.

    Parameters
    ----------
    batches
        The batches of the run.
    streams
        The streams of the workers of rank 0, then of rank 1, and so on.
    chunk_samples
        Samples of each chunk.
    stream_of
        Given sample ids, the number of the stream that has each; -1 for none.
    """

    num_canonical_nodes: ClassVar[int] = 1

    def __init__(
        self,
        batches: LoaderBatches,
        streams: Sequence[SampleStream],
        chunk_samples: NDArray[np.int64],
        stream_of: Any,
        *,
        version: int,
        parameters: Mapping[str, Any],
    ) -> None:
        self._batches, self._streams, self._stream_of = batches, tuple(streams), stream_of
        self.num_samples, self.version, self.parameters = batches.num_samples, version, parameters
        self._chunk_first_id = chunk_starts(chunk_samples)
        self.span = min(max(_SPAN, _SPAN_OF_STREAM * len(self._streams)), _MOST_SPAN)

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``[start, stop)``; O(num_streams) calls of streams."""
        first, end = as_span(start, stop, self.num_samples)
        if len(self._streams) == 1:
            return self._streams[0].ids(first, end)
        pieces = self._batches.pieces(first, end)
        by_stream = np.argsort(pieces.streams, kind="stable")
        positions, lengths = expand(pieces.begins[by_stream], pieces.ends[by_stream])
        cuts = np.flatnonzero(np.diff(pieces.streams[by_stream])) + 1
        found = np.empty(end - first, dtype=np.int64)
        at = 0
        for mine in np.split(np.arange(len(by_stream)), cuts) if len(by_stream) else ():
            # The samples of a stream come one after the other, without gaps.
            piece, count = by_stream[mine[0]], int(lengths[mine].sum())
            low = int(pieces.numbers[piece])
            found[positions[at : at + count] - first] = self._streams[pieces.streams[piece]].ids(low, low + count)
            at += count
        return found

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample ids at positions ``[start, stop)`` and the chunk of each."""
        ids = self.ids(start, stop)
        return ids, np.searchsorted(self._chunk_first_id, ids, side="right") - 1

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each sample id, -1 if no stream has it; as fast as its stream finds it."""
        wanted = as_ids(ids, int(self._chunk_first_id[-1]))
        streams, numbers = self._stream_of(wanted), np.zeros_like(wanted)
        for stream in np.unique(streams[streams >= 0]).tolist():
            mine = streams == stream
            numbers[mine] = self._streams[stream].numbers(wanted[mine])
        found, has = np.full(len(wanted), -1, dtype=np.int64), streams >= 0
        ranks, workers = np.divmod(streams[has], self._batches.num_workers)
        found[has] = self._batches.positions(ranks, workers, numbers[has])
        return found

    def first_of_step(self, step: int) -> int:
        """Return the first position of a step, in which every rank that has not ended has a batch."""
        return self._batches.first_of_step(step)

    def axis(
        self,
        positions: NDArray[np.int64],
        chunks: NDArray[np.int64],  # noqa: ARG002
        batches: NDArray[np.int64],  # noqa: ARG002
    ) -> NDArray[np.uint64]:
        """Return the rank whose sample each was."""
        return self._batches.locate(positions)[0].astype(np.uint64)
