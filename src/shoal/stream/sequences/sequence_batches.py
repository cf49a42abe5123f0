"""Sequences of a rank, or batches by length: their documents, and their arrays."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.partition import Share
from shoal.order.sequences.packed_order import OrderOfPieces, Pieces
from shoal.pipeline.mask_totals import MaskTotals
from shoal.pipeline.quarantine import SKIPPED
from shoal.pipeline.sequence_arrays import PaddedFields, SequenceFields
from shoal.pipeline.stages.stage import DROPPED
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stats.counters import Counters
from shoal.stream.iterating.batch_context import BatchContext
from shoal.stream.iterating.batcher import Batcher, Received, WholeBatches
from shoal.stream.iterating.shares import ReadSpan, Shares
from shoal.stream.iterating.source_reading import Reading
from shoal.stream.states.delivery_sums import Proof
from shoal.stream.states.iterator_position import Position


@dataclass(frozen=True)
class SequenceBatches(Batcher):
    """Batches of sequences, or batches by length, if the index has the lengths of documents."""

    fields: SequenceFields | PaddedFields
    masks: MaskTotals = field(default_factory=MaskTotals, compare=False)
    counts_tokens = weighs = True

    @property
    def makes_arrays(self) -> bool:  # type: ignore[override]
        """True for sequences; batches by length are collated."""
        return isinstance(self.fields, SequenceFields)

    @property
    def counts_samples(self) -> bool:  # type: ignore[override]
        """True for sequences; the lengths of documents determine the size of a batch by length."""
        return isinstance(self.fields, SequenceFields)

    def batches(self, shares: Shares, reading: Reading, context: BatchContext) -> Iterator[Any]:
        """Return an iterator over the batches, or over single sequences."""
        context.sum_deliveries()
        resolved = cast("ResolvedSequences", context.resolved)
        order = resolved.untouched(context.position.epoch)
        sequences = SequenceShares(order, self.fields, resolved.lengths, self.masks)
        return sequences.batches(reading.spans(sequences.of_documents(shares), context.quarantine), context)

    def of_worker(self) -> Batcher:
        """Return the batcher that sends the counts of masks with each batch."""
        return _SentBatches(self.fields, MaskTotals(warns=False))

    def received(
        self,
        position: Position,
        context: Callable[[], BatchContext],  # noqa: ARG002
        finish: Callable[[Any], Any] | None,
    ) -> Received:
        """Return the receiver of batches and their counts of masks."""
        return _ReceivedBatches(position, finish, self.masks)


@dataclass(frozen=True)
class _SentBatches(SequenceBatches):
    """Batches of a worker process, each with its counts of masks."""

    def batches(self, shares: Shares, reading: Reading, context: BatchContext) -> Iterator[Any]:
        """Return an iterator over the batches and their counts."""
        return ((batch, self.masks.take()) for batch in super().batches(shares, reading, context))


class _ReceivedBatches(WholeBatches):
    """Whole batches from workers, whose masks are counted here."""

    def __init__(self, position: Position, finish: Callable[[Any], Any] | None, masks: MaskTotals) -> None:
        super().__init__(position, finish)
        self._masks = masks

    def add(self, made: Any, proof: Proof) -> None:
        """Append a batch, and count its masks."""
        batch, counts = made
        super().add(batch, proof)
        self._masks.add(counts)


class SequenceShares:
    """Shares of sequences as shares of their documents, span by span.

    A span is planned before the last span is made: ``_waiting`` has the planned spans.
    """

    def __init__(
        self,
        order: OrderOfPieces,
        fields: SequenceFields | PaddedFields,
        lengths: NDArray[np.integer[Any]],
        masks: MaskTotals,
    ) -> None:
        self._order, self._fields, self._lengths, self._masks = order, fields, lengths, masks
        self._waiting: deque[tuple[Share, Pieces]] = deque()

    def of_documents(self, shares: Shares) -> Shares:
        """Yield the documents of each share of sequences, a document per piece."""
        for share, steps in shares:
            pieces = self._order.pieces(share.ids)
            self._waiting.append((share, pieces))
            repeated = np.repeat(share.repeated, np.diff(pieces.first))
            first = pieces.first[share.batch_first]
            yield Share(pieces.ids, pieces.positions, pieces.chunks, repeated, first), steps

    def batches(self, spans: Iterator[ReadSpan], context: BatchContext) -> Iterator[Any]:
        """Yield batch after batch of sequences, or sequence after sequence without batches."""
        position, deliver, batched = context.position, context.deliverer, context.pipeline.partition.batched
        for span in spans:
            share, pieces = self._waiting.popleft()
            samples = context.samples(span)
            for step, (begin, end) in zip(span.steps, itertools.pairwise(share.batch_first.tolist()), strict=True):
                position.num_yielded = step
                if begin < end:
                    arrays = self._made(samples, pieces, begin, end, context)
                    repeated = share.repeated[begin:end]
                    if isinstance(self._fields, PaddedFields):  # a row for each document
                        repeated = np.repeat(repeated, np.diff(pieces.first[begin : end + 1]))
                    batch = deliver(arrays, repeated) if batched else _alone(arrays, context)
                    position.num_yielded = step + 1  # advance only now: a failed batch is not yielded
                    yield batch
                position.num_yielded = step + 1

    def _made(
        self, samples: Iterator[Any], pieces: Pieces, begin: int, end: int, context: BatchContext
    ) -> dict[str, Any]:
        """Make the arrays of the sequences ``[begin, end)`` of a span."""
        low, high = int(pieces.first[begin]), int(pieces.first[end])
        process, ids = context.process, pieces.ids[low:high].tolist()
        columns, documents, fields = list[Any](), [], self._fields
        for sample_id, sample in zip(ids, itertools.islice(samples, high - low), strict=True):
            result = process(sample, sample_id) if process else sample
            if result is DROPPED or result is SKIPPED:
                msg = f"the sample with id {sample_id} was left out, but its sequence is already packed"
                raise UsageError(msg, hint="select() leaves documents out before they are packed")
            columns.append(fields.columns_of(result, int(self._lengths[sample_id]), sample_id))
            documents.append(result)
        starts, stops = pieces.starts[low:high], pieces.stops[low:high]
        if isinstance(fields, PaddedFields):
            arrays = fields.arrays(documents, columns, starts, stops, context.pipeline.collator)
            num_places = arrays["attention_mask"].size
        else:
            first = pieces.first[begin : end + 1] - low
            arrays, mask_counts = fields.arrays(columns, first, starts, stops, pieces.ids[low:high])
            self._masks.add(mask_counts)
            num_places = (end - begin) * fields.length
        count_pieces(context.counters, num_places, starts, stops, self._lengths[pieces.ids[low:high]])
        return arrays


def count_pieces(
    counters: Counters,
    num_places: int,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    lengths: NDArray[np.integer[Any]],
) -> None:
    """Count the tokens and padding of pieces, and the documents with a cut first piece; ``lengths`` are documents'."""
    num_tokens = int((np.minimum(stops, lengths.astype(np.int64)) - starts).sum())
    counters.num_tokens += num_tokens
    counters.num_padding_tokens += num_places - num_tokens
    counters.num_cut_documents += int(np.count_nonzero((starts == 0) & (stops < lengths)))


def _alone(arrays: dict[str, NDArray[Any]], context: BatchContext) -> Any:
    """Count a single sequence; return its fields, after the stages of a batch of one, formatted."""
    for stage in context.pipeline.batch_stages:
        arrays = stage(arrays, -1)
    context.counters.num_samples += 1
    sequence = {name: values[0] if values.ndim > 1 else values for name, values in arrays.items()}
    formatting = context.pipeline.formatting
    return sequence if formatting.name is None else formatting.sample(sequence)
