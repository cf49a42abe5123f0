"""What a compressed shard holds, read forward while it is decompressed, and what its frames are.

A scan of the format inside asks for one range behind the other. What lies before the last of them is let go of, so that
some MiB are held of whatever size of content.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.formats.compressed.codecs import decompressed_pieces
from shoal.formats.shard_format import Buffer

__all__ = ["DecompressedContent", "FrameBorders", "KnownFrames", "Members", "ReadAnywhere"]


class Members:
    """The members or frames of a shard as they are met: where each ends, in its bytes and in its content, and its CRC.

    28 bytes each, since a shard of a hundred MB may have millions of them that hold nothing.
    """

    __slots__ = ("content_ends", "crcs", "ends")

    def __init__(self) -> None:
        self.ends, self.content_ends, self.crcs = array("q"), array("q"), array("I")

    def __len__(self) -> int:
        return len(self.ends)

    def add(self, end_byte: int, content_end_byte: int, crc: int) -> None:
        """The next one."""
        self.ends.append(end_byte)
        self.content_ends.append(content_end_byte)
        self.crcs.append(crc)


class _Crcs:
    """Parts as they are handed on, and the CRC-32 of their bytes between any two places that lie in the newest one."""

    def __init__(self, parts: Iterable[Buffer]) -> None:
        self._parts = parts
        self._newest: Buffer = b""
        self._newest_byte = self._done_byte = self._crc = self.num_bytes = 0

    def __iter__(self) -> Iterator[Buffer]:
        for part in self._parts:
            self._take_in(self.num_bytes)
            self._newest, self._newest_byte = part, self.num_bytes
            self.num_bytes += len(part)
            yield part

    def up_to(self, end_byte: int) -> int:
        """The CRC of what lies between the place that was asked for last and this one."""
        self._take_in(end_byte)
        crc, self._crc = self._crc, 0
        return crc

    def _take_in(self, end_byte: int) -> None:
        within = memoryview(self._newest)[self._done_byte - self._newest_byte : end_byte - self._newest_byte]
        self._crc, self._done_byte = crc32(within, self._crc), end_byte


class DecompressedContent:
    """The `shoal.formats.forward_scan.Content` of compressed bytes that come in parts, at most ``limit_bytes``.

    It was decompressed up to ``position``, and is held from ``first_byte`` on. ``members`` are known as far; one that
    ends where the last read did may be missing.

    Reads raise `CodecError` where the bytes are damaged or cut short, or hold more, and `UsageError` where the library
    of the codec is not installed.
    """

    __slots__ = ("_crcs", "_held", "_pieces", "first_byte", "members", "num_bytes", "position")

    def __init__(self, codec: str, parts: Iterable[Buffer], *, limit_bytes: int) -> None:
        self._crcs = _Crcs(parts)
        self._pieces = decompressed_pieces(codec, self._crcs, limit_bytes=limit_bytes)
        self._held = bytearray()
        self.first_byte = self.position = 0
        self.num_bytes: int | None = None
        self.members = Members()

    def read(self, first_byte: int, end_byte: int, /) -> bytes:
        """The bytes ``[first_byte, end_byte)`` of the content, fewer only at its end."""
        self._let_go(first_byte)
        while self.position < end_byte and self._advance(first_byte):
            pass
        return bytes(memoryview(self._held)[first_byte - self.first_byte : end_byte - self.first_byte])

    def read_to_end(self) -> int:
        """Decompress what is left, keeping none of it; the number of bytes of all."""
        self._let_go(max(self.position, self.first_byte))
        while self._advance(self.position + (1 << 62)):
            pass
        return self.position

    def _let_go(self, first_byte: int) -> None:
        """Forget what lies before."""
        if first_byte < self.first_byte:
            msg = f"byte {first_byte} of the content was let go of: it is held from {self.first_byte} on"
            raise ValueError(msg)
        del self._held[: first_byte - self.first_byte]
        self.first_byte = first_byte

    def _advance(self, first_byte: int) -> bool:
        """Decompress some more, of which what lies before ``first_byte`` is not kept; False at the end."""
        piece = next(self._pieces, None)
        if piece is None:
            if not len(self.members) and self._crcs.num_bytes:  # of a codec that has none
                self._add_member(self._crcs.num_bytes)
            self.num_bytes = self.position
            return False
        if isinstance(piece, int):
            self._add_member(piece)
            return True
        begin = max(0, first_byte - self.position)
        self._held += memoryview(piece)[begin:]
        self.position += len(piece)
        return True

    def _add_member(self, end_byte: int) -> None:
        self.members.add(end_byte, self.position, self._crcs.up_to(end_byte))


class ReadAnywhere:
    """Reads any range of a content whose end was come to, for scans that do not go forward alone.

    Going back decompresses again from the front, which ``from_front`` gives.
    """

    def __init__(self, from_front: Callable[[], DecompressedContent]) -> None:
        self._from_front = from_front
        self._content = from_front()

    def __call__(self, first_byte: int, end_byte: int, /) -> bytes:
        """The bytes ``[first_byte, end_byte)``."""
        if first_byte < self._content.first_byte:
            self._content = self._from_front()
        return self._content.read(first_byte, end_byte)


class KnownFrames(NamedTuple):
    """The frames of a content that need not be read, since a table says where they end, up to ``position``."""

    members: Members
    position: int


class FrameBorders:
    """Which samples begin around the ends of frames: all that it takes to cut a shard, of however many samples.

    Takes samples as `FoundSamples`, when the content was read to ``content.position``. Row ``i`` of `rows` is about the
    start of frame ``i``, and the last one about the end of all: how many borders of samples lie before it, how many
    there or before, and the first border behind it, 0 where there is none. ``num_borders`` is one more than there are
    samples, ``first`` and ``last`` are the first border and the last.
    """

    __slots__ = ("_base", "_content", "_known", "_rows", "_waiting", "first", "last", "num_borders")

    def __init__(self, content: DecompressedContent | KnownFrames) -> None:
        self._content = content
        self._known = np.zeros(0, dtype=np.int64)  # the last border that was looked at, and those that wait
        self._base = 0  # how many lie before `_known`
        self._rows = array("q")
        self.first = self.last = self.num_borders = 0

    def add(self, borders: NDArray[np.int64], crcs: NDArray[np.uint32], /) -> None:  # noqa: ARG002  # as of `FoundSamples`
        """The next borders; the CRCs of samples do not matter."""
        if not len(borders):
            return
        if not self.num_borders:
            self.first = int(borders[0])
        self.num_borders += len(borders)
        self.last = int(borders[-1])
        self._known = np.concatenate([self._known, borders])
        # Frames that end before where the content was read to are all known: one that ends there may be missing.
        self._resolve(min(self._content.position, self.last))

    @property
    def num_samples(self) -> int:
        """Of all of the shard."""
        return max(0, self.num_borders - 1)

    def rows(self) -> NDArray[np.int64]:
        """What is known of each frame's start and the end of the last, once all was read; shape (num_frames + 1, 3)."""
        self._resolve(1 << 62)
        return np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 3)

    def _resolve(self, before: int) -> None:
        """Look at the ends of frames below ``before``, none of which is still to come."""
        ends = self._content.members.content_ends
        num_done = len(self._rows) // 3
        stop = bisect_left(ends, before)
        places = np.array(ends[max(0, num_done - 1) : stop], dtype=np.int64)
        if not num_done and before > 0:
            places = np.concatenate([[0], places])
        known = self._known
        if len(places):
            at_or_before = np.searchsorted(known, places, side="right")
            behind = known[np.minimum(at_or_before, len(known) - 1)] if len(known) else np.zeros_like(places)
            behind = np.where(at_or_before < len(known), behind, 0)
            rows = np.stack([np.searchsorted(known, places) + self._base, at_or_before + self._base, behind], axis=1)
            self._rows.frombytes(np.ascontiguousarray(rows, dtype=np.int64).tobytes())
        num_passed = max(0, int(np.searchsorted(known, before)) - 1)
        self._known = known[num_passed:].copy()
        self._base += num_passed
