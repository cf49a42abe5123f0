"""Arguments of `pack_sequences` and `batch_by_length`, and the lengths of documents that they find in the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.table import Index
from shoal.order.protocol import as_whole
from shoal.order.sequences.length_batches import LengthBatches
from shoal.order.sequences.packed_order import Grouping, Packing
from shoal.pipeline.padded_arrays import PaddedFields
from shoal.pipeline.sequence_arrays import EXTRAS, SequenceFields
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.index_columns import column_of

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
        named = (extras,) if isinstance(extras, str) else tuple(extras)
        if unknown := [name for name in named if name not in EXTRAS]:
            msg = f"pack_sequences(extras=...) knows {', '.join(map(repr, EXTRAS))}; got {unknown[0]!r}"
            raise UsageError(msg)
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
        padding: int,
        too_long: str,
        alike: int,
        block: int,
    ) -> SequenceRequest:
        """Return the request for the arguments of `Dataset.batch_by_length`; `UsageError` for wrong ones."""
        if lengths is None:
            msg = f"batch_by_length(lengths={lengths}) takes the name of a column of the index"
            raise UsageError(msg, hint="without lengths, pack_sequences(lengths=None) packs documents as they come")
        padding = padding if isinstance(padding, float) else as_whole("padding", padding)
        batches = LengthBatches(size, max_tokens, tuple(buckets), too_long, alike, block)
        return cls(batches, PaddedFields(batches.padded, key, padding), lengths)

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
            return column_of(index, str(self.lengths))
        except UsageError as error:
            if isinstance(self.fields, SequenceFields):
                error.hint += "; pack_sequences(lengths=None) packs documents as they come, without a column"
            raise
