"""The scan of one shard: where its samples lie, from which an index is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview

BY_BORDERS = "by_borders"
"""The key in the head of a shard whose sample borders come from the index of another tool."""
ALL_VERIFIED = "all seen"
"""The value of that key if each border was compared with the shard."""
BEHIND_BYTES = 3 * 512
"""Bytes behind some samples of a tar that show whether the last one continues there: three blocks."""


@dataclass(frozen=True, slots=True)
class ShardScan:
    """The byte ranges of the samples of one shard.

    ``sample_starts`` has shape (num_samples + 1,), int64, ascending: sample ``i`` occupies bytes
    ``[sample_starts[i], sample_starts[i + 1])`` of the shard, anything between two samples (directories, links,
    blank lines) belonging to the later one. Bytes before the first and after the last sample belong to none.
    ``layout_crcs`` has shape (num_samples,), uint32: a CRC-32 of what the scan read of each sample (the headers of
    its tar members; the whole line of a text format), by which a shard is recognised again.
    ``head`` holds what `Format.parse` needs from elsewhere in the shard; JSON types only, small.
    ``notes`` counts what the scan met and did not index (``{"links": 3}``), for display.

    If no bytes belong to a single sample (a row group, a compressed shard), the spans between two ``sample_starts``
    are *pieces* instead, each of which is an extent: ``piece_samples``, shape (num_pieces,), int64, positive, is the
    number of samples in each, ``piece_decoded_bytes`` the bytes it takes in memory, and ``layout_crcs`` has one value
    per piece. If a piece needs bytes with which the next one begins, ``piece_ends``, shape (num_pieces,), int64,
    ascending, holds the end of each piece's bytes; the last equals the last of ``sample_starts``, and none lies beyond
    the start of the next piece but one.
    """

    sample_starts: NDArray[np.int64]
    layout_crcs: NDArray[np.uint32]
    head: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    piece_samples: NDArray[np.int64] | None = None
    piece_decoded_bytes: NDArray[np.int64] | None = None
    piece_ends: NDArray[np.int64] | None = None

    @property
    def ends(self) -> NDArray[np.int64]:
        """End of the bytes of each sample, or piece."""
        return self.sample_starts[1:] if self.piece_ends is None else self.piece_ends

    @property
    def num_samples(self) -> int:
        """Number of samples in the shard."""
        return len(self.sample_starts) - 1 if self.piece_samples is None else int(self.piece_samples.sum())

    def samples_before(self) -> NDArray[np.int64]:
        """Return the number of samples before each of ``sample_starts``; same shape."""
        if self.piece_samples is None:
            return np.arange(len(self.sample_starts))
        return np.concatenate([[0], np.cumsum(self.piece_samples)])


def has_foreign_borders(head: Mapping[str, Any]) -> bool:
    """Return True if the sample borders of a shard come from the index of another tool."""
    return bool(head.get(BY_BORDERS))


def has_unverified_borders(head: Mapping[str, Any]) -> bool:
    """Return True if they do, and some were not compared with the shard: a sample may be cut in two."""
    return has_foreign_borders(head) and head[BY_BORDERS] != ALL_VERIFIED
