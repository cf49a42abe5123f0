"""An order that is made of streams, one for every worker of every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.order.peers.loader_batches import LoaderBatches
from shoal.order.protocol import as_ids, as_span, chunk_starts

_SPAN = 1 << 17


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
    span: ClassVar[int] = _SPAN

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

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``[start, stop)``; O(num_streams) calls of streams."""
        first, end = as_span(start, stop, self.num_samples)
        ranks, workers, numbers = self._batches.locate(np.arange(first, end))
        streams = ranks * self._batches.num_workers + workers
        found = np.empty(end - first, dtype=np.int64)
        by_stream = np.argsort(streams, kind="stable")
        cuts = np.flatnonzero(np.diff(streams[by_stream])) + 1
        for mine in np.split(by_stream, cuts) if len(by_stream) else ():
            # Ascending, and without gaps: the numbers of a stream come one after the other.
            low, high = int(numbers[mine[0]]), int(numbers[mine[-1]]) + 1
            found[mine] = self._streams[int(streams[mine[0]])].ids(low, high)
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

    def axis(
        self,
        positions: NDArray[np.int64],
        chunks: NDArray[np.int64],  # noqa: ARG002
        batches: NDArray[np.int64],  # noqa: ARG002
    ) -> NDArray[np.uint64]:
        """Return the rank whose sample each was."""
        return self._batches.locate(positions)[0].astype(np.uint64)
