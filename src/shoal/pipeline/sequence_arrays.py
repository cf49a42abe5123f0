"""Sequences from the tokens of their documents: arrays of one length, and which document each token is of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.hints import did_you_mean

DOCUMENT_IDS, SOURCE_IDS = "document_ids", "source_ids"
EXTRAS = ("loss_mask", "cu_seqlens", DOCUMENT_IDS, SOURCE_IDS)
"""Fields that sequences have on request."""


@dataclass(frozen=True, slots=True)
class SequenceFields:
    """Fields of sequences of ``length`` tokens.

    Attributes
    ----------
    key
        The field of a document that has its tokens, and of a sequence.
    separator
        Token behind each document; None for none.
    padding
        Token that fills a sequence up.
    extras
        Some of `EXTRAS`.
    first_ids
        The id of the first document of each source of a mixture, ascending.
    """

    length: int
    key: str = "tokens"
    separator: int | None = None
    padding: int = 0
    extras: tuple[str, ...] = ()
    first_ids: tuple[int, ...] = ()

    def tokens_of(self, document: Any, num_tokens: int | None, sample_id: int) -> NDArray[Any]:
        """Return the tokens of a document with its separator; `UsageError` if the index says another number of them."""
        given = field_of_tokens("pack_sequences", self.key, document, sample_id)
        tokens = np.asarray(given)
        if not tokens.size and tokens.dtype.kind == "f":  # an empty list has no type of its own
            tokens = np.zeros(0, dtype=np.int64 if isinstance(given, list | tuple) else np.uint8)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            msg = f"the field {self.key!r} of the sample with id {sample_id} is {tokens.dtype} of shape {tokens.shape}"
            raise UsageError(msg, hint="pack_sequences() takes arrays of token numbers, one for each document")
        if self.separator is not None:
            behind = np.array([self.separator], dtype=np.min_scalar_type(self.separator))
            tokens = np.concatenate([tokens, behind], dtype=token_type([tokens.dtype, behind.dtype]))
        if num_tokens is not None and len(tokens) != num_tokens:
            counts = f"{len(tokens)} tokens, and {num_tokens} by the index"
            msg = f"the sample with id {sample_id} has {counts}" + (
                ", a separator included" * (self.separator is not None)
            )
            raise UsageError(msg, hint="the index has other lengths: of another tokenizer, or from before a change")
        return tokens

    def arrays(
        self,
        tokens: Sequence[NDArray[Any]],
        first: NDArray[np.int64],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        ids: NDArray[np.int64],
    ) -> dict[str, NDArray[Any]]:
        """Return the fields of some sequences, each of shape (num_sequences, length) unless said otherwise.

        ``segment_ids`` (int32) number the documents of a sequence from 1, with 0 for padding; ``position_ids`` (int32)
        count the tokens of each from 0. ``loss_mask`` (bool) is false for separators and padding. ``cu_seqlens``
        (int32) are the borders of all documents and paddings in the sequences laid end to end, from 0 to
        ``num_sequences * length``. ``document_ids`` (int64) and ``source_ids`` (int32) have a column for each segment
        of the sequence with the most, and column 0 for padding: shape (num_sequences, 1 + most segments), -1 where
        there is none.

        Parameters
        ----------
        tokens
            Those of the document of each piece, separators included.
        first
            The first piece of each sequence, and the number of pieces; shape (num_sequences + 1,).
        starts, stops
            The tokens of each piece in its document, shape (num_pieces,).
        ids
            The id of the document of each piece, shape (num_pieces,).
        """
        num_sequences, num_pieces = len(first) - 1, len(starts)
        sizes = stops - starts
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        sequence = np.repeat(np.arange(num_sequences), np.diff(first))
        at = ends[:-1] - ends[first[:-1]][sequence] + sequence * self.length  # of each piece, in all sequences
        within = np.arange(ends[-1]) - np.repeat(ends[:-1], sizes)
        places = within + np.repeat(at, sizes)
        dtype = token_type({piece.dtype for piece in tokens} or {np.dtype(np.int32)}, self.padding)
        packed = np.full(num_sequences * self.length, self.padding, dtype=dtype)
        segments = np.zeros(num_sequences * self.length, dtype=np.int32)
        positions = np.zeros(num_sequences * self.length, dtype=np.int32)
        for piece, begin, start, stop in zip(tokens, at.tolist(), starts.tolist(), stops.tolist(), strict=True):
            packed[begin : begin + stop - start] = piece[start:stop]
        segments[places] = np.repeat(np.arange(num_pieces) - first[:-1][sequence] + 1, sizes)
        positions[places] = within
        shape = (num_sequences, self.length)
        found: dict[str, NDArray[Any]] = {
            self.key: packed.reshape(shape),
            "segment_ids": segments.reshape(shape),
            "position_ids": positions.reshape(shape),
        }
        if "loss_mask" in self.extras:
            mask = segments > 0
            if self.separator is not None:
                whole = stops == np.array([len(piece) for piece in tokens], dtype=np.int64)
                mask[(at + sizes - 1)[whole]] = False
            found["loss_mask"] = mask.reshape(shape)
        if "cu_seqlens" in self.extras:
            filled = ends[first[1:]] - ends[first[:-1]]
            borders = np.concatenate(
                [at, np.arange(num_sequences) * self.length + filled, [num_sequences * self.length]]
            )
            found["cu_seqlens"] = np.unique(borders).astype(np.int32)
        if DOCUMENT_IDS in self.extras:
            found[DOCUMENT_IDS] = _by_segment(ids, first)
        if SOURCE_IDS in self.extras:
            sources = np.searchsorted(np.array(self.first_ids, dtype=np.int64), ids, side="right") - 1
            found[SOURCE_IDS] = _by_segment(sources.astype(np.int32), first)
        return found


def field_of_tokens(verb: str, key: str, document: Any, sample_id: int) -> Any:
    """Return the field of a document that has its tokens; `UsageError` with the fields that it has if there is none."""
    if isinstance(document, Mapping) and key in document:
        return document[key]
    msg = f"{verb}(key={key!r}): the sample with id {sample_id} has no such field; "
    if not isinstance(document, Mapping):
        msg += f"it is a {type(document).__name__}, and not a dict of fields"
        raise UsageError(msg, hint=f"put {verb}() before to_tuple(), or before map() that makes something else")
    msg += f"it has {', '.join(map(repr, document)) or 'none'}"
    hint = f"{did_you_mean(key, document)}key= names the field with the tokens, and tokenize() makes them of text"
    raise UsageError(msg, hint=hint)


def _by_segment(values: NDArray[Any], first: NDArray[np.int64]) -> NDArray[Any]:
    """Return the value of each piece in the row of its sequence and the column of its segment; -1 elsewhere."""
    counts = np.diff(first)
    found = np.full((len(counts), 1 + int(counts.max(initial=0))), -1, dtype=values.dtype)
    columns = np.arange(len(values)) - np.repeat(first[:-1], counts) + 1
    found[np.repeat(np.arange(len(counts)), counts), columns] = values
    return found


def token_type(dtypes: Iterable[np.dtype[Any]], padding: float = 0) -> np.dtype[Any]:
    """Return a type for tokens of these types and the padding.

    >>> [str(token_type(map(np.dtype, names), -100)) for names in (["uint16"], ["uint64", "int8"], ["float32"])]
    ['int32', 'int64', 'float32']
    """
    given = set(dtypes)
    found = np.result_type(*given)
    if found.kind in "iu" and padding != (padding // 1):  # nan, too
        raise UsageError(f"padding={padding} is no integer, and the tokens are of {found}", hint="padding=0")
    if found.kind in "iu" and not np.iinfo(found).min <= padding <= np.iinfo(found).max:
        found = np.result_type(found, np.min_scalar_type(padding))
    # numpy's type for uint64 and signed integers is float64, and no token has a number of 2**63 or more
    is_rounded = found.kind == "f" and all(each.kind in "biu" for each in given)
    return np.dtype(np.int64) if is_rounded else found
