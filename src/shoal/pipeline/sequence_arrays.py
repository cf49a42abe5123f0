"""Arrays from the tokens of documents: sequences of one length, or batches padded to the length of the longest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.pipeline.mask_totals import MaskCount
from shoal.pipeline.packed_fields import (
    LOSS_MASK,
    PackedDocument,
    PackedField,
    PackedPieces,
    check_field,
    token_type,
)

TOKENS = PackedField("tokens")
DOCUMENT_IDS, SOURCE_IDS = "document_ids", "source_ids"
EXTRAS = (LOSS_MASK, "cu_seqlens", DOCUMENT_IDS, SOURCE_IDS)
"""Fields that sequences have on request."""
_ADDED_FIELDS = ("lengths", "attention_mask")


@dataclass(frozen=True, slots=True)
class SequenceFields:
    """Fields of sequences of ``length`` tokens.

    ``tokens`` is the field with the tokens, of a document and of a sequence, and ``others`` are the other fields that
    run along the tokens. ``extras`` are some of `EXTRAS`. ``first_ids`` are the ids of the first document of each
    source of a mixture, ascending.
    """

    length: int
    tokens: PackedField = TOKENS
    others: tuple[PackedField, ...] = ()
    extras: tuple[str, ...] = ()
    first_ids: tuple[int, ...] = ()

    def columns_of(
        self, document: Any, num_tokens: int | None, sample_id: int, *, most: int | None = None
    ) -> PackedDocument:
        """Return the values of a document in the packed fields.

        `UsageError` if the number of tokens and separators is not ``num_tokens``, the number in the index, or more than
        ``most``, or another field has another number of values.
        """
        key, is_separated = self.tokens.name, self.tokens.separator is not None
        columns: list[NDArray[Any]] = []
        for field, argument in ((self.tokens, "key"), *((field, "fields") for field in self.others)):
            field.check_in(document, sample_id, argument)
            values = document.get(field.name, True) if field.is_optional else document[field.name]
            array = np.asarray(values)
            columns.append(array.astype(field.type_of(array, values), copy=False))
        tokens, *others = columns
        if not tokens.size and tokens.dtype.kind == "f":
            tokens = np.zeros(0, dtype=np.uint8)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            msg = f"the field {key!r} of the sample with id {sample_id} is {tokens.dtype} of shape {tokens.shape}"
            raise UsageError(msg, hint="pack_sequences() takes arrays of token numbers, one for each document")
        size = len(tokens) + is_separated
        if num_tokens is not None and size != num_tokens:
            msg = f"the sample with id {sample_id} has {size} tokens, but {num_tokens} according to the index"
            msg += ", a separator included" * is_separated
            raise UsageError(msg, hint="the lengths in the index are from another tokenizer, or the data changed later")
        if most is not None and size > most:
            msg = f"the sample with id {sample_id} has {size} tokens, but a sequence has {most}"
            raise UsageError(msg, hint='set too_long="cut" or "drop", or call filter() before pack_sequences()')
        for field, values in zip(self.others, others, strict=True):
            field.check_values(values, tokens, key, sample_id)
        return PackedDocument((tokens, *others), size)

    def arrays(
        self,
        documents: Sequence[PackedDocument],
        first: NDArray[np.int64],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        ids: NDArray[np.int64],
    ) -> tuple[dict[str, NDArray[Any]], dict[str, MaskCount]]:
        """Return the fields of some sequences, of shape (num_sequences, length) unless another shape is named.

        ``segment_ids`` (int32) number the documents of a sequence from 1, with 0 for padding; ``position_ids`` (int32)
        count the tokens of each document from 0. Other packed fields have shape (num_sequences, length, ...), with
        their padding at separators. ``loss_mask`` (bool) is false for separators and padding, and where documents have
        it false. ``cu_seqlens`` (int32) are the borders of all documents and paddings in the sequences laid end to end,
        from 0 to ``num_sequences * length``. ``document_ids`` (int64) and ``source_ids`` (int32) have shape
        (num_sequences, 1 + most segments): a column for each segment, column 0 for padding, -1 elsewhere.

        Also return the counts of masks, by field.

        Parameters
        ----------
        documents
            The document of each piece.
        first
            The first piece of each sequence, and the number of pieces; shape (num_sequences + 1,).
        starts, stops
            The tokens of each piece in its document, shape (num_pieces,). Padding follows the last token of a document
            if ``stops`` is larger, and belongs to the document's segment.
        ids
            The id of each piece's document, shape (num_pieces,).
        """
        num_sequences, num_pieces = len(first) - 1, len(starts)
        num_places, sizes = num_sequences * self.length, stops - starts
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        sequence = np.repeat(np.arange(num_sequences), np.diff(first))
        at = ends[:-1] - ends[first[:-1]][sequence] + sequence * self.length  # the first token of each piece
        within = np.arange(ends[-1]) - np.repeat(ends[:-1], sizes)
        targets = within + np.repeat(at, sizes)
        segments = np.zeros(num_places, dtype=np.int32)
        positions = np.zeros(num_places, dtype=np.int32)
        segments[targets] = np.repeat(np.arange(num_pieces) - first[:-1][sequence] + 1, sizes)
        positions[targets] = within
        num_tokens = np.array([document.num_tokens for document in documents], dtype=np.int64)
        separators = np.zeros(0, dtype=np.int64)
        if self.tokens.separator is not None:
            separators = (at + num_tokens - 1 - starts)[stops >= num_tokens]
        pieces = PackedPieces(at, starts, np.minimum(stops, num_tokens), separators)
        shape = (num_sequences, self.length)
        values, counts = dict[str, NDArray[Any]](), dict[str, MaskCount]()
        for number, field in enumerate((self.tokens, *self.others)):
            columns = [document.columns[number] for document in documents]
            filled = np.full((num_places, *field.row_shape(columns)), field.padding, field.common_type(columns))
            field.fill(filled, columns, pieces)
            values[field.name] = filled.reshape(*shape, *filled.shape[1:])
            if number and (count := field.mask_count(columns, pieces)) is not None:
                counts[field.name] = count
        fields: dict[str, NDArray[Any]] = {
            self.tokens.name: values.pop(self.tokens.name),
            "segment_ids": segments.reshape(shape),
            "position_ids": positions.reshape(shape),
            **values,
        }
        if "cu_seqlens" in self.extras:
            filled_up = np.arange(num_sequences) * self.length + ends[first[1:]] - ends[first[:-1]]
            borders = np.concatenate([at, filled_up, [num_places]])
            fields["cu_seqlens"] = np.unique(borders).astype(np.int32)
        if DOCUMENT_IDS in self.extras:
            fields[DOCUMENT_IDS] = _by_segment(ids, first)
        if SOURCE_IDS in self.extras:
            sources = np.searchsorted(np.array(self.first_ids, dtype=np.int64), ids, side="right") - 1
            fields[SOURCE_IDS] = _by_segment(sources.astype(np.int32), first)
        return fields, counts


@dataclass(frozen=True, slots=True)
class PaddedFields:
    """Fields of padded batches.

    ``padded`` maps lengths to padded lengths. ``key`` is the field with the tokens, of a document and of a batch.
    ``padding`` is the value that fills a document up.
    """

    padded: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    key: str = "tokens"
    padding: float = 0

    def columns_of(self, document: Any, num_tokens: int, sample_id: int) -> NDArray[Any]:
        """Return the tokens of a document; `UsageError` if their number is not the one in the index."""
        check_field("batch_by_length", "key", self.key, document, sample_id)
        if taken := [name for name in _ADDED_FIELDS if name in document]:
            msg = f"batch_by_length() makes the field {taken[0]!r}, but the sample with id {sample_id} has one"
            raise UsageError(msg, hint=f'rename it before: .rename(other="{taken[0]}")')
        tokens = np.asarray(document[self.key])
        if not tokens.ndim or tokens.dtype.kind not in "biuf":
            msg = f"the field {self.key!r} of the sample with id {sample_id} is {tokens.dtype} of shape {tokens.shape}"
            raise UsageError(msg, hint="batch_by_length() takes an array of numbers for each document")
        if len(tokens) != num_tokens:
            msg = f"the sample with id {sample_id} has {len(tokens)} tokens, but {num_tokens} according to the index"
            raise UsageError(msg, hint="the lengths in the index are from another tokenizer, or the data changed later")
        return tokens

    def arrays(
        self,
        documents: Sequence[Mapping[str, Any]],
        tokens: Sequence[NDArray[Any]],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        collate: Callable[[list[Any]], Any],
    ) -> dict[str, Any]:
        """Return the fields of one batch; ``collate`` makes all fields but the tokens.

        ``starts`` and ``stops`` are the part of each document that is in the batch, shape (num_documents,). ``key`` has
        shape (num_documents, padded length, ...), ``lengths`` (int32) has shape (num_documents,), and
        ``attention_mask`` (bool), of shape (num_documents, padded length), is false for padding.
        """
        lengths = stops - starts
        width = int(self.padded(lengths.max(keepdims=True))[0])
        dtype = token_type({array.dtype for array in tokens}, self.padding)
        shapes = {array.shape[1:] for array in tokens}
        if len(shapes) > 1:
            msg = f"the documents of a batch have arrays {self.key!r} with rows of the shapes {sorted(shapes)}"
            raise UsageError(msg, hint="batch_by_length() pads along the first axis; the other axes must be equal")
        filled = np.full((len(tokens), width, *shapes.pop()), self.padding, dtype=dtype)
        for row, array, start, stop in zip(filled, tokens, starts.tolist(), stops.tolist(), strict=True):
            row[: stop - start] = array[start:stop]
        rest = [{name: value for name, value in document.items() if name != self.key} for document in documents]
        others = collate(rest) if any(rest) else {}
        mask = np.arange(width) < lengths[:, None]
        return {self.key: filled, "lengths": lengths.astype(np.int32), "attention_mask": mask, **others}


def _by_segment(values: NDArray[Any], first: NDArray[np.int64]) -> NDArray[Any]:
    """Return the value of each piece in the row of its sequence and the column of its segment; -1 elsewhere."""
    counts = np.diff(first)
    table = np.full((len(counts), 1 + int(counts.max(initial=0))), -1, dtype=values.dtype)
    columns = np.arange(len(values)) - np.repeat(first[:-1], counts) + 1
    table[np.repeat(np.arange(len(counts)), counts), columns] = values
    return table
