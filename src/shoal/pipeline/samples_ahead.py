"""The samples that are made ahead of their batch: by threads that decode, and by functions that process several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from shoal.index.table import SampleIndex
from shoal.pipeline.batch_rows import BatchRows
from shoal.pipeline.concurrent_stages import ConcurrentStages
from shoal.pipeline.decode_pool import Decoders, Threaded
from shoal.pipeline.stages.stage import Stage


class SamplesAhead(Protocol):
    """A maker of samples ahead of their batch."""

    num_stages: int
    """Number of first stages that samples have gone through."""

    def samples(self, samples: Iterator[Any], ids: Sequence[int]) -> Iterator[Any]:
        """Yield each sample after the first stages, given samples and their ids."""

    def batches(
        self, samples: Iterator[Any], ids: Sequence[int], sizes: Sequence[int], memory_of: Callable[[int], BatchRows]
    ) -> Iterator[tuple[list[Any], BatchRows]]:
        """Yield the samples of batches of these sizes after the first stages, each with the memory of the batch."""

    def close(self) -> None:
        """Stop making samples."""


def samples_ahead(
    stages: Sequence[Stage],
    threaded: Threaded | None,
    *,
    index: SampleIndex | None,
    forgiving: bool,
    limit_bytes: int,
    timed: Callable[[tuple[Stage, ...]], tuple[Stage, ...]],
) -> SamplesAhead | None:
    """Return the maker of samples ahead of their batch; None if all stages run as the batch is made.

    ``timed`` returns stages that record their times, for one thread.
    """
    decoders = None if threaded is None else Decoders(stages, threaded, index=index, forgiving=forgiving)
    if not any(stage.max_concurrency for stage in stages):
        return decoders
    return ConcurrentStages(stages, decoders, index=index, forgiving=forgiving, limit_bytes=limit_bytes, timed=timed)
