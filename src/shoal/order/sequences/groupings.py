"""Groupings of documents: packed into sequences of a fixed length, or batched with documents of similar length.

For batches, the documents of a block are sorted by length, from the longest down, and cut: the longest document of a
batch determines the number of documents. Buckets round lengths up, so that batches have few shapes; documents that do
not fill a batch go to the next shorter bucket. So all batches of a block are full, except the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_choice
from shoal.errors import UsageError
from shoal.order.protocol import as_whole, as_within
from shoal.order.sequences.packing_strategies import PackedBlock, best_fit, concatenated, first_fit

STRATEGIES = {"concat": concatenated, "first_fit": first_fit, "best_fit": best_fit}
"""Functions that pack the documents of a block, by name."""

TOO_LONG = ("cut", "drop", "refuse")
"""Treatments of a document with more tokens than a sequence."""


_NO_TOKENS = (
    "no sequence of {:,} documents: the documents have no tokens, or too many",
    'ds.index_column("num_tokens") has their lengths',
)
_MOST_LENGTH, _MOST_BLOCK = 1 << 24, 1 << 62


class RowArguments(Protocol):
    """Arguments that determine which samples share a row: a sequence, or a batch."""

    @property
    def verb(self) -> str:
        """Method of `Dataset` with these arguments."""

    @property
    def alike(self) -> int:
        """Number of consecutive batches that keep the order of `packed`; 0 for sequences, in a random order."""

    @property
    def none_made(self) -> tuple[str, str]:
        """Words for an epoch without a row, with a place for the number of samples; and the remedy."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, for a state."""


class Grouping(RowArguments, Protocol):
    """A grouping of a block's documents into sequences or batches, from their lengths."""

    @property
    def block(self) -> int:
        """Positions of documents that are grouped together, separately for each canonical node."""

    @property
    def longest(self) -> int | None:
        """Maximum number of tokens of a document; None without a limit."""

    @property
    def too_long(self) -> str:
        """Treatment of longer documents: one of `TOO_LONG`."""

    def packed(self, lengths: NDArray[np.int64]) -> PackedBlock:
        """Group documents of these lengths."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Arguments of packing: the ``length`` of sequences in tokens, the strategy, and the positions of a block.

    ``too_long`` is the treatment of longer documents; "refuse" is checked before. ``separated`` is True if documents
    have separators that the lengths in the index do not count. Documents take a multiple of ``multiple_of`` places.
    """

    verb: ClassVar[str] = "pack_sequences"
    none_made: ClassVar[tuple[str, str]] = _NO_TOKENS
    alike: ClassVar[int] = 0

    length: int
    strategy: str = "concat"
    block: int = 1 << 16
    too_long: str = "cut"
    separated: bool = False
    multiple_of: int = 1

    def __post_init__(self) -> None:
        for name, most in (("length", _MOST_LENGTH), ("block", _MOST_BLOCK), ("multiple_of", _MOST_LENGTH)):
            value = as_within(f"pack_sequences({name})", getattr(self, name), 1, most)
            object.__setattr__(self, name, value)
        if self.length % self.multiple_of:
            msg = f"pack_sequences({self.length}, multiple_of={self.multiple_of}): sequences must have room for whole "
            raise UsageError(f"{msg}multiples", hint=f"a length that is a multiple of {self.multiple_of}")
        as_choice("pack_sequences(strategy=)", self.strategy, tuple(STRATEGIES))
        as_choice("pack_sequences(too_long=)", self.too_long, TOO_LONG)

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a document in a sequence."""
        return self.length

    def packed(self, lengths: NDArray[np.int64]) -> PackedBlock:
        """Pack documents of these lengths, by the strategy; pieces have the places of documents, padding included."""
        if self.too_long == "drop":
            lengths = np.where(lengths > self.length, 0, lengths)
        if self.multiple_of > 1:
            lengths = -(-lengths // self.multiple_of) * self.multiple_of
        return STRATEGIES[self.strategy](lengths, self.length)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, for a state."""
        fields = {"length": self.length, "strategy": self.strategy, "block": self.block, "too_long": self.too_long}
        fields |= {"separated": True} if self.separated else {}
        return fields | ({"multiple_of": self.multiple_of} if self.multiple_of > 1 else {})


@dataclass(frozen=True, slots=True)
class LengthBatches:
    """Arguments of batches by length: at most ``size`` documents and at most ``max_tokens`` tokens, padding included.

    Attributes
    ----------
    buckets
        Ascending lengths to pad to; without buckets, the length of the longest document in a batch.
    too_long
        Treatment of documents of more than `longest` tokens; "refuse" is checked before.
    alike
        Number of consecutive batches of neighbouring lengths.
    block
        Positions of documents that are sorted together, separately for each canonical node.
    """

    verb: ClassVar[str] = "batch_by_length"
    none_made: ClassVar[tuple[str, str]] = _NO_TOKENS

    size: int | None = None
    max_tokens: int | None = None
    buckets: tuple[int, ...] = ()
    too_long: str = "refuse"
    alike: int = 8
    block: int = 1 << 16

    def __post_init__(self) -> None:
        if self.size is None and self.max_tokens is None:
            msg = "batch_by_length() takes a number of documents, max_tokens=, or both"
            raise UsageError(msg, hint="batch_by_length(32) or batch_by_length(max_tokens=16_384)")
        for name in ("size", "max_tokens", "alike", "block"):
            value = getattr(self, name)
            if value is None and name in ("size", "max_tokens"):
                continue
            if (number := as_whole(name, value)) < 1:
                raise UsageError(f"batch_by_length({name}={number}) must be at least 1")
            object.__setattr__(self, name, number)
        buckets = tuple(as_whole("buckets", border) for border in self.buckets)
        if list(buckets) != sorted(set(buckets)) or (buckets and buckets[0] < 1):
            msg = f"batch_by_length(buckets={list(buckets)}) takes lengths of at least 1, in ascending order"
            raise UsageError(msg)
        if buckets and self.max_tokens is not None and buckets[-1] > self.max_tokens:
            msg = f"a batch of max_tokens={self.max_tokens} has no room for a document of the bucket {buckets[-1]}"
            raise UsageError(msg, hint="a larger max_tokens=, or a smaller last bucket")
        object.__setattr__(self, "buckets", buckets)
        as_choice("batch_by_length(too_long=)", self.too_long, TOO_LONG)

    @property
    def longest(self) -> int | None:
        """Maximum number of tokens of a document in a batch; None without a limit."""
        return self.buckets[-1] if self.buckets else self.max_tokens

    def padded(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths rounded up to their buckets, same shape.

        >>> LengthBatches(size=8, buckets=(16, 64)).padded(np.array([3, 16, 17])).tolist()
        [16, 16, 64]
        """
        if not self.buckets:
            return lengths
        borders = np.array(self.buckets, dtype=np.int64)
        return borders[np.searchsorted(borders, lengths)]

    def packed(self, lengths: NDArray[np.int64]) -> PackedBlock:
        """Cut documents of these lengths into batches, without empty documents; 0.1 us per document.

        >>> cut = LengthBatches(max_tokens=12).packed(np.array([3, 9, 4, 5, 2]))
        >>> [cut.document[start:stop].tolist() for start, stop in zip(cut.first_piece, cut.first_piece[1:])]
        [[1], [3, 2], [0, 4]]
        """
        longest = self.longest
        if longest is not None and self.too_long == "drop":
            lengths = np.where(lengths > longest, 0, lengths)
        most = longest or max(1, int(lengths.max(initial=0)))
        num_pieces = -(-lengths // most)
        document = np.repeat(np.arange(len(lengths)), num_pieces)
        start = (np.arange(len(document)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)) * most
        stop = np.minimum(start + most, lengths[document])
        widths = self.padded(stop - start)
        by_width = np.argsort(-widths, kind="stable")
        first = self._cuts(widths[by_width].tolist())
        return PackedBlock(0, first, document[by_width], start[by_width], stop[by_width])

    def _cuts(self, widths: list[int]) -> NDArray[np.int64]:
        """Return the first document of each batch, then the number of documents; ``widths`` descend."""
        cuts, at, number = [0], 0, len(widths)
        while at < number:
            room = number if self.max_tokens is None else self.max_tokens // widths[at]
            at = min(number, at + (room if self.size is None else min(room, self.size)))
            cuts.append(at)
        return np.array(cuts, dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, for a state."""
        names = ("size", "max_tokens", "too_long", "alike", "block")
        return {**{name: getattr(self, name) for name in names}, "buckets": list(self.buckets)}
