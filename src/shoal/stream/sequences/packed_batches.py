"""Sequences packed from the documents of a rank as they come, if the index has no lengths.

Documents are packed in groups: the next ``block`` documents that a rank has read and kept, up to the next change of
weights. A group begins where the last group ends, so a rank that resumes at the start of a group packs the same groups,
and yields the rest of the open group.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import StateError, UsageError
from shoal.figures import counted
from shoal.order.arrays.permutation import permute
from shoal.order.partition import Partition
from shoal.order.protocol import Changing
from shoal.order.seeds import key
from shoal.order.sequences.groupings import Packing
from shoal.order.sequences.packing_strategies import PackedBlock
from shoal.order.states.checked_states import changed_hint
from shoal.order.states.state_fields import STATE
from shoal.pipeline.mask_totals import MaskTotals
from shoal.pipeline.packed_fields import PackedDocument
from shoal.pipeline.sequence_arrays import SequenceFields
from shoal.stream.iterating.batch_context import BatchContext
from shoal.stream.refilling.filled_batches import BatchFiller, FilledBatches, Part
from shoal.stream.sequences.sequence_batches import count_pieces
from shoal.stream.states.delivery_sums import Proof
from shoal.stream.verbs.dataset_requests import Batching


@dataclass(frozen=True)
class PackedAsTheyCome(FilledBatches):
    """Batches of sequences that a rank packs while it reads the documents of its share."""

    packing: Packing
    fields: SequenceFields
    masks: MaskTotals = field(default_factory=MaskTotals, compare=False)
    counts_tokens = makes_arrays = True
    verb = "pack_sequences(lengths=None)"
    unknown = "sequences documents fill"
    ids_field = "document_ids"

    @property
    def note(self) -> str:  # type: ignore[override]
        """Description of the documents missing in a certificate of an unfinished epoch."""
        group = f"a group of {counted(self.packing.block, 'document')} that {self.verb} packs counts once all "
        return group + "its sequences are delivered"

    def partition(self, batching: Batching | None, world_size: int) -> Partition:
        """Return the partition for ranks that pack documents."""
        packing = None if batching is None else self.packing.to_dict()
        return replace(super().partition(batching, world_size), packing=packing)

    def filler(self, context: BatchContext, parts: Iterator[Part]) -> BatchFiller:
        """Return the filler that packs the documents of a share into batches of sequences."""
        return SequenceFiller(context, parts, self.packing, self.fields, self.masks)

    def kept(self, context: BatchContext) -> Callable[[Any, int, int], list[_Document]]:  # noqa: ARG002
        """Return the function from a document to its packed fields and its id."""
        most = self.packing.length if self.packing.too_long == "refuse" else None

        def packed(document: Any, sample_id: int, _: int) -> list[_Document]:
            return [(self.fields.columns_of(document, sample_id=sample_id, num_tokens=None, most=most), sample_id)]

        return packed


_Document = tuple[PackedDocument, int]
"""The packed fields of a document, and its id."""


class _Group(NamedTuple):
    """Packed documents, their sequences in the order of yielding, and the counts after each sequence.

    ``end`` is the number of samples of the share up to and including the last document; ``proof`` sums up all
    documents.
    """

    documents: list[_Document]
    block: PackedBlock
    order: list[int]
    end: int
    proof: Proof


class SequenceFiller(BatchFiller):
    """Pack the documents in parts into batches of sequences."""

    def __init__(
        self,
        context: BatchContext,
        parts: Iterator[Part],
        packing: Packing,
        fields: SequenceFields,
        masks: MaskTotals,
    ) -> None:
        super().__init__(context, parts)
        self._packing, self._fields, self._masks = packing, fields, masks
        self._key = (context.resolved.seed, context.position.epoch)
        self._groups: deque[_Group] = deque()
        self._packed_up_to = context.position.num_yielded
        self._borders = _borders(context)

    def add(self, part: Part) -> None:
        """Append a part, without documents that were taken before, and pack all full groups."""
        super().add(part)
        while num_documents := self._num_due():
            self._pack(num_documents)

    def _num_due(self) -> int:
        """Return the number of waiting documents that make a whole group; 0 while the group is incomplete."""
        counts, block = self._waiting.counts, self._packing.block
        if not counts:
            return 0
        place = bisect_left(self._borders, counts[0])
        before = bisect_right(counts, self._borders[place]) if place < len(self._borders) else len(counts)
        if before >= block:
            return block
        return before if before < len(counts) else 0

    def close(self) -> None:
        """Pack the remaining documents."""
        if self._waiting.samples:
            self._pack(len(self._waiting.samples))
        if self.num_ready < 0:
            num_taken = self._position.num_sequences
            msg = f"{num_taken} sequences are taken in the state, but the documents fill {num_taken + self.num_ready}"
            raise StateError(msg, hint=changed_hint(STATE))

    @property
    def num_ready(self) -> int:
        """Number of packed sequences that are not yet yielded."""
        return sum(len(group.order) for group in self._groups) - self._position.num_sequences

    def end(self) -> None:
        """Record the end of the share; `UsageError` if the documents of a whole epoch fill no sequence."""
        position = self._position
        has_none = not (position.start or position.num_yielded or self._groups or self._context.resolved.deals)
        if has_none and position.num_steps:
            msg = f"the {position.num_steps:,} documents of rank {position.rank} in epoch {position.epoch} "
            msg += "fill no sequence: the documents have no tokens or too many tokens, or a filter drops the documents"
            raise UsageError(msg, hint="try the stages on ds[0]")
        super().end()
        position.num_sequences = 0
        self._groups.clear()  # the sequences that remainder="drop" leaves over are not due again

    def _pack(self, num_documents: int) -> None:
        """Pack the first waiting documents as one group."""
        documents, counts, hashes, _ = self._waiting
        self._waiting = Part(documents[num_documents:], counts[num_documents:], hashes[num_documents:])
        documents, hashes = documents[:num_documents], hashes[:num_documents]
        lengths = np.array([document.num_tokens for document, _ in documents], dtype=np.int64)
        block = self._packing.packed(lengths)
        numbers = np.arange(block.num_sequences)
        if len(numbers):
            numbers = permute(numbers, len(numbers), key(*self._key, "sequences", self._packed_up_to))
        self._packed_up_to = counts[num_documents - 1]
        if self._packing.too_long == "drop":
            kept = lengths <= self._packing.length
            self._context.counters.num_dropped_documents += num_documents - int(kept.sum())
            hashes = hashes[kept]
        if len(numbers):  # else all documents are empty
            proof = Proof(len(hashes), int(hashes.sum(dtype=np.uint64)))
            self._groups.append(_Group(documents, block, numbers.tolist(), self._packed_up_to, proof))

    def __next__(self) -> Any:
        """Return the next batch; ``remainder="pad"`` fills the last one with repeats."""
        num_sequences = self._num_rows()
        repeated = self._repeated(num_sequences)
        taken, chosen = self._position.num_sequences, list[tuple[_Group, int]]()
        for group in self._groups:
            chosen += zip(itertools.repeat(group), group.order[taken : taken + num_sequences - len(chosen)])
            taken = max(0, taken - len(group.order))
        rows = list(itertools.islice(itertools.cycle(chosen), len(repeated)))
        documents, first, starts, stops = list[_Document](), [0], [], []
        for group, sequence in rows:
            pieces = slice(*group.block.first_piece[sequence : sequence + 2].tolist())
            documents += [group.documents[number] for number in group.block.document[pieces].tolist()]
            starts += group.block.start[pieces].tolist()
            stops += group.block.stop[pieces].tolist()
            first.append(len(documents))
        spans = (np.array(starts, dtype=np.int64), np.array(stops, dtype=np.int64))
        packed_documents = [document for document, _ in documents]
        ids = np.array([sample_id for _, sample_id in documents], dtype=np.int64)
        arrays, mask_counts = self._fields.arrays(packed_documents, np.array(first, dtype=np.int64), *spans, ids)
        self._masks.add(mask_counts)
        batch = self._deliver(arrays, repeated)
        lengths = np.array([document.num_tokens for document in packed_documents], dtype=np.int64)
        count_pieces(self._context.counters, len(rows) * self._fields.length, *spans, lengths)
        self._advance(num_sequences)  # advance only now: a failed batch is not yielded
        return batch

    def _advance(self, num_sequences: int) -> None:
        """Advance by this many sequences, and count the documents of finished groups."""
        position = self._position
        position.num_sequences += num_sequences
        while self._groups and position.num_sequences >= len(self._groups[0].order):
            group = self._groups.popleft()
            position.num_sequences -= len(group.order)
            self._go_to(group.end)
            position.received = position.received.plus(group.proof)


def _borders(context: BatchContext) -> list[int]:
    """Return the samples of the rank's share before each change of weights, in whole global batches."""
    position = context.position
    order, partition = context.resolved.untouched(position.epoch), position.partition
    if not isinstance(order, Changing):
        return []
    numbers = (context.resolved.number_of(position.epoch, change) - position.start for change in order.changes)
    size = partition.size_of(context.pipeline.rank)
    return [number // partition.global_batch * size for number in numbers if number >= partition.global_batch]
