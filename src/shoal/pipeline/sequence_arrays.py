"""Arrays from the tokens of documents: sequences of one length, or batches padded to the length of the longest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.hints import did_you_mean

DOCUMENT_IDS, SOURCE_IDS = "document_ids", "source_ids"
EXTRAS = ("loss_mask", "cu_seqlens", DOCUMENT_IDS, SOURCE_IDS)
"""Fields that sequences have on request."""
_ADDED_FIELDS = ("lengths", "attention_mask")


@dataclass(frozen=True, slots=True)
class SequenceFields:
    """Fields of sequences of ``length`` tokens.

    ``key`` is the field with the tokens, of a document and of a sequence. ``separator`` is the token after each
    document, or None. ``padding`` is the token that fills a sequence up. ``extras`` are some of `EXTRAS`. ``first_ids``
    are the ids of the first document of each source of a mixture, ascending.
    """

    length: int
    key: str = "tokens"
    separator: int | None = None
    padding: int = 0
    extras: tuple[str, ...] = ()
    first_ids: tuple[int, ...] = ()

    def tokens_of(
        self, document: Any, num_tokens: int | None, sample_id: int, *, most: int | None = None
    ) -> NDArray[Any]:
        """Return the tokens of a document and its separator.

        `UsageError` if their number is not ``num_tokens``, the number in the index, or more than ``most``.
        """
        _check_field("pack_sequences", self.key, document, sample_id)
        values = document[self.key]
        tokens = np.asarray(values)
        if not tokens.size and tokens.dtype.kind == "f":  # numpy's type for an empty list
            tokens = np.zeros(0, dtype=np.int64 if isinstance(values, list | tuple) else np.uint8)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            msg = f"the field {self.key!r} of the sample with id {sample_id} is {tokens.dtype} of shape {tokens.shape}"
            raise UsageError(msg, hint="pack_sequences() takes arrays of token numbers, one for each document")
        if self.separator is not None:
            separator = np.array([self.separator], dtype=np.min_scalar_type(self.separator))
            tokens = np.concatenate([tokens, separator], dtype=token_type([tokens.dtype, separator.dtype]))
        if num_tokens is not None and len(tokens) != num_tokens:
            msg = f"the sample with id {sample_id} has {len(tokens)} tokens, but {num_tokens} according to the index"
            msg += "" if self.separator is None else ", a separator included"
            raise UsageError(msg, hint="the lengths in the index are from another tokenizer, or the data changed later")
        if most is not None and len(tokens) > most:
            msg = f"the sample with id {sample_id} has {len(tokens)} tokens, but a sequence has {most}"
            raise UsageError(msg, hint='set too_long="cut" or "drop", or call filter() before pack_sequences()')
        return tokens

    def arrays(
        self,
        tokens: Sequence[NDArray[Any]],
        first: NDArray[np.int64],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        ids: NDArray[np.int64],
    ) -> dict[str, NDArray[Any]]:
        """Return the fields of some sequences, of shape (num_sequences, length) unless another shape is named.

        ``segment_ids`` (int32) number the documents of a sequence from 1, with 0 for padding; ``position_ids`` (int32)
        count the tokens of each document from 0. ``loss_mask`` (bool) is false for separators and padding.
        ``cu_seqlens`` (int32) are the borders of all documents and paddings in the sequences laid end to end, from 0 to
        ``num_sequences * length``. ``document_ids`` (int64) and ``source_ids`` (int32) have shape
        (num_sequences, 1 + most segments): a column for each segment, column 0 for padding, -1 elsewhere.

        Parameters
        ----------
        tokens
            The tokens of each piece's document, separators included.
        first
            The first piece of each sequence, and the number of pieces; shape (num_sequences + 1,).
        starts, stops
            The tokens of each piece in its document, shape (num_pieces,).
        ids
            The id of each piece's document, shape (num_pieces,).
        """
        num_sequences, num_pieces = len(first) - 1, len(starts)
        sizes = stops - starts
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        sequence = np.repeat(np.arange(num_sequences), np.diff(first))
        at = ends[:-1] - ends[first[:-1]][sequence] + sequence * self.length  # the first token of each piece
        within = np.arange(ends[-1]) - np.repeat(ends[:-1], sizes)
        targets = within + np.repeat(at, sizes)
        dtype = token_type({piece.dtype for piece in tokens} or {np.dtype(np.int32)}, self.padding)
        packed = np.full(num_sequences * self.length, self.padding, dtype=dtype)
        segments = np.zeros(num_sequences * self.length, dtype=np.int32)
        positions = np.zeros(num_sequences * self.length, dtype=np.int32)
        for piece, begin, start, stop in zip(tokens, at.tolist(), starts.tolist(), stops.tolist(), strict=True):
            packed[begin : begin + stop - start] = piece[start:stop]
        segments[targets] = np.repeat(np.arange(num_pieces) - first[:-1][sequence] + 1, sizes)
        positions[targets] = within
        shape = (num_sequences, self.length)
        fields: dict[str, NDArray[Any]] = {
            self.key: packed.reshape(shape),
            "segment_ids": segments.reshape(shape),
            "position_ids": positions.reshape(shape),
        }
        if "loss_mask" in self.extras:
            mask = segments > 0
            if self.separator is not None:
                whole = stops == np.array([len(piece) for piece in tokens], dtype=np.int64)
                mask[(at + sizes - 1)[whole]] = False
            fields["loss_mask"] = mask.reshape(shape)
        if "cu_seqlens" in self.extras:
            filled = np.arange(num_sequences) * self.length + ends[first[1:]] - ends[first[:-1]]
            borders = np.concatenate([at, filled, [num_sequences * self.length]])
            fields["cu_seqlens"] = np.unique(borders).astype(np.int32)
        if DOCUMENT_IDS in self.extras:
            fields[DOCUMENT_IDS] = _by_segment(ids, first)
        if SOURCE_IDS in self.extras:
            sources = np.searchsorted(np.array(self.first_ids, dtype=np.int64), ids, side="right") - 1
            fields[SOURCE_IDS] = _by_segment(sources.astype(np.int32), first)
        return fields


@dataclass(frozen=True, slots=True)
class PaddedFields:
    """Fields of padded batches.

    ``padded`` maps lengths to padded lengths. ``key`` is the field with the tokens, of a document and of a batch.
    ``padding`` is the value that fills a document up.
    """

    padded: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    key: str = "tokens"
    padding: float = 0

    def tokens_of(self, document: Any, num_tokens: int, sample_id: int) -> NDArray[Any]:
        """Return the tokens of a document; `UsageError` if their number is not the one in the index."""
        _check_field("batch_by_length", self.key, document, sample_id)
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


def _check_field(verb: str, key: str, document: Any, sample_id: int) -> None:
    """Raise `UsageError`, with the document's fields, if a document lacks the field with its tokens."""
    if isinstance(document, Mapping) and key in document:
        return
    msg = f"{verb}(key={key!r}): the sample with id {sample_id} has no such field; "
    if not isinstance(document, Mapping):
        msg += f"it is a {type(document).__name__}, not a dict of fields"
        raise UsageError(msg, hint=f"put {verb}() before to_tuple(), or before map() that makes something else")
    msg += f"it has {', '.join(map(repr, document)) or 'none'}"
    hint = f"{did_you_mean(key, document)}key= names the field with the tokens; tokenize() makes tokens from text"
    raise UsageError(msg, hint=hint)


def _by_segment(values: NDArray[Any], first: NDArray[np.int64]) -> NDArray[Any]:
    """Return the value of each piece in the row of its sequence and the column of its segment; -1 elsewhere."""
    counts = np.diff(first)
    table = np.full((len(counts), 1 + int(counts.max(initial=0))), -1, dtype=values.dtype)
    columns = np.arange(len(values)) - np.repeat(first[:-1], counts) + 1
    table[np.repeat(np.arange(len(counts)), counts), columns] = values
    return table


def token_type(dtypes: Iterable[np.dtype[Any]], padding: float = 0) -> np.dtype[Any]:
    """Return a type for tokens of these types and the padding.

    >>> [str(token_type(map(np.dtype, names), -100)) for names in (["uint16"], ["uint64", "int8"], ["float32"])]
    ['int32', 'int64', 'float32']
    """
    token_dtypes = set(dtypes)
    dtype = np.result_type(*token_dtypes)
    if dtype.kind in "iu" and padding != (padding // 1):  # nan, too
        raise UsageError(f"padding={padding} is not an integer, but the tokens are of {dtype}", hint="padding=0")
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= padding <= np.iinfo(dtype).max:
        dtype = np.result_type(dtype, np.min_scalar_type(padding))
    # numpy's type for uint64 and signed integers is float64, and no token has a number of 2**63 or more
    is_rounded = dtype.kind == "f" and all(token_dtype.kind in "biu" for token_dtype in token_dtypes)
    return np.dtype(np.int64) if is_rounded else dtype
