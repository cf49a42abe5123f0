"""Arguments of `pack_sequences` and `batch_by_length`, and the lengths of documents in the index."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_choice, as_sequence, as_text
from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.index.table import Index
from shoal.indexing.opened_dataset import OpenedDataset
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.protocol import as_whole
from shoal.order.sequences.groupings import Grouping, LengthBatches, Packing
from shoal.pipeline.mask_totals import MaskTotals
from shoal.pipeline.packed_fields import LOSS_MASK, PackedField
from shoal.pipeline.sequence_arrays import DOCUMENT_IDS, EXTRAS, SOURCE_IDS, PaddedFields, SequenceFields
from shoal.pipeline.stages.stage import Stage, each_stage
from shoal.pipeline.stages.with_ids import WithIds
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.order_request import Selection
from shoal.reading.resolved_epochs import BatchSegments, Source
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stream.choosing.index_columns import column_names, lengths_of_column
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.rows import Rows
from shoal.stream.sequences.packed_batches import PackedAsTheyCome
from shoal.stream.sequences.packed_columns import packed_fields
from shoal.stream.sequences.sequence_batches import SequenceBatches

_BLOCK, _GROUP = 1 << 16, 1 << 10


@dataclass(frozen=True, slots=True)
class SequenceRequest(Rows):
    """The grouping of documents, the fields of a group, and the column of the index with the lengths of documents.

    If ``lengths`` is None, documents are packed as they come.
    """

    packing: Grouping
    fields: SequenceFields | PaddedFields
    lengths: str | None
    masks: MaskTotals = field(default_factory=MaskTotals, compare=False)

    @classmethod
    def packed(
        cls,
        length: int,
        key: str,
        strategy: str,
        lengths: str | None,
        block: int | None,
        too_long: str,
        separator: int | None,
        padding: int,
        extras: Sequence[str],
        fields: Sequence[str] | Mapping[str, float] = (),
        multiple_of: int = 1,
    ) -> SequenceRequest:
        """Return the request for the arguments of `Dataset.pack_sequences`; `UsageError` for invalid arguments."""
        named = (extras,) if isinstance(extras, str) else as_sequence("pack_sequences(extras=)", extras)
        for name in named:
            as_choice("each of pack_sequences(extras=)", name, EXTRAS)
        lengths = _column_of("pack_sequences", lengths)
        padding = as_whole("padding", padding)
        separator = None if separator is None else as_whole("separator", separator)
        tokens = PackedField(as_text("pack_sequences(key=)", key), padding, separator)
        others = packed_fields(fields, tokens.name)
        if LOSS_MASK in named and LOSS_MASK not in (other.name for other in others):
            others += (PackedField(LOSS_MASK, is_optional=True),)
        if block is None:
            block = _BLOCK if lengths is not None else _GROUP
        separated = lengths is None and separator is not None
        packing = Packing(length, strategy, block, too_long, separated=separated, multiple_of=multiple_of)
        return cls(packing, SequenceFields(packing.length, tokens, others, named), lengths)

    @classmethod
    def by_length(
        cls,
        size: int | None,
        max_tokens: int | None,
        buckets: Sequence[int],
        key: str,
        lengths: str | None,
        padding: Any,
        too_long: str,
        alike: int,
        block: int,
    ) -> SequenceRequest:
        """Return the request for the arguments of `Dataset.batch_by_length`; `UsageError` for invalid arguments."""
        if lengths is None:
            msg = f"batch_by_length(lengths={lengths}) takes the name of a column of the index"
            raise UsageError(msg, hint="without lengths, pack_sequences(lengths=None) packs documents as they come")
        key, lengths = as_text("batch_by_length(key=)", key), _column_of("batch_by_length", lengths)
        padding = padding if isinstance(padding, float) else as_whole("padding", padding)
        borders = as_sequence("batch_by_length(buckets=)", buckets)
        batches = LengthBatches(size, max_tokens, borders, too_long, alike, block)
        return cls(batches, PaddedFields(batches.padded, key, padding), lengths)

    noun = "documents"

    @property
    def verb(self) -> str:  # type: ignore[override]
        """The call that groups documents."""
        return f"{self.packing.verb}()"

    @property
    def made_fields(self) -> SequenceFields | PaddedFields:
        """The fields of a group of documents."""
        return self.fields

    @property
    def needs_index(self) -> bool:  # type: ignore[override]
        """True if the index has the lengths of documents."""
        return self.lengths is not None

    @property
    def words(self) -> list[str]:
        """The packing, in words for the summary of a dataset; empty for batches by length."""
        return [] if self.packing.alike else [f"packed into sequences of {self.packing.longest:,} tokens"]

    def resolved(
        self, resolved: Callable[[Selection], Resolved], selection: Callable[[Gaps], Selection], gaps: Gaps
    ) -> Resolved:
        """Return the epochs of sequences, or the epochs of documents if documents are packed as they come."""
        if self.lengths is None:
            return resolved(selection(gaps))
        documents = cast("ResolvedOrder | ResolvedMixture", resolved(selection(NO_GAPS)))
        return ResolvedSequences(documents, self.packing, self.lengths_in(documents.parts), gaps)

    def segments_in(self, resolved: Resolved, epoch: int, rows: NDArray[np.int64]) -> BatchSegments:
        """Return the pieces of documents in some sequences of an epoch."""
        return cast("ResolvedSequences", resolved).segments_in(epoch, rows)

    def batcher(self, source: Source, stages: Sequence[Stage], *, batched: bool = True) -> Batcher:  # noqa: ARG002
        """Return the batcher for documents of a source, with these stages."""
        fields = _fields_of(self.fields, source, stages) if isinstance(self.fields, SequenceFields) else self.fields
        if self.lengths is not None or not isinstance(self.packing, Packing):
            return SequenceBatches(fields, self.masks)
        return PackedAsTheyCome(self.packing, cast("SequenceFields", fields), self.masks)

    def in_chunks(self, num_chunks: int, num_document_chunks: int) -> Rows:
        """Return sequences padded to a multiple of ``num_chunks`` tokens: the packing and the states stay the same."""
        if not isinstance(self.fields, SequenceFields) or not isinstance(self.packing, Packing):
            return Rows.in_chunks(self, num_chunks, num_document_chunks)
        if (multiple := self.packing.multiple_of) % num_document_chunks:
            msg = f"partition(context_slices=) cuts each document into {num_document_chunks} equal chunks, but "
            msg += f"pack_sequences(multiple_of={multiple}) does not pad documents to a multiple"
            raise UsageError(msg, hint=f"pack_sequences(..., multiple_of={num_document_chunks})")
        length = -(-self.packing.length // num_chunks) * num_chunks
        return replace(self, fields=replace(self.fields, length=length))

    def lengths_in(self, parts: Sequence[ResolvedOrder]) -> NDArray[np.integer[Any]]:
        """Return the tokens of each document by its id, its separator included.

        `UsageError` if an index lacks the column, the column has no counts, or a document is refused as too long.
        """
        columns = [self._column(part.index) for part in parts]
        lengths = np.concatenate(columns) if len(columns) > 1 else columns[0]
        packing, fields = self.packing, self.fields
        if lengths.dtype.kind not in "iu" or (len(lengths) and int(lengths.min()) < 0):
            msg = f"{packing.verb}(lengths={self.lengths!r}): the column has {lengths.dtype} and no counts of tokens"
            raise UsageError(msg, hint="`shoal repack --tokenize` and `shoal index --columns` make a column of counts")
        if isinstance(fields, SequenceFields) and fields.tokens.separator is not None:
            lengths = lengths + 1
        longest = packing.longest
        if packing.too_long == "refuse" and longest is not None and len(lengths) and int(lengths.max()) > longest:
            worst = int(lengths.argmax())
            group = "a sequence has" if isinstance(fields, SequenceFields) else "a batch has at most"
            msg = f"the sample with id {worst} has {int(lengths[worst])} tokens, but {group} {longest}"
            raise UsageError(msg, hint='set too_long="cut" or "drop", or select() other samples')
        return lengths

    def _column(self, index: Index) -> NDArray[Any]:
        try:
            return lengths_of_column(index, str(self.lengths))
        except UsageError as error:
            if self.lengths in column_names(index):
                raise
            as_read = "; `pack_sequences(lengths=None)` packs documents as they come" * isinstance(
                self.fields, SequenceFields
            )
            hint = did_you_mean(self.lengths, column_names(index))
            hint += "for raw text, `shoal pack --tokenize` writes tokens and their counts; for tokenize() and "
            hint += f"chat_tokens(), shoal.pack.repack(ds, url, columns=[{self.lengths!r}]) does{as_read}; if stored "
            hint += f"samples have a field {self.lengths!r}, `shoal index --columns {self.lengths}` reads it"
            raise UsageError(error.message, hint=hint) from None


def _column_of(verb: str, lengths: Any) -> str | None:
    return None if lengths is None else as_text(f"{verb}(lengths=)", lengths, hint="the name of a column of the index")


def _fields_of(fields: SequenceFields, source: Source, stages: Sequence[Stage]) -> SequenceFields:
    """Return the fields of sequences, given the stages of documents; `with_ids` adds document ids."""
    adds_ids = any(isinstance(stage, WithIds) for stage in each_stage(stages))
    if adds_ids and DOCUMENT_IDS not in fields.extras:
        fields = replace(fields, extras=(*fields.extras, DOCUMENT_IDS))
    if SOURCE_IDS not in fields.extras:
        return fields
    if not source.depth:
        msg = f"pack_sequences(extras=[{SOURCE_IDS!r}]) needs a mixture of sources, but this is a single dataset"
        raise UsageError(msg, hint="shoal.mix({...}).pack_sequences(...)")
    return replace(fields, first_ids=_first_of_sources(source.whole))


def _first_of_sources(opened: OpenedDataset) -> tuple[int, ...]:
    """Return the first sample id of each source; the datasets of a nested mixture are consecutive."""
    sizes = [part.index.num_samples for part in opened.parts]
    first: dict[str, int] = {}
    for name, start in zip(opened.indexes, itertools.accumulate(sizes, initial=0), strict=False):
        first.setdefault(name.partition("/")[0], start)
    return tuple(first.values())
