"""Arguments of `Dataset.pack_sequences`, and the lengths of documents that it finds in the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.sequences.packed_order import Packing
from shoal.pipeline.sequence_arrays import EXTRAS, SequenceFields
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.index_columns import column_of


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """Arguments of `Dataset.pack_sequences`: the packing, the fields, and the column of the index with the lengths."""

    packing: Packing
    fields: SequenceFields
    lengths: str

    @classmethod
    def asked(
        cls,
        length: int,
        key: str,
        strategy: str,
        lengths: str,
        block: int,
        too_long: str,
        separator: int | None,
        padding: int,
        extras: Sequence[str],
    ) -> SequenceRequest:
        """Return the request for the arguments of `Dataset.pack_sequences`; `UsageError` for wrong ones."""
        if unknown := [name for name in extras if name not in EXTRAS]:
            msg = f"pack_sequences(extras=...) knows {', '.join(map(repr, EXTRAS))}; got {unknown[0]!r}"
            raise UsageError(msg)
        packing = Packing(length, strategy, block, too_long)
        return cls(packing, SequenceFields(packing.length, key, separator, padding, tuple(extras)), lengths)

    def lengths_in(self, parts: Sequence[ResolvedOrder]) -> NDArray[np.integer[Any]]:
        """Return the tokens of each document by its id, its separator included.

        Raises `UsageError`: an index has no such column, it has no counts, or a document is refused as too long.
        """
        columns = [column_of(part.index, self.lengths) for part in parts]
        found = np.concatenate(columns) if len(columns) > 1 else columns[0]
        if found.dtype.kind not in "iu" or (len(found) and int(found.min()) < 0):
            msg = f"pack_sequences(lengths={self.lengths!r}): the column has {found.dtype} and no counts of tokens"
            raise UsageError(msg, hint="`shoal repack --tokenize` and `shoal index --columns` make one")
        found = found if self.fields.separator is None else found + 1
        if self.packing.too_long == "refuse" and len(found) and int(found.max()) > self.packing.length:
            longest = int(found.argmax())
            msg = f"the sample with id {longest} has {int(found[longest])} tokens, and a sequence {self.packing.length}"
            raise UsageError(msg, hint='too_long="cut" or "drop", or select() without it')
        return found
