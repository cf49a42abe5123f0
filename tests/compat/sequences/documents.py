"""Documents for comparisons of packed sequences, and the sequences that shoal makes of them.

All tokens differ, so a token names its document and its place, in any order of sequences.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shoal
from shoal.errors import ShuffleWarning

PADDED_LABEL = -100


@dataclass(frozen=True)
class Documents:
    """Documents of ``sizes`` tokens for sequences of ``length`` tokens; tokens are 1, 2, ... through all documents."""

    length: int
    sizes: tuple[int, ...]

    @cached_property
    def learned(self) -> NDArray[np.bool_]:
        """Whether each token is in an answer; token ``t`` is at index ``t``."""
        rng = np.random.default_rng(len(self.sizes))
        is_answer = np.repeat(rng.random(len(self.sizes) * 6) < 0.6, rng.integers(1, 9, len(self.sizes) * 6))
        return np.resize(is_answer, sum(self.sizes) + 1)

    @cached_property
    def tokens(self) -> list[NDArray[np.int32]]:
        """Tokens of each document."""
        return np.split(np.arange(1, sum(self.sizes) + 1, dtype=np.int32), np.cumsum(self.sizes)[:-1])

    def labels(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Labels of tokens: -100 where the token is in no answer."""
        return np.where(self.learned[tokens], tokens, PADDED_LABEL)

    def write(self, directory: Path) -> None:
        """Write the documents with labels and masks, and their lengths as a column."""
        samples = (
            {
                "tokens": tokens,
                "labels": self.labels(tokens),
                "loss_mask": self.learned[tokens].astype(np.uint8),
                "num_tokens": len(tokens),
            }
            for tokens in self.tokens
        )
        shoal.pack.pack(samples, directory, format="mds", shard_bytes="1MiB", columns=["num_tokens"])


def sequences(directory: Path, length: int, strategy: str, **how: Any) -> dict[str, NDArray[Any]]:
    """All sequences of an epoch of shoal, as one batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShuffleWarning)
        fields, extras = ["labels", "loss_mask"], ["cu_seqlens", "document_ids"]
        if how.get("lengths", "num_tokens") is None:
            extras.remove("document_ids")
        packed = shoal.open(directory).pack_sequences(length, strategy=strategy, fields=fields, extras=extras, **how)
        (batch,) = packed.batch(1 << 20)
    return batch


def pieces(batch: dict[str, NDArray[Any]]) -> list[list[NDArray[Any]]]:
    """Tokens of each segment of each sequence, without padding."""
    cut = []
    for tokens, segments in zip(batch["tokens"], batch["segment_ids"], strict=True):
        kept = segments > 0
        cut.append(np.split(tokens[kept], np.flatnonzero(np.diff(segments[kept])) + 1))
    return cut


def learned_labels(batch: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Labels for a model that shifts labels: no document predicts the first token of the next document."""
    return np.where(batch["position_ids"] > 0, batch["labels"], PADDED_LABEL)


def sizes_of_pieces(batch: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Lengths between the borders in ``cu_seqlens``, without paddings."""
    borders = batch["cu_seqlens"]
    return np.diff(borders)[batch["segment_ids"].ravel()[borders[:-1]] > 0]


def drawn(*, long_documents: bool, num_sets: int = 8, seed: int = 0) -> list[Documents]:
    """Sets of documents with log-normal and uniform lengths, some longer than a sequence if ``long_documents``."""
    rng = np.random.default_rng(seed)
    sets = []
    for number in range(num_sets):
        length, count = int(rng.integers(4, 300)), int(rng.integers(2, 1_500))
        longest = 3 * length if long_documents else length
        sizes = rng.lognormal(rng.uniform(0, np.log(length)), rng.uniform(0.1, 1.5), count).astype(np.int64)
        if number % 3 == 0:
            sizes = rng.integers(1, longest + 1, count)
        sets.append(Documents(length, tuple(sizes.clip(1, longest).tolist())))
    return sets
