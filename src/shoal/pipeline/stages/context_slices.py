"""The stage that keeps a rank's slice of each sequence, for the ranks of a context parallel group.

In causal attention a token attends to all earlier tokens, so the last of n equal slices has nearly twice the mean work.
"zigzag" cuts a sequence into 2n chunks; slice r is chunk r and then chunk 2n - 1 - r, so all slices have the same work.
"documents" cuts each document of a sequence, and its padding, in the same way.

References
----------
Llama Team, "The Llama 3 Herd of Models", 2024, section 3.3.2. "zigzag" are the slices of Megatron-LM
(``get_batch_on_this_cp_rank``), ring-flash-attention (``zigzag_ring_flash_attn_func``) and torch's load balancer for
``context_parallel``. "documents" are the slices of Transformer Engine (``thd_get_partitioned_indices``) and of
``zigzag_ring_flash_attn_varlen_func``; "contiguous" are the slices of ``llama3_flash_attn_varlen_func``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.pipeline.sequence_arrays import DOCUMENT_IDS, SOURCE_IDS
from shoal.pipeline.stages.stage import Stage

_SEGMENTS = "segment_ids"
_BY_SEGMENT = (DOCUMENT_IDS, SOURCE_IDS)


@dataclass(frozen=True, slots=True)
class ContextSlice(Stage):
    """A stage of batches that keeps slice ``number`` of ``num_slices`` of each sequence; ``kind`` is one of `KINDS`."""

    number: int
    num_slices: int
    kind: str = "zigzag"

    def __repr__(self) -> str:
        return f"partition(context_parallel={self.num_slices})"

    @property
    def chunks(self) -> list[int]:
        """The chunks of the slice, in order.

        >>> ContextSlice(1, 4).chunks, ContextSlice(1, 4, "contiguous").chunks
        ([1, 6], [1])
        """
        return KINDS[self.kind].chunks(self.number, self.num_slices)

    @property
    def num_chunks(self) -> int:
        """Number of equal chunks that sequences, or documents, are cut into."""
        return self.num_slices * len(self.chunks)

    @property
    def num_document_chunks(self) -> int:
        """Number of equal chunks that each document is cut into."""
        return KINDS[self.kind].document_chunks(self.num_chunks)

    def __call__(self, batch: Any, _: Any) -> Any:
        """Return the batch with the slice of each array of shape (num_sequences, length, ...).

        Arrays of one axis and the tables by segment stay whole. `UsageError` if arrays have different lengths, or a
        length or document cannot be cut into equal chunks.
        """
        if not isinstance(batch, Mapping):
            msg = f"{self!r} slices the arrays of a dict, but the batch is a {type(batch).__name__}"
            raise UsageError(msg, hint='format("numpy") or format("torch"); a map() after batch() must return a dict')
        arrays = {
            name: values
            for name, values in batch.items()
            if name not in _BY_SEGMENT and len(getattr(values, "shape", ())) > 1
        }
        self._check({name: int(values.shape[1]) for name, values in arrays.items()})
        cut = KINDS[self.kind].cutter(self, batch)
        return {**batch, **{name: cut(values) for name, values in arrays.items()}}

    def of_sequences(self, values: Any) -> Any:
        """Return the slice of whole sequences: numpy arrays, or tensors, of shape (num_sequences, length, ...).

        >>> [ContextSlice(number, 2).of_sequences(np.arange(8)[None]).tolist() for number in range(2)]
        [[[0, 1, 6, 7]], [[2, 3, 4, 5]]]
        """
        num_sequences, length, *row = values.shape
        # Indexing whole chunks copies memory 20 times as fast as indexing each token.
        chunks = values.reshape(num_sequences, self.num_chunks, length // self.num_chunks, *row)[:, self.chunks]
        return chunks.reshape(num_sequences, length // self.num_slices, *row)

    def of_documents(self, segments: NDArray[Any]) -> NDArray[np.int64]:
        """Return the places of the slices of documents in each sequence, shape (num_sequences, length / num_slices).

        ``segments`` has the segment of each token, shape (num_sequences, length); padding is a segment, too.
        `UsageError` if a segment cannot be cut into equal chunks.

        >>> segments = np.array([[1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]])
        >>> [ContextSlice(number, 2, "documents").of_documents(segments).tolist() for number in range(2)]
        [[[0, 3, 4, 5, 10, 11]], [[1, 2, 6, 7, 8, 9]]]
        """
        borders = np.ones((len(segments), segments.shape[1] + 1), dtype=bool)
        borders[:, 1:-1] = segments[:, 1:] != segments[:, :-1]
        begins, ends = np.nonzero(borders[:, :-1])[1], np.nonzero(borders[:, 1:])[1] + 1
        sizes, rests = np.divmod(ends - begins, self.num_chunks)
        if rests.any():
            worst = counted(int((ends - begins)[rests > 0][0]), "token")
            msg = f"{self!r} cuts each document into {self.num_chunks} equal chunks, but a document has {worst}"
            raise UsageError(msg, hint=f"pack_sequences(..., multiple_of={self.num_chunks}) pads documents")
        firsts = (begins[:, None] + np.multiply.outer(sizes, self.chunks)).reshape(-1)
        counts = np.repeat(sizes, len(self.chunks))
        places: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        return places.reshape(len(segments), segments.shape[1] // self.num_slices)

    def _check(self, lengths: Mapping[str, int]) -> None:
        """Raise `UsageError` unless all arrays have one length, a multiple of the number of chunks."""
        sizes = set(lengths.values())
        if len(sizes) == 1 and not max(sizes) % self.num_chunks:
            return
        shown = ", ".join(f"{name!r} of {counted(size, 'token')}" for name, size in lengths.items()) or "no arrays"
        msg = f"{self!r} cuts sequences into {self.num_chunks} equal chunks, but the batch has {shown}"
        hint = (
            "a map() after batch() sees whole sequences and keeps their shape, (sequences, tokens, ...): shift labels "
        )
        raise UsageError(msg, hint=f"{hint}by one token, and put -100 at the end")


class _Kind(NamedTuple):
    """A kind of slices.

    ``chunks`` returns the chunks of a slice from its number and the number of slices. ``cutter`` returns the function
    from an array to its slice, for the arrays of a batch. ``document_chunks`` returns the number of equal chunks that
    each document is cut into, from the number of chunks.
    """

    chunks: Callable[[int, int], list[int]]
    cutter: Callable[[ContextSlice, Mapping[str, Any]], Callable[[Any], Any]]
    document_chunks: Callable[[int], int]


def _from_both_ends(number: int, num_slices: int) -> list[int]:
    return [number, 2 * num_slices - 1 - number]


def _cutter_of_sequences(part: ContextSlice, _: Mapping[str, Any]) -> Callable[[Any], Any]:
    return part.of_sequences


def _cutter_of_documents(part: ContextSlice, batch: Mapping[str, Any]) -> Callable[[Any], Any]:
    if _SEGMENTS not in batch:
        msg = f"{part!r} slices documents by the field {_SEGMENTS!r}, but the batch has no such field"
        raise UsageError(msg, hint="keep the field in a map() after batch()")
    places = part.of_documents(np.asarray(batch[_SEGMENTS]))
    rows = np.arange(len(places))[:, None]
    return lambda values: values[rows, places]


KINDS = {
    "zigzag": _Kind(_from_both_ends, _cutter_of_sequences, lambda _: 1),
    "contiguous": _Kind(lambda number, _: [number], _cutter_of_sequences, lambda _: 1),
    "documents": _Kind(_from_both_ends, _cutter_of_documents, lambda num_chunks: num_chunks),
}
"""Kinds of slices, by name."""
