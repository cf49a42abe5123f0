"""The pieces of a compressed shard: the rules for cutting it, and the table of pieces in the head of the shard.

A zstd frame, or a member of gzip, bz2 or xz, was compressed and is decompressed separately. A piece holds
whole samples and is read as whole frames. Where a frame ends with a sample, a piece ends too. Where a sample continues
in the next frame, the frame with the border belongs to both pieces: its bytes are read and decompressed for either of
them, and once for a chunk that holds both.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.compressed.codecs import TooMuchError, limit_hint
from shoal.formats.compressed.decompressed import FrameBorders, Members
from shoal.formats.compressed.packed_heads import packed
from shoal.formats.shard_format import Span
from shoal.formats.writing.joined_checksums import joined_crcs
from shoal.index.cutting import EXTENT_BYTES

HINT = "the shard is damaged, or not the one that was indexed: copy it again, or index it again"

# At most one in this many bytes of a piece is read again for the next one, stored as well as decompressed. Halving it
# doubles the bytes read twice; doubling it makes pieces twice as large, so that a window holds half as many.
_OWN_BYTES_FOR_A_SHARED_ONE = 8

_SHARED_FRAMES = 2  # form of a table whose pieces share frames; the first form has no number
_LARGEST_BYTES = 1 << 45  # so that sums over all pieces do not overflow


class WhereToCut(NamedTuple):
    """Permission to cut a shard: at frame ends, and also inside frames, unlike in earlier versions."""

    at_ends: bool = True
    inside_frames: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class CompressedPieces:
    """The pieces of a shard, in its bytes and in its *content*, the decompressed bytes.

    ``first_byte`` and ``end_byte``, ``content_first`` and ``content_end`` enclose the frames of each piece, shape
    (num_pieces,), int64, ascending; a piece may begin with the last frame of the piece before. The samples of piece
    ``i`` are the content ``[borders[i], borders[i + 1])``; shape (num_pieces + 1,).
    """

    first_byte: NDArray[np.int64]
    end_byte: NDArray[np.int64]
    content_first: NDArray[np.int64]
    content_end: NDArray[np.int64]
    borders: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first_byte)

    @property
    def share_frames(self) -> bool:
        """True if any frame belongs to two pieces."""
        return bool((self.first_byte[1:] < self.end_byte[:-1]).any())

    def crcs(self, members: Members) -> NDArray[np.uint32]:
        """Return the CRC-32 of each piece's compressed bytes, from the CRCs of the members; shape (num_pieces,)."""
        ends, known = np.array(members.ends, dtype=np.int64), np.array(members.crcs, dtype=np.uint32)
        first = np.searchsorted(ends, self.first_byte, side="right")
        after = np.searchsorted(ends, self.end_byte) + 1
        numbers = np.concatenate([np.arange(*of_piece) for of_piece in zip(first, after, strict=True)])
        cuts = np.concatenate([[0], np.cumsum(after - first)])
        return joined_crcs(known[numbers], np.diff(ends, prepend=0)[numbers], cuts)


def cut_pieces(
    frame_borders: FrameBorders, members: Members, *, where: WhereToCut
) -> tuple[CompressedPieces, NDArray[np.int64]]:
    """Cut a shard into pieces with 64 KiB of content or more, by the borders of its samples; O(members).

    Returns the pieces, and the number of samples in each. A frame is shared by two pieces only if the first one has
    eight times its bytes besides, stored and decompressed: so all pieces together have at most an eighth more bytes
    than the shard.
    """
    frames = _Frames.of(frame_borders, members)
    cuts = [_Cut(0, 0, 0, frame_borders.first, shared=False)]
    if where.at_ends:
        _add_cuts(cuts, frames, 0, inside=where.inside_frames)
        if cuts[-1].shared and frames.leave_little(cuts[-1].member):
            # Without this cut, later frame ends count again: a shard that shares no frame is cut as it always was.
            _add_cuts(cuts, frames, cuts.pop().member + 1, inside=False)
    begin = np.array([cut.member for cut in cuts])
    end = np.array([*(cut.end_member for cut in cuts[1:]), len(members) - 1])
    borders = np.array([*(cut.border for cut in cuts), frame_borders.last], dtype=np.int64)
    samples = np.array([*(cut.sample for cut in cuts), frame_borders.num_samples], dtype=np.int64)
    pieces = CompressedPieces(
        frames.byte_first[begin], frames.byte_end[end], frames.first[begin], frames.end[end], borders
    )
    return pieces, np.diff(samples)


class _Cut(NamedTuple):
    """A cut: a piece ends with ``end_member``, the next begins with ``member`` (the same if shared) and ``sample``.

    The sample begins at ``border`` of the content.
    """

    member: int
    end_member: int
    sample: int
    border: int
    shared: bool


class _Frames(NamedTuple):
    """The borders of frames, in the bytes and in the content, and the samples there: arrays of one length.

    ``next_sample`` is the first that begins at the end of a frame or after it; ``ends_sample`` is True if it begins
    right there. ``inner_sample`` is the first that begins after the start of a frame, ``inner_border`` is where it
    begins, and ``has_border`` is True if that lies in the frame.
    """

    first: NDArray[np.int64]
    end: NDArray[np.int64]
    byte_first: NDArray[np.int64]
    byte_end: NDArray[np.int64]
    next_sample: NDArray[np.int64]
    ends_sample: NDArray[np.bool_]
    inner_sample: NDArray[np.int64]
    inner_border: NDArray[np.int64]
    has_border: NDArray[np.bool_]
    num_samples: int

    @staticmethod
    def of(borders: FrameBorders, members: Members) -> _Frames:
        end, byte_end = (np.array(of, dtype=np.int64) for of in (members.content_ends, members.ends))
        first, byte_first = (np.concatenate([[0], of[:-1]]) for of in (end, byte_end))
        before, at_or_before, behind = borders.rows().T
        after, inner, inner_border = before[1:], at_or_before[:-1], behind[:-1]
        ends_sample = at_or_before[1:] > after
        has_border = (inner_border > 0) & (inner_border < end)
        return _Frames(
            first, end, byte_first, byte_end, after, ends_sample, inner, inner_border, has_border, borders.num_samples
        )

    def may_share(self, begin: int, frame: int) -> bool:
        """Return True if a piece from frame ``begin`` on has enough before ``frame`` to share that one."""
        own, shared = self.first[frame] - self.first[begin], self.end[frame] - self.first[frame]
        own_bytes = self.byte_first[frame] - self.byte_first[begin]
        shared_bytes = self.byte_end[frame] - self.byte_first[frame]
        least = _OWN_BYTES_FOR_A_SHARED_ONE
        return bool(own >= EXTENT_BYTES and own >= least * shared and own_bytes >= least * shared_bytes)

    def leave_little(self, frame: int) -> bool:
        """Return True if less follows a shared frame than half the minimum that a piece has besides that frame."""
        shared, rest = self.end[frame] - self.first[frame], self.end[-1] - self.end[frame]
        return bool(2 * rest < _OWN_BYTES_FOR_A_SHARED_ONE * shared)


def _add_cuts(cuts: list[_Cut], frames: _Frames, begin: int, *, inside: bool) -> None:
    """Cut where the piece from frame ``begin`` on is large enough, except at the end of the shard."""
    candidates = frames.ends_sample | (frames.has_border & inside)
    for frame in (begin + np.flatnonzero(candidates[begin:-1])).tolist():
        last, is_shared = cuts[-1], not frames.ends_sample[frame]
        sample = int((frames.inner_sample if is_shared else frames.next_sample)[frame])
        border = int((frames.inner_border if is_shared else frames.end)[frame])
        if not last.sample < sample < frames.num_samples:
            continue
        if is_shared and frames.may_share(last.member, frame):
            cuts.append(_Cut(frame, frame, sample, border, shared=True))
        elif not is_shared and frames.end[frame] - frames.first[last.member] >= EXTENT_BYTES:
            cuts.append(_Cut(frame + 1, frame, sample, border, shared=False))


def head_of_pieces(pieces: CompressedPieces) -> dict[str, Any]:
    """Pack the pieces for a head: about 10 bytes each, 20 if they share frames."""
    rows = [
        np.diff(pieces.first_byte, append=pieces.end_byte[-1:]),
        np.diff(pieces.content_first, append=pieces.content_end[-1:]),
    ]
    if pieces.share_frames:
        rows += [
            np.append(pieces.end_byte[:-1] - pieces.first_byte[1:], 0),
            np.append(pieces.content_end[:-1] - pieces.content_first[1:], 0),
            pieces.borders[:-1] - pieces.content_first,
        ]
    table = packed(np.stack(rows).astype("<i8").tobytes())
    return {
        "pieces": {"form": _SHARED_FRAMES, "table": table} if pieces.share_frames else table,
        "begin": int(pieces.borders[0]),
        "end": int(pieces.borders[-1]),
    }


def may_cut(head: Mapping[str, Any]) -> WhereToCut:
    """Return where to cut a shard, so that the cuts match the index that has this ``head``."""
    return WhereToCut(at_ends="pieces" in head, inside_frames=isinstance(head.get("pieces"), Mapping))


class PiecesOfSpan(NamedTuple):
    """The content of some pieces: ``[begin, end)`` in all, with the samples in ``[low, high)`` of it.

    ``stored`` are the start and end of each piece in the bytes that were read.
    """

    begin: int
    end: int
    low: int
    high: int
    stored: list[tuple[int, int]]


def pieces_of_span(span: Span, end_byte: int, *, limit_bytes: int) -> PiecesOfSpan:
    """Return the content of a span's pieces, by the head of their shard; the content has at most ``limit_bytes``.

    ``origin`` in the head is the start of the first piece; without ``origin``, the piece begins with the shard. Raises
    `ShardError`: no pieces lie there, or the head is damaged or from a newer version.
    """
    first_byte = span.first_byte
    try:
        pieces = _unpacked(span.head, limit_bytes)
        origin = int(span.head.get("origin", 0))
    except (ValueError, LookupError, TypeError, ArithmeticError, zlib.error) as error:
        msg = f"the table of pieces in the index cannot be used: {error}"
        hint = "the index is damaged, or of a newer version: update shoal, or index the shards again"
        if isinstance(error, TooMuchError):
            hint = f"{limit_hint()}; else {hint}"
        raise ShardError(msg, shard=span.shard, byte=first_byte, hint=hint) from None
    begin, end = first_byte - origin, end_byte - origin
    first, last = np.searchsorted(pieces.first_byte, begin), np.searchsorted(pieces.end_byte, end)
    inside = first <= last < len(pieces)
    if not inside or pieces.first_byte[first] != begin or pieces.end_byte[last] != end:
        msg = f"the index has no pieces of this shard at bytes [{first_byte}, {end_byte})"
        raise ShardError(msg, shard=span.shard, byte=first_byte, hint=HINT)
    firsts, ends = ((of[first : last + 1] - begin).tolist() for of in (pieces.first_byte, pieces.end_byte))
    low, high = (int(border) for border in pieces.borders[[first, last + 1]])
    content = int(pieces.content_first[first]), int(pieces.content_end[last])
    return PiecesOfSpan(*content, low, high, list(zip(firsts, ends, strict=True)))


def _unpacked(head: Mapping[str, Any], limit_bytes: int) -> CompressedPieces:
    """Return the pieces that `head_of_pieces` wrote into a head; ValueError if they contradict each other."""
    table, num_rows = head["pieces"], 2
    if isinstance(table, Mapping):
        if table["form"] != _SHARED_FRAMES:
            raise ValueError(f"the pieces are in form {table['form']!r:.40}; shoal reads forms 1 and {_SHARED_FRAMES}")
        table, num_rows = table["table"], 5
    return _tabled(str(table), num_rows, int(head["begin"]), int(head["end"]), limit_bytes)


@lru_cache(maxsize=256)
def _tabled(text: str, num_rows: int, begin: int, end: int, limit_bytes: int) -> CompressedPieces:
    compressed = base64.b64decode(text, validate=True)  # binascii.Error is a ValueError
    most_pieces = limit_bytes // EXTENT_BYTES + 2  # all but the last one hold at least that much
    most_bytes = most_pieces * num_rows * 8
    data = zlib.decompressobj().decompress(compressed, most_bytes + 1)
    if not data:
        raise ValueError("the table is empty")
    if len(data) > most_bytes:
        raise TooMuchError(limit_bytes)
    rows = np.frombuffer(data, dtype="<i8").astype(np.int64).reshape(num_rows, -1)
    num_pieces = rows.shape[1]
    if (rows < 0).any() or (rows[:2] == 0).any() or (rows > _LARGEST_BYTES).any():
        raise ValueError("the sizes of some pieces are impossible")
    first_byte, content_first = (np.concatenate([[0], np.cumsum(row)]) for row in rows[:2])
    shared = np.zeros((3, num_pieces), dtype=np.int64) if num_rows == 2 else rows[2:]
    borders = np.append(content_first[:-1] + shared[2], end)
    borders[0] = begin
    pieces = CompressedPieces(
        first_byte[:-1], first_byte[1:] + shared[0], content_first[:-1], content_first[1:] + shared[1], borders
    )
    # Each piece ends in the next one at the latest, and holds its samples.
    ends_first = (pieces.end_byte[:-1] < pieces.end_byte[1:]) & (pieces.content_end[:-1] < pieces.content_end[1:])
    holds_samples = (
        (pieces.content_first <= pieces.borders[:-1])
        & (pieces.borders[:-1] < pieces.borders[1:])
        & (pieces.borders[1:] <= pieces.content_end)
    )
    if (wrong := np.flatnonzero(~(np.append(ends_first, True) & holds_samples))).size:
        raise ValueError(f"piece {wrong[0]} does not hold its samples, or ends after the next piece")
    if int(pieces.content_end[-1]) > limit_bytes:
        raise TooMuchError(limit_bytes)
    return pieces
