"""The content of a compressed shard, decompressed while it is read forward, and the borders of its frames.

A scan of the inner format reads ascending ranges. Content before the latest range is released, so only some MiB are in
memory, whatever the size of the content.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.formats.compressed.codecs import parts_and_member_ends
from shoal.index.shard_scan import Buffer


class Members:
    """The members or frames of a shard read so far: the end of each, in bytes and in content, and its CRC.

    20 bytes each, since a shard of a hundred MB may have millions of empty ones.
    """

    def __init__(self) -> None:
        self.ends, self.content_ends, self.crcs = array("q"), array("q"), array("I")

    def __len__(self) -> int:
        return len(self.ends)

    def add(self, end_byte: int, content_end_byte: int, crc: int) -> None:
        """Add the next member."""
        self.ends.append(end_byte)
        self.content_ends.append(content_end_byte)
        self.crcs.append(crc)


class _Crcs:
    """Parts passed through, with the CRC-32 of their bytes between any two positions in the newest part."""

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
        """Return the CRC of the bytes between the previously requested position and this one."""
        self._take_in(end_byte)
        crc, self._crc = self._crc, 0
        return crc

    def _take_in(self, end_byte: int) -> None:
        within = memoryview(self._newest)[self._done_byte - self._newest_byte : end_byte - self._newest_byte]
        self._crc, self._done_byte = crc32(within, self._crc), end_byte


class DecompressedContent:
    """The `shoal.formats.shard_format.Content` of compressed bytes that come in parts, at most ``limit_bytes``.

    It is decompressed up to ``position``, and held from ``first_byte`` on. ``members`` are known up to ``position``,
    except perhaps one that ends exactly with the last read.

    Reads raise `CodecError` if the bytes are damaged or cut short, or hold more, and `UsageError` if the library of the
    codec is not installed.
    """

    def __init__(self, codec: str, parts: Iterable[Buffer], *, limit_bytes: int) -> None:
        self._crcs = _Crcs(parts)
        self._parts = parts_and_member_ends(codec, self._crcs, limit_bytes=limit_bytes)
        self._held = bytearray()
        self.first_byte = self.position = 0
        self.num_bytes: int | None = None
        self.members = Members()

    def read(self, first_byte: int, end_byte: int, /) -> bytes:
        """Return the bytes ``[first_byte, end_byte)`` of the content, fewer only at its end."""
        self._release(first_byte)
        while self.position < end_byte and self._advance(first_byte):
            pass
        return bytes(memoryview(self._held)[first_byte - self.first_byte : end_byte - self.first_byte])

    def read_to_end(self) -> int:
        """Decompress the rest, keeping none of it; return the size of the whole content."""
        self._release(max(self.position, self.first_byte))
        while self._advance(self.position + (1 << 62)):
            pass
        return self.position

    def _release(self, first_byte: int) -> None:
        """Release the content before ``first_byte``."""
        if first_byte < self.first_byte:
            raise ValueError(f"byte {first_byte} of the content was released; bytes from {self.first_byte} on are left")
        del self._held[: first_byte - self.first_byte]
        self.first_byte = first_byte

    def _advance(self, first_byte: int) -> bool:
        """Decompress some more, dropping bytes before ``first_byte``; return False at the end."""
        part = next(self._parts, None)
        if part is None:
            if not len(self.members) and self._crcs.num_bytes:  # of a codec without members
                self._add_member(self._crcs.num_bytes)
            self.num_bytes = self.position
            return False
        if isinstance(part, int):
            self._add_member(part)
            return True
        begin = max(0, first_byte - self.position)
        self._held += memoryview(part)[begin:]
        self.position += len(part)
        return True

    def _add_member(self, end_byte: int) -> None:
        self.members.add(end_byte, self.position, self._crcs.up_to(end_byte))


class ReadAnywhere:
    """A reader of any range of a content of known size, for scans that do not only read forward.

    Going back decompresses again from the front, with a new content from ``from_front``.
    """

    def __init__(self, from_front: Callable[[], DecompressedContent]) -> None:
        self._from_front = from_front
        self._content = from_front()

    def __call__(self, first_byte: int, end_byte: int, /) -> bytes:
        """Return the bytes ``[first_byte, end_byte)``."""
        if first_byte < self._content.first_byte:
            self._content = self._from_front()
        return self._content.read(first_byte, end_byte)


class KnownFrames(NamedTuple):
    """The frames of a content up to ``position``, from a table of their ends."""

    members: Members
    position: int


class FrameBorders:
    """The sample borders around the ends of frames: enough to cut a shard of any number of samples.

    A `BorderSink`, filled while the content has been read to ``content.position``. Row ``i`` of `rows`
    describes the start of frame ``i``, and the last row the end of all: the number of sample borders before it, the
    number at or before it, and the first border after it, 0 if there is none. ``num_borders`` is one more than the
    number of samples, ``first`` and ``last`` are the first and last border.
    """

    def __init__(self, content: DecompressedContent | KnownFrames) -> None:
        self._content = content
        self._known = np.zeros(0, dtype=np.int64)  # the last used border, and all unused ones
        self._base = 0  # number of borders before `_known`
        self._rows = array("q")
        self.first = self.last = self.num_borders = 0

    def add(self, borders: NDArray[np.int64], crcs: NDArray[np.uint32], /) -> None:  # noqa: ARG002  # as of `BorderSink`
        """Receive the next borders; the CRCs of samples do not matter."""
        if not len(borders):
            return
        if not self.num_borders:
            self.first = int(borders[0])
        self.num_borders += len(borders)
        self.last = int(borders[-1])
        self._known = np.concatenate([self._known, borders])
        # Frames that end before the read position are all known; one that ends at it may be missing.
        self._resolve(min(self._content.position, self.last))

    @property
    def num_samples(self) -> int:
        """Samples in the whole shard."""
        return max(0, self.num_borders - 1)

    def rows(self) -> NDArray[np.int64]:
        """Return the row of each frame's start and of the end, after all bytes are read; shape (num_frames + 1, 3)."""
        self._resolve(1 << 62)
        return np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 3)

    def _resolve(self, before: int) -> None:
        """Compute the rows of frame ends below ``before``; these frame ends must be known."""
        ends = self._content.members.content_ends
        num_done = len(self._rows) // 3
        stop = bisect_left(ends, before)
        positions = np.array(ends[max(0, num_done - 1) : stop], dtype=np.int64)
        if not num_done and before > 0:
            positions = np.concatenate([[0], positions])
        known = self._known
        if len(positions):
            at_or_before = np.searchsorted(known, positions, side="right")
            behind = np.append(known, 0)[at_or_before]  # 0 if there is none
            rows = np.stack([np.searchsorted(known, positions) + self._base, at_or_before + self._base, behind], axis=1)
            self._rows.frombytes(np.ascontiguousarray(rows, dtype=np.int64).tobytes())
        num_passed = max(0, int(np.searchsorted(known, before)) - 1)
        self._known = known[num_passed:].copy()
        self._base += num_passed
