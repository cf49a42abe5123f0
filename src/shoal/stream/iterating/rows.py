"""The rows of batches: a row is a sample, or several (`shoal.stream.sequences`); the kind of rows needs a batcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.position_subsets import Gaps
from shoal.pipeline.sequence_arrays import PaddedFields, SequenceFields
from shoal.pipeline.stages.map_and_filter import filters_in
from shoal.pipeline.stages.stage import Stage
from shoal.reading.order_request import Selection
from shoal.reading.resolved_epochs import BatchSegments, Source
from shoal.reading.resolved_order import Resolved
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.cut_batches import CutBatches
from shoal.stream.iterating.single_samples import KEPT, SingleSamples


class Rows:
    """Rows that are samples; a subclass makes rows of several."""

    __slots__ = ()

    verb = ""
    """The call that groups samples; "" if none does."""

    noun = "samples"
    """The stored samples that rows are made of."""

    needs_index = False
    """True if rows follow from columns of the index."""

    @property
    def words(self) -> list[str]:
        """The grouping in words."""
        return []

    @property
    def made_fields(self) -> SequenceFields | PaddedFields | None:
        """The fields of a row that is made of several samples."""
        return None

    def batcher(self, source: Source, stages: Sequence[Stage], *, batched: bool) -> Batcher:  # noqa: ARG002
        """Return the `Batcher` of samples from a source that go through these stages."""
        return CutBatches() if batched else SingleSamples(KEPT * any(filters_in(stages)))

    def resolved(
        self, resolved: Callable[[Selection], Resolved], selection: Callable[[Gaps], Selection], gaps: Gaps
    ) -> Resolved:
        """Return the epochs of rows. ``resolved`` gives epochs of selected samples; ``gaps`` are positions of rows."""
        return resolved(selection(gaps))

    def segments_in(self, resolved: Resolved, epoch: int, rows: NDArray[np.int64]) -> BatchSegments:  # noqa: ARG002
        """Return the pieces of documents in some rows of an epoch; `UsageError` if samples are not packed."""
        msg = "batch_segments() tells the documents of sequences, but the samples of this dataset are not packed"
        raise UsageError(msg, hint="batch_ids() tells the samples of a batch; pack_sequences() packs documents")
