"""The stage that keeps a rank's slice of each sequence, for the ranks of a context parallel group.

In causal attention a token attends to all earlier tokens, so the last of n equal slices has nearly twice the mean work.
"zigzag" cuts a sequence into 2n chunks; slice r is chunk r and then chunk 2n - 1 - r, so all slices have the same work.

References
----------
Llama Team, "The Llama 3 Herd of Models", 2024, section 3.3.2. The slices are those of Megatron-LM
(``get_batch_on_this_cp_rank``), ring-flash-attention (``zigzag_ring_flash_attn_func``) and torch's load balancer for
``context_parallel``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.pipeline.sequence_arrays import DOCUMENT_IDS, SOURCE_IDS
from shoal.pipeline.stages.stage import Stage

CHUNKS: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    "zigzag": lambda number, num_slices: (number, 2 * num_slices - 1 - number),
    "contiguous": lambda number, _: (number,),
}
"""The chunks of slice ``number`` of ``num_slices``, by the kind of slices."""

_BY_SEGMENT = (DOCUMENT_IDS, SOURCE_IDS)


@dataclass(frozen=True, slots=True)
class ContextSlice(Stage):
    """A stage of batches that keeps slice ``number`` of ``num_slices`` of each sequence; ``kind`` is in `CHUNKS`."""

    number: int
    num_slices: int
    kind: str = "zigzag"

    def __repr__(self) -> str:
        return f"partition(context_parallel={self.num_slices})"

    @property
    def num_chunks(self) -> int:
        """Number of chunks in a sequence."""
        return self.num_slices * len(CHUNKS[self.kind](0, self.num_slices))

    def places(self, length: int) -> NDArray[np.int64]:
        """Return the places of the slice's tokens in a sequence of ``length`` tokens, shape (length / num_slices,).

        >>> ContextSlice(0, 2).places(8).tolist(), ContextSlice(1, 2).places(8).tolist()
        ([0, 1, 6, 7], [2, 3, 4, 5])
        """
        chunks = np.arange(length).reshape(self.num_chunks, -1)
        return chunks[list(CHUNKS[self.kind](self.number, self.num_slices))].reshape(-1)

    def __call__(self, batch: Any, _: Any) -> Any:
        """Return the batch with the slice of each array of shape (num_sequences, length, ...).

        Arrays of one axis and the tables by segment stay whole. `UsageError` if arrays have different lengths.
        """
        if not isinstance(batch, Mapping):
            msg = f"{self!r} slices the arrays of a dict, but the batch is a {type(batch).__name__}"
            raise UsageError(msg, hint='format("numpy") or format("torch"); a map() after batch() must return a dict')
        lengths = {
            name: int(values.shape[1])
            for name, values in batch.items()
            if name not in _BY_SEGMENT and len(getattr(values, "shape", ())) > 1
        }
        places = self.places(self._common(lengths))
        return {name: values[:, places] if name in lengths else values for name, values in batch.items()}

    def _common(self, lengths: Mapping[str, int]) -> int:
        """Return the length of all arrays; `UsageError` if they differ, or cannot be cut into chunks."""
        length, *others = sorted(set(lengths.values()), reverse=True) or [0]
        if length and not others and not length % self.num_chunks:
            return length
        shown = ", ".join(f"{name!r} of {counted(size, 'token')}" for name, size in lengths.items()) or "no arrays"
        msg = f"{self!r} cuts sequences into {self.num_chunks} equal chunks, but the batch has {shown}"
        hint = (
            "a map() after batch() sees whole sequences and keeps their shape, (sequences, tokens, ...): shift labels "
        )
        raise UsageError(msg, hint=f"{hint}by one token, and put -100 at the end")
