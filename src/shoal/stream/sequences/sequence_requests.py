"""Arguments of `pack_sequences` and `batch_by_length`, and the lengths of documents that they find in the index."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_choice, as_sequence, as_text
from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.index.table import Index
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.opened_dataset import Opened, OpenedMixture
from shoal.order.protocol import as_whole
from shoal.order.sequences.length_batches import LengthBatches
from shoal.order.sequences.packed_order import Grouping, Packing
from shoal.pipeline.padded_arrays import PaddedFields
from shoal.pipeline.sequence_arrays import DOCUMENT_IDS, EXTRAS, SOURCE_IDS, SequenceFields
from shoal.pipeline.stages.stage import Stage, each_stage
from shoal.pipeline.stages.with_ids import WithIds
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.index_columns import column_names, lengths_of_column

_BLOCK, _GROUP = 1 << 16, 1 << 10


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """The grouping of documents, the fields of a group, and the column of the index with the lengths of documents.

    ``lengths`` is None if there is no such column: then documents are packed as they come.
    """

    packing: Grouping
    fields: SequenceFields | PaddedFields
    lengths: str | None

    @classmethod
    def asked(
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
    ) -> SequenceRequest:
        """Return the request for the arguments of `Dataset.pack_sequences`; `UsageError` for wrong ones."""
        named = (extras,) if isinstance(extras, str) else as_sequence("pack_sequences(extras=)", extras)
        for name in named:
            as_choice("each of pack_sequences(extras=)", name, EXTRAS)
        key, lengths = as_text("pack_sequences(key=)", key), _column_of("pack_sequences", lengths)
        if key in (taken := ("segment_ids", "position_ids", *EXTRAS)):
            msg = f"pack_sequences(key={key!r}): sequences have a field of this name beside their tokens"
            raise UsageError(msg, hint=f"rename the field before; taken are {', '.join(taken)}")
        padding = as_whole("padding", padding)
        separator = None if separator is None else as_whole("separator", separator)
        if block is None:
            block = _BLOCK if lengths is not None else _GROUP
        packing = Packing(length, strategy, block, too_long, separated=lengths is None and separator is not None)
        return cls(packing, SequenceFields(packing.length, key, separator, padding, named), lengths)

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
        """Return the request for the arguments of `Dataset.batch_by_length`; `UsageError` for wrong ones."""
        if lengths is None:
            msg = f"batch_by_length(lengths={lengths}) takes the name of a column of the index"
            raise UsageError(msg, hint="without lengths, pack_sequences(lengths=None) packs documents as they come")
        key, lengths = as_text("batch_by_length(key=)", key), _column_of("batch_by_length", lengths)
        padding = padding if isinstance(padding, float) else as_whole("padding", padding)
        borders = as_sequence("batch_by_length(buckets=)", buckets)
        batches = LengthBatches(size, max_tokens, borders, too_long, alike, block)
        return cls(batches, PaddedFields(batches.padded, key, padding), lengths)

    def fields_of(
        self, source: Opened | OpenedMixture | Unindexed, stages: Sequence[Stage]
    ) -> SequenceFields | PaddedFields:
        """Return the fields of a group of documents that are read from a source, and go through these stages.

        After `with_ids` sequences have the ids of their documents. Raises `UsageError` for ``source_ids`` of a dataset
        that has no sources.
        """
        fields = self.fields
        if not isinstance(fields, SequenceFields):
            return fields
        if _adds_ids(stages) and DOCUMENT_IDS not in fields.extras:
            fields = replace(fields, extras=(*fields.extras, DOCUMENT_IDS))
        if SOURCE_IDS not in fields.extras:
            return fields
        if not isinstance(source, OpenedMixture):
            msg = f"pack_sequences(extras=[{SOURCE_IDS!r}]) tells the sources of a mixture, and this is one dataset"
            raise UsageError(msg, hint="shoal.mix({...}).pack_sequences(...)")
        return replace(fields, first_ids=_first_of_sources(source))

    def lengths_in(self, parts: Sequence[ResolvedOrder]) -> NDArray[np.integer[Any]]:
        """Return the tokens of each document by its id, its separator included.

        Raises `UsageError`: an index has no such column, it has no counts, or a document is refused as too long.
        """
        columns = [self._column(part.index) for part in parts]
        found = np.concatenate(columns) if len(columns) > 1 else columns[0]
        packing, fields = self.packing, self.fields
        if found.dtype.kind not in "iu" or (len(found) and int(found.min()) < 0):
            msg = f"{packing.verb}(lengths={self.lengths!r}): the column has {found.dtype} and no counts of tokens"
            raise UsageError(msg, hint="`shoal repack --tokenize` and `shoal index --columns` make one")
        if isinstance(fields, SequenceFields) and fields.separator is not None:
            found = found + 1
        longest = packing.longest
        if packing.too_long == "refuse" and longest is not None and len(found) and int(found.max()) > longest:
            worst = int(found.argmax())
            group = "a sequence" if isinstance(fields, SequenceFields) else "a batch at most"
            msg = f"the sample with id {worst} has {int(found[worst])} tokens, and {group} {longest}"
            raise UsageError(msg, hint='too_long="cut" or "drop", or select() without it')
        return found

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
            hint += f"of raw text `shoal pack --tokenize` writes tokens and their numbers{as_read}; where samples have "
            hint += f"the numbers in a field {self.lengths!r}, `shoal index --columns {self.lengths}` reads them"
            raise UsageError(error.message, hint=hint) from None


def _column_of(verb: str, lengths: Any) -> str | None:
    return None if lengths is None else as_text(f"{verb}(lengths=)", lengths, hint="the name of a column of the index")


def _adds_ids(stages: Sequence[Stage]) -> bool:
    """Return True if samples get their ids, also by a stage of a source of a mixture."""
    return any(isinstance(stage, WithIds) for stage in each_stage(stages))


def _first_of_sources(opened: OpenedMixture) -> tuple[int, ...]:
    """Return the first sample id of each source; a nested mixture is one, and its datasets follow one another."""
    sizes = [part.index.num_samples for part in opened.parts]
    starts = zip(opened.names, itertools.accumulate(sizes, initial=0), strict=False)
    first: dict[str, int] = {}
    for name, start in starts:
        first.setdefault(name.partition("/")[0], start)
    return tuple(first.values())
