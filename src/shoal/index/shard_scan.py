"""The scan of a shard: where its samples lie. An index is built from scans."""

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
"""The value of `BY_BORDERS` in a head if each border was compared with the shard."""
BEHIND_BYTES = 3 * 512
"""Three blocks after some samples of a tar: they show whether the last sample continues there."""


@dataclass(frozen=True, slots=True)
class ShardScan:
    r"""The byte ranges of the samples of a shard.

    ``sample_starts`` has shape (num_samples + 1,), int64, ascending: sample ``i`` occupies bytes
    ``[sample_starts[i], sample_starts[i + 1])`` of the shard. Bytes between two samples (directories, links, blank
    lines) belong to the later sample; bytes before the first and after the last sample to none. ``layout_crcs``, shape
    (num_samples,), uint32, identifies the shard later: the CRC-32 of the bytes that the scan read of each sample (the
    headers of its tar members; the whole line of a text format). ``head`` holds other facts about the shard for
    `Format.parse`; JSON types only, small. ``notes`` counts entries that were not indexed (``{"links": 3}``), for
    display.

    If no bytes belong to a single sample (a row group, a compressed shard), the spans between two ``sample_starts`` are
    *pieces*, and each piece is an extent: ``piece_samples``, shape (num_pieces,), int64, positive, has the number of
    samples of each piece, ``piece_decoded_bytes`` its bytes in memory, and ``layout_crcs`` one value per piece. If a
    piece needs the first bytes of the next piece, ``piece_ends``, shape (num_pieces,), int64, ascending, holds the end
    of the bytes of each piece; the last end equals the last of ``sample_starts``, and piece ``i`` ends at or before the
    start of piece ``i + 2``.

    Examples
    --------
    >>> data = b"one\ntwo\n"
    >>> shoal.formats.Text().scan(lambda first, end: data[first:end], len(data), shard="a.txt").sample_starts
    array([0, 4, 8])
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
        """End of the bytes of each sample or piece."""
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
    """Return True if some of these borders were not compared with the shard, so that a sample may be cut in two."""
    return has_foreign_borders(head) and head[BY_BORDERS] != ALL_VERIFIED
