"""Batches of documents of similar length: their tokens padded to one length, and their other fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.pipeline.sequence_arrays import field_of_tokens, token_type

_ADDED_FIELDS = ("lengths", "attention_mask")


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
        values = field_of_tokens("batch_by_length", self.key, document, sample_id)
        if taken := [name for name in _ADDED_FIELDS if name in document]:
            msg = f"batch_by_length() makes the field {taken[0]!r}, and the sample with id {sample_id} has one"
            raise UsageError(msg, hint=f'rename it before: .rename(other="{taken[0]}")')
        tokens = np.asarray(values)
        if not tokens.ndim or tokens.dtype.kind not in "biuf":
            msg = f"the field {self.key!r} of the sample with id {sample_id} is {tokens.dtype} of shape {tokens.shape}"
            raise UsageError(msg, hint="batch_by_length() takes an array of numbers for each document")
        if len(tokens) != num_tokens:
            msg = f"the sample with id {sample_id} has {len(tokens)} tokens, and {num_tokens} by the index"
            raise UsageError(msg, hint="the index has other lengths: of another tokenizer, or from before a change")
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
            raise UsageError(msg, hint="batch_by_length() pads along the first axis; the others must be equal")
        filled = np.full((len(tokens), width, *shapes.pop()), self.padding, dtype=dtype)
        for row, array, start, stop in zip(filled, tokens, starts.tolist(), stops.tolist(), strict=True):
            row[: stop - start] = array[start:stop]
        rest = [{name: value for name, value in document.items() if name != self.key} for document in documents]
        others = collate(rest) if any(rest) else {}
        mask = np.arange(width) < lengths[:, None]
        return {self.key: filled, "lengths": lengths.astype(np.int32), "attention_mask": mask, **others}
