"""The rows of batches: a row is one sample, or several samples (`shoal.stream.sequences`)."""

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
    """Rows of one sample each; subclasses make rows from several samples."""

    __slots__ = ()

    verb = ""
    """The call that groups samples; "" without grouping."""

    divider = ""
    """The call that makes several rows of a sample; "" if a row has at least one sample."""

    noun = "samples"
    """Noun for the stored samples behind the rows."""

    needs_index = False
    """True if rows follow from columns of the index."""

    @property
    def words(self) -> list[str]:
        """Description of the grouping for the summary of a dataset."""
        return []

    @property
    def made_fields(self) -> SequenceFields | PaddedFields | None:
        """The fields of a row made from several samples; None for a row of one sample."""
        return None

    def batcher(self, source: Source, stages: Sequence[Stage], *, batched: bool) -> Batcher:  # noqa: ARG002
        """Return the `Batcher` of samples from a source that go through these stages."""
        return CutBatches() if batched else SingleSamples(KEPT * any(filters_in(stages)))

    def stage(self, stage: Stage) -> Stage:
        """Return the stage that does this to rows."""
        return stage

    def in_chunks(self, num_chunks: int, num_document_chunks: int) -> Rows:  # noqa: ARG002
        """Return these rows, padded so that each row can be cut into ``num_chunks`` equal chunks of tokens.

        `UsageError` if rows are no sequences, or documents cannot be cut into ``num_document_chunks``.
        """
        if num_chunks == 1:
            return self
        msg = "partition(context_parallel=) slices sequences of one length, but "
        msg += f"{self.verb} pads each batch to its own length" if self.verb else "the samples are not packed"
        hint = "pack_sequences() before batch() makes sequences; partition(replicate=) gives ranks the same batches"
        raise UsageError(msg, hint=hint)

    def refilled_as(self, rows: Rows) -> Rows:
        """Return the rows after ``filter(refill=True)``: ``rows``, unless these rows fill batches already."""
        return rows

    def resolved(
        self, resolved: Callable[[Selection], Resolved], selection: Callable[[Gaps], Selection], gaps: Gaps
    ) -> Resolved:
        """Return the epochs of rows. ``resolved`` gives epochs of selected samples; ``gaps`` are positions of rows."""
        return resolved(selection(gaps))

    def segments_in(self, resolved: Resolved, epoch: int, rows: NDArray[np.int64]) -> BatchSegments:  # noqa: ARG002
        """Return the pieces of documents in some rows of an epoch; `UsageError` if samples are not packed."""
        msg = "batch_segments() tells the documents of sequences, but the samples of this dataset are not packed"
        raise UsageError(msg, hint="batch_ids() tells the samples of a batch; pack_sequences() packs documents")
