"""Tar shards, read as WebDataset 1.0.2 reads them, in place and by byte range.

`Tar.scan` finds the samples from the headers alone and skips the payloads; `Tar.parse` opens the bytes of some
consecutive samples. Headers are parsed in `shoal.formats.rows.tar.headers`, members grouped into samples in
`shoal.formats.rows.tar.names`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.compiled_cutting import is_compiled, tar_front, tar_sample, tar_samples
from shoal.formats.metadata.third_party_index import wrong_border
from shoal.formats.rows.records import Piece
from shoal.formats.rows.tar.borders import cut_sample
from shoal.formats.rows.tar.header_fields import likely_header, text
from shoal.formats.rows.tar.headers import (
    OTHER_FILE,
    REGULAR_KINDS,
    UNKNOWN_BYTES,
    HeaderWalk,
    PaxGlobals,
)
from shoal.formats.rows.tar.headers_fast_path import Sliced, SlicedShard, read_plain_sample
from shoal.formats.rows.tar.names import Grouping, key_and_suffix
from shoal.formats.rows.tar.walked_records import WalkedRecords, first_members, group_starts
from shoal.formats.shard_format import (
    About,
    BorderSink,
    Content,
    Format,
    ReadBytes,
    Sample,
    Span,
    StoredContent,
    Unread,
)
from shoal.hints import pointer_in
from shoal.index.shard_scan import Buffer, has_foreign_borders, has_unverified_borders

_FIRST_WINDOW_BYTES = 8192
_FRONT_BYTES = 4096  # of headers and small members, which one read of a few microseconds brings
_SMALL_WINDOW_BYTES = 2048
_MAX_GLOBALS = 1024


class Tar(Format):
    """The tar format of WebDataset.

    ``window_bytes`` is the largest read of a scan. A scan skips payloads if headers are ``skip_bytes`` or more apart;
    if headers are closer, one large read is cheaper than many small reads. The default suits local files. If each read
    costs a round trip, a larger ``skip_bytes`` is faster.

    Examples
    --------
    >>> shoal.open("data", format=shoal.formats.Tar(skip_bytes=1 << 20))[125]
    {'__key__': 'dog/005', 'txt': b'dog 5', 'cls': b'1'}
    """

    name: str = "tar"
    suffixes: tuple[str, ...] = (".tar",)
    scan_rule = 2
    can_start_midway = skips_fields = has_views = True

    def __init__(self, *, window_bytes: int = 1 << 20, skip_bytes: int = 32768) -> None:
        self.window_bytes, self.skip_bytes = window_bytes, skip_bytes

    def scan_forward(self, content: Content, borders: BorderSink, *, shard: str) -> About:
        """Find the samples of a tar from its headers; 1 us per member, 4 us in Python; O(window) memory and the result.

        ``notes`` count ``directories``, ``links``, ``devices``, ``other_members``, ``meta_members`` and
        ``members_without_extension``, which are not samples to WebDataset; ``macos_members`` (``._NAME``);
        ``trailing_bytes`` after the end of the archive (tar ignores them; two archives joined by ``cat`` look like
        this); ``missing_end_blocks``.

        Raises `ShardError` if the archive is damaged or cut short, or repeats a suffix inside one sample.
        """
        walk = HeaderWalk(shard=shard, num_bytes=UNKNOWN_BYTES)
        grouping = Grouping(shard=shard)
        for window in self._windows(walk, content):
            rest = grouping.after_plain(window, walk)
            if walk.has_next_in(rest):
                grouping.add(walk.step(rest))
            borders.add(*grouping.taken())
        borders.add(*grouping.last())
        if walk.ended:
            _note_trailing(content, walk.position, self.window_bytes, grouping.notes)
        else:
            grouping.notes["missing_end_blocks"] = 1
        return About(_head(walk, shard), dict(grouping.notes))

    def likely_start(self, buffer: Buffer, first_byte: int) -> int | None:
        """Return the byte of the shard where the first likely header in ``buffer`` lies."""
        return likely_header(buffer, first_byte)

    def fields(self, read: ReadBytes, num_bytes: int, *, shard: str) -> list[str]:
        """Return the fields of the samples, in order of first appearance; works and raises as a scan does."""
        return list(dict.fromkeys(field for _, field in self._keys_and_fields(read, num_bytes, shard)))

    def keys(self, read: ReadBytes, num_bytes: int, *, shard: str) -> list[str]:
        """Return the key of each sample; works and raises as a scan does."""
        keys: list[str] = []
        for key, _ in self._keys_and_fields(read, num_bytes, shard):
            if keys[-1:] != [key]:
                keys.append(key)
        return keys

    def _keys_and_fields(self, read: ReadBytes, num_bytes: int, shard: str) -> Iterator[tuple[str, str]]:
        walk = HeaderWalk(shard=shard, num_bytes=num_bytes)
        for window in self._windows(walk, StoredContent(read, num_bytes)):
            members = walk.step(window)
            for name, kind in zip(members.names, members.kinds.tolist(), strict=True):
                parts = key_and_suffix(name) if kind in REGULAR_KINDS else None
                if parts is not None:
                    yield parts

    def _windows(self, walk: HeaderWalk, content: Content) -> Iterator[Buffer]:
        """Yield the windows of a shard; the caller moves the walk through each."""
        window_bytes = _FIRST_WINDOW_BYTES
        while not walk.ended:
            first, num_members = walk.position, walk.num_members
            window = content.read(first, first + max(window_bytes, walk.needed_bytes))
            walk.num_bytes = UNKNOWN_BYTES if content.num_bytes is None else content.num_bytes
            if not len(window):
                walk.check_end()
                return
            yield window
            stride_bytes = (walk.position - first) // max(1, walk.num_members - num_members)
            skips = stride_bytes >= self.skip_bytes
            window_bytes = _SMALL_WINDOW_BYTES if skips else min(4 * window_bytes, self.window_bytes)

    def read_sample(self, read: ReadBytes, end_byte: int, span: Span) -> Sample:
        """Read one sample, headers and payloads separately: a payload of 100 KB takes two thirds of the time.

        Raises `ShardError` as `parse` and `TarRecords.sample` do.
        """
        first_byte = span.first_byte
        if not span.head.get("pax_globals"):
            sample = _read_front_by_front(read, first_byte, end_byte) if is_compiled else None
            if sample is None:
                slices: Any = read if hasattr(read, "__getitem__") else SlicedShard(read)
                sample = read_plain_sample(slices, first_byte, end_byte)
            if sample is not None:
                return sample
        whole = span._replace(sample_starts=[0, end_byte - first_byte])
        return self.parse(read(first_byte, end_byte), whole).sample(0)

    def read_wanted(self, read: ReadBytes, end_byte: int, span: Span, wanted: Callable[[str], bool]) -> Sample:
        """Read the headers of one sample and the payloads of its wanted members; of others the size is known.

        Raises `ShardError` as `parse` and `TarRecords.sample` do.
        """
        slices: Any = read if hasattr(read, "__getitem__") else SlicedShard(read)
        ranges = (
            None if span.head.get("pax_globals") else read_plain_sample(slices, span.first_byte, end_byte, _ONLY_RANGES)
        )
        if ranges is None:
            return self.read_sample(read, end_byte, span)
        sample: Sample = {}
        for name, value in ranges.items():
            if not isinstance(value, slice):
                sample[name] = value
            elif not wanted(name):
                sample[name] = Unread(value.stop - value.start)
            elif pointer_in(payload := slices[value]):
                return self.read_sample(read, end_byte, span)
            else:
                sample[name] = payload
        return sample

    def parse(self, buffer: Buffer, span: Span) -> TarRecords:
        """Open the bytes of consecutive samples; O(1) if the index has their borders.

        Raises `ShardError` if ``sample_starts`` lie outside the buffer; or, without them, if the bytes are not a chain
        of members with that many samples.
        """
        return TarRecords(buffer, span)

    def parse_views(self, buffer: Buffer, payloads: memoryview, span: Span) -> TarRecords:
        """Open samples like `parse`; values are slices of ``payloads``, which has the bytes of ``buffer``."""
        return TarRecords(buffer, span, payloads)


def _read_front_by_front(read: ReadBytes, first_byte: int, end_byte: int) -> Sample | None:
    """Read a plain sample, small members together with headers, and large payloads alone; None as `tar_sample`."""
    sample: Sample = {}
    position: int | None = first_byte
    while position is not None and position < end_byte:
        front = read(position, min(position + _FRONT_BYTES, end_byte))
        position = tar_front(sample, bytes(front), position, end_byte)
    if position is None or not sample:
        return None
    for name, value in sample.items():
        if type(value) is slice:
            sample[name] = payload = bytes(read(value.start, value.stop))
            if pointer_in(payload):
                return None
    return sample


class _OnlyRanges:
    """Bytes of a shard whose slices are the ranges themselves."""

    def __getitem__(self, span: slice, /) -> Any:
        return span


_ONLY_RANGES = _OnlyRanges()


class TarRecords:
    """Some consecutive samples of a tar, handed out by number.

    If borders are known, a sample is read on request by `read_plain_sample`. The first sample that is unusual, or
    wrong, causes one walk through the whole unit, by `WalkedRecords`, which reads it in full or reports the error.
    """

    __slots__ = (
        "_buffer",
        "_is_compiled",
        "_num_samples",
        "_payloads",
        "_slices",
        "_span",
        "_starts",
        "_walked",
        "piece",
    )

    def __init__(self, buffer: Buffer, span: Span, payloads: memoryview | None = None) -> None:
        self._payloads = payloads
        self._slices = buffer if isinstance(buffer, bytes) else _sliceable(buffer)
        self._buffer = self._slices if isinstance(self._slices, bytes) else buffer
        self._is_compiled = is_compiled and payloads is None and type(self._slices) is bytes
        self._span = span
        shard, first_byte, self._num_samples, starts, head = span
        self._starts = starts
        self._walked: WalkedRecords | None = None
        if starts is None or (head and _in_force(head, first_byte, shard) != PaxGlobals()):
            self._walked = self._walk()
        elif len(starts) != self._num_samples + 1 or starts[0] < 0 or starts[-1] > len(buffer):
            raise self._wrong_borders()
        elif has_unverified_borders(head) and (cut := cut_sample(buffer, starts)) is not None:
            number, key = cut
            what = f"the index begins a sample here, but the sample before has the same key, {key!r}"
            raise wrong_border(what, shard=shard, byte=first_byte + starts[number])
        self.piece: Piece | None = None
        """The bytes and borders of the samples, if samples can be cut together with those of other records."""
        if self._is_compiled and self._walked is None and starts is not None:
            self.piece = Piece(tar_samples, self._buffer, starts)

    def __len__(self) -> int:
        return self._num_samples

    def sample(self, number: int) -> Sample:
        """Return sample ``number``: its ``__key__``, and by suffix the payloads as new bytes; 2 us a member.

        All checksums of its headers are verified, and that its members end where it does. Raises `ShardError` if these
        members are not one sample by WebDataset's rule, so that the index belongs to another file.
        """
        starts = self._starts
        if self._walked is None and starts is not None:
            start, end = starts[number], starts[number + 1]
            sample: Sample | None = tar_sample(self._slices, start, end) if self._is_compiled else None
            if sample is None:
                sample = read_plain_sample(self._slices, start, end, self._payloads)
            if sample is not None:
                return sample
        return self._all().sample(number)

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the CRC-32 of the headers of each sample, as `Tar.scan` gives them; shape (len,)."""
        return self._all().layout_crcs()

    def _all(self) -> WalkedRecords:
        if self._walked is None:
            self._walked = self._walk()
        return self._walked

    def _walk(self) -> WalkedRecords:
        """Walk through all members, verifying each header."""
        shard, first_byte, num_samples, sample_starts, head = self._span
        buffer, payloads = self._buffer, self._payloads
        starts = np.asarray([0, len(buffer)] if sample_starts is None else sample_starts, dtype=np.int64)
        if (starts[1:] <= starts[:-1]).any() and num_samples:
            raise self._wrong_borders()
        begin, end = int(starts[0]), int(starts[-1])
        if num_samples == 0 and sample_starts is not None:
            buffer = b""
        elif begin or end < len(buffer):
            buffer = memoryview(buffer)[begin:end]
            payloads = None if payloads is None else payloads[begin:]
        first_byte += begin
        end = first_byte + len(buffer)
        walk = HeaderWalk(shard=shard, num_bytes=end, position=first_byte, in_force=_in_force(head, first_byte, shard))
        members = walk.step(buffer)
        if walk.position != end:
            msg = "the archive ends here, but the index says that samples follow"
            raise ShardError(msg, shard=shard, byte=walk.position, hint=OTHER_FILE)
        if sample_starts is None:
            starts = group_starts(members, num_samples, shard)
        first = first_members(members, starts - starts[0], shard)
        return WalkedRecords(members, first, shard, payloads, by_borders=has_foreign_borders(head))

    def _wrong_borders(self) -> ShardError:
        num_borders, num_bytes = len(self._starts or ()), len(self._buffer)
        msg = f"the index has {num_borders} borders of {self._num_samples} samples, not all within {num_bytes} bytes"
        hint = "the index is damaged: index the shard again"
        return ShardError(msg, shard=self._span.shard, byte=self._span.first_byte, hint=hint)


def _sliceable(buffer: Buffer) -> Sliced:
    """Return an object that begins with the same bytes and whose slices are bytes; without a copy if possible."""
    # A slice of a view is a view, but slices of its object, a mapping for instance, may be bytes.
    memory: Any = buffer.obj if isinstance(buffer, memoryview) and len(buffer) else None
    gives_bytes = hasattr(memory, "__getitem__") and type(memory[:0]) is bytes
    return memory if gives_bytes and _address(memory) == _address(buffer) else bytes(buffer)


def _address(buffer: Any) -> int:
    return int(np.frombuffer(buffer, dtype=np.uint8).__array_interface__["data"][0])


def _head(walk: HeaderWalk, shard: str) -> dict[str, Any]:
    """Return the head: the PAX records in force, by their first byte, as JSON."""
    if not walk.globals_log:
        return {}
    if len(walk.globals_log) > _MAX_GLOBALS:
        msg = f"the PAX records for all following members change {len(walk.globals_log)} times"
        hint = f"at most {_MAX_GLOBALS} changes are supported: write the shard again"
        raise ShardError(msg, shard=shard, byte=walk.globals_log[_MAX_GLOBALS][0], hint=hint)
    rows = [[byte, None if path is None else text(path), size] for byte, (path, size) in walk.globals_log]
    return {"pax_globals": rows}


def _in_force(head: Mapping[str, Any], first_byte: int, shard: str) -> PaxGlobals:
    """Return the PAX records in force at ``first_byte``."""
    in_force = PaxGlobals()
    try:
        for byte, path, size in head.get("pax_globals", ()):
            if int(byte) <= first_byte:
                name = None if path is None else str(path).encode("utf-8", "surrogateescape")
                in_force = PaxGlobals(name, None if size is None else int(size))
    except (TypeError, ValueError):
        msg = "the head of this shard in the index cannot be read"
        raise ShardError(msg, shard=shard, hint="the index is damaged: index the shard again") from None
    return in_force


def _note_trailing(content: Content, position: int, window_bytes: int, notes: dict[str, int]) -> None:
    """Count the bytes after the end of the archive, from the first that is not zero."""
    first = None
    while len(window := np.frombuffer(content.read(position, position + window_bytes), dtype=np.uint8)):
        if first is None and window.any():
            first = position + int(np.argmax(window != 0))
        if first is not None and content.num_bytes is not None:
            position = content.num_bytes
            break
        position += len(window)
    if first is not None:
        notes["trailing_bytes"] = position - first
