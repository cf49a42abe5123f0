"""The parser of tar headers: the members of a span of a tar archive, found without touching their payloads.

A tar archive is a chain: each 512-byte header gives the size of its payload, and so the position of the next header.
The chain must be followed header by header, about half a microsecond of Python per member; all else (checksums, names,
types) is done with numpy over all headers of a span at once: summing the bytes of one header in Python costs 3 us,
of a thousand at once in numpy 0.12 us each.

The parser supports old v7 headers, ustar with its prefix, GNU long names (types ``L`` and ``K``), PAX records of one
member (``x``) and of all following members (``g``), and sizes in octal and in base 256. Where Python's `tarfile` stops
silently (a bad checksum after the first member, a truncated header) the parser raises an error: otherwise a shard that
ends early would lose samples unnoticed.

`shoal.formats.rows.tar.header_fields` reads the fields of a header. `shoal.formats.rows.tar.headers_fast_path` is a
shortcut past this parser for a single sample with plain headers; it leaves all other samples to this parser.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.compressed.codecs import packed_hint
from shoal.formats.rows.tar.header_fields import (
    BLOCK_BYTES,
    NAME_BYTES,
    check_sums,
    header_names,
    is_of_interest,
    padded,
    pax_records,
    read_number,
    text,
)
from shoal.index.shard_scan import Buffer

# Limit of the headers before one member: PAX headers are read whole, some with megabytes of attributes or comments.
_MAX_EXTENDED_BYTES = 16 << 20

UNKNOWN_BYTES = 1 << 62
"""Stands for the size of a shard whose end is not known yet."""

_ZERO_BLOCK = bytes(BLOCK_BYTES)
# The first 11 digits of the size, the byte after them, and the type: all that the chain needs of a header.
_CHAIN = struct.Struct("124x11sB20xB")
_OCTAL_DIGITS = b"01234567"
_FIELD_ENDS = frozenset(b"\0 ")

REGULAR_KINDS = frozenset(b"0\x007")
IS_REGULAR = np.isin(np.arange(256), list(REGULAR_KINDS))
LINK_KINDS = frozenset(b"12")
DEVICE_KINDS = frozenset(b"346")
DIRECTORY_KINDS = frozenset(b"5")
# As in tarfile and GNU tar: these have no payload; their size field does not count.
_EMPTY_KINDS = LINK_KINDS | DEVICE_KINDS | DIRECTORY_KINDS
_V7_KIND = 0
_EXTENDED_KINDS = frozenset(b"xXgLK")
_PAX_KIND, _GLOBAL_KIND, _SPARSE_KIND, _LONG_NAME_KIND, _LONG_LINK_KIND = b"xgSLK"

OTHER_FILE = "the shard has changed since it was indexed, or the index belongs to another shard: index it again"
_CUT_SHORT = "the shard is cut short: fetch or write it again"
_WRITE_AGAIN = "write the shard again"


class PaxGlobals(NamedTuple):
    """The PAX records in force for all following members; only a name and a size matter here."""

    path: bytes | None = None
    size: int | None = None


_NO_GLOBALS = PaxGlobals()


@dataclass(frozen=True, slots=True, eq=False)
class TarMembers:
    """The members of a span of a tar archive, in their order; byte positions count from the start of ``buffer``.

    ``starts``, ``headers``, ``ends`` and ``sizes`` have shape (num_members,), int64: a member's extended headers begin
    at ``starts`` (its own header, if it has none), its own header lies at ``headers``, its payload of ``sizes`` bytes
    follows that header, and the next member begins at ``ends``. ``kinds`` are the type bytes.
    """

    buffer: Buffer
    first_byte: int
    starts: NDArray[np.int64]
    headers: NDArray[np.int64]
    sizes: NDArray[np.int64]
    ends: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(slots=True)
class _Chain:
    """The headers of one buffer that a walk has come to."""

    buffer: Buffer
    first_byte: int
    starts: list[int] = field(default_factory=list)
    headers: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    extended: list[int] = field(default_factory=list)
    names: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Pending:
    """The properties of one member that its extended headers have given."""

    path: bytes | None = None
    size: int | None = None
    needs_member: bool = False


class HeaderWalk:
    """A walk along the chain of headers of one shard, through buffers that need not be adjacent.

    Each `step` takes a buffer and returns the members that begin in it. Afterwards ``position`` is the byte of the
    shard where the next buffer must begin and ``needed_bytes`` its minimum length (it may be shorter only at the end of
    the shard); ``ended`` is True after the blocks of zeros that end an archive. ``num_members`` counts the members so
    far, and ``globals_log`` lists each change of the PAX records in force with its first byte.

    To walk through a part of a shard, ``position`` and ``num_bytes`` are the bytes of the shard where the part begins
    and ends, and ``in_force`` the PAX records in force at its start.
    """

    def __init__(self, *, shard: str, num_bytes: int, position: int = 0, in_force: PaxGlobals | None = None) -> None:
        self.shard, self.num_bytes, self.position = shard, num_bytes, position
        self._is_whole = in_force is None
        self._in_force = in_force or _NO_GLOBALS
        self.needed_bytes = BLOCK_BYTES
        self.ended = False
        self.num_members = 0
        self.globals_log: list[tuple[int, PaxGlobals]] = []
        self._newest = 0  # the header of the newest member

    def step(self, buffer: Buffer) -> TarMembers:
        """Find the members whose headers lie in ``buffer``, which begins at ``position`` of the shard.

        O(headers in the buffer). All their checksums are verified. Raises `ShardError` with the byte where the chain
        breaks: at a bad checksum, a size that is not a number or leads beyond the end of the shard, extended headers
        beyond 16 MiB, or a sparse member.
        """
        chain = _Chain(buffer, self.position)
        try:
            self._follow(chain)
        except ShardError:
            # An invalid field usually results from damage that a checksum error describes better.
            self._verified_headers(chain)
            raise
        headers, sizes = np.array(chain.headers, dtype=np.int64), np.array(chain.sizes, dtype=np.int64)
        blocks = self._verified_headers(chain)[: len(headers)]
        names = header_names(blocks)
        for number, name in chain.names.items():
            names[number] = text(name)
        return TarMembers(
            buffer=chain.buffer,
            first_byte=chain.first_byte,
            starts=np.array(chain.starts, dtype=np.int64),
            headers=headers,
            sizes=sizes,
            ends=headers + BLOCK_BYTES + ((sizes + BLOCK_BYTES - 1) & -BLOCK_BYTES),
            kinds=blocks[:, 156],
            names=names,
        )

    @property
    def is_plain(self) -> bool:
        """True if no PAX records are in force."""
        return self._in_force == _NO_GLOBALS

    def passed(self, num_members: int, *, newest: int, position: int) -> None:
        """Move to ``position``, past members that the caller has read; ``newest`` is the header of the last one."""
        self.num_members += num_members
        self.position, self._newest, self.needed_bytes = position, newest, BLOCK_BYTES

    def has_next_in(self, buffer: Buffer) -> bool:
        """Return True if a `step` through this buffer finds a header, or that the shard ends in the middle of one."""
        return len(buffer) >= BLOCK_BYTES or 0 < self.num_bytes - self.position < BLOCK_BYTES

    def check_end(self) -> None:
        """Raise `ShardError` at the end of a shard that is empty, or whose newest member extends beyond it."""
        if self.num_bytes == 0:
            msg = "the file is empty; even a tar archive without members has 512 bytes of zeros"
            raise ShardError(msg, shard=self.shard, byte=0, hint="write it again, or leave it out")
        if self.position > self.num_bytes:
            raise self._cut_short(self._newest, self.position - self._newest)

    def _follow(self, chain: _Chain) -> None:
        """Follow the chain to the end of the buffer: the hot loop, so plain members are handled in line."""
        buffer, base = chain.buffer, chain.first_byte
        limit = self.num_bytes - base
        last = len(buffer) - BLOCK_BYTES
        starts, headers, sizes = chain.starts.append, chain.headers.append, chain.sizes.append
        unpack = _CHAIN.unpack_from
        self.needed_bytes = BLOCK_BYTES
        none_in_force = self._in_force == _NO_GLOBALS
        position = 0
        while position <= last:
            digits, stop, kind = unpack(buffer, position)
            if (
                kind in REGULAR_KINDS
                and stop in _FIELD_ENDS
                and none_in_force
                and not digits.strip(_OCTAL_DIGITS)
                and (kind or not _is_v7_directory(buffer[position : position + BLOCK_BYTES]))
            ):
                header, size = position, int(digits, 8)
            else:
                is_timed = kind == _PAX_KIND and none_in_force
                member = self._timed_member(chain, position, digits, stop) if is_timed else None
                member = member or self._odd_member(chain, position)
                if member is None:
                    break
                header, size = member
                none_in_force = self._in_force == _NO_GLOBALS
            following = header + BLOCK_BYTES + ((size + 511) & -512)
            if following > limit:
                chain.extended.append(header)
                raise self._cut_short(base + header, following - header)
            starts(position)
            headers(header)
            sizes(size)
            position = following
        if position < limit < position + BLOCK_BYTES and not self.ended:
            if not base + position and (hint := packed_hint(buffer[:6], "tar")):
                raise self._no_tar(buffer, f"has {limit} bytes", hint)
            raise self._cut_short(base + position, BLOCK_BYTES)
        self.position = base + position
        self._newest = base + chain.headers[-1] if chain.headers else self._newest
        self.num_members += len(chain.headers)

    def _timed_member(self, chain: _Chain, position: int, digits: bytes, stop: int) -> tuple[int, int] | None:
        """Read a plain member after a PAX header that holds nothing of interest; None if it is not that simple.

        tarfile, and so WebDataset's writer, puts such a header before each member whose time has a fraction.
        """
        buffer, last = chain.buffer, len(chain.buffer) - BLOCK_BYTES
        if stop not in _FIELD_ENDS or digits.strip(_OCTAL_DIGITS):
            return None
        payload = position + BLOCK_BYTES
        payload_end = payload + int(digits, 8)
        header = (payload_end + BLOCK_BYTES - 1) & -BLOCK_BYTES
        if header > last or header - position > _MAX_EXTENDED_BYTES:
            return None
        if is_of_interest(bytes(buffer[payload:payload_end])):
            return None
        digits, stop, kind = _CHAIN.unpack_from(buffer, header)
        if kind not in REGULAR_KINDS or stop not in _FIELD_ENDS or digits.strip(_OCTAL_DIGITS):
            return None
        if _is_v7_directory(buffer[header : header + BLOCK_BYTES]):
            return None
        chain.extended.append(position)
        return header, int(digits, 8)

    def _odd_member(self, chain: _Chain, first: int) -> tuple[int, int] | None:
        """Read a member that is not plain; return the position of its own header and the size of its payload.

        None if the archive ends here, or if the buffer does (then ``needed_bytes`` is the length required).
        """
        pending = _Pending()
        mark = len(chain.extended)
        position = first
        while True:
            if not self._has(chain, first, position, BLOCK_BYTES):
                del chain.extended[mark:]
                return None
            header, byte = bytes(chain.buffer[position : position + BLOCK_BYTES]), chain.first_byte + position
            if header == _ZERO_BLOCK:
                if pending.needs_member:
                    msg = "the archive ends after an extended header: its member is missing"
                    raise ShardError(msg, shard=self.shard, byte=byte, hint=_CUT_SHORT)
                self.ended = True
                return None
            chain.extended.append(position)
            kind, size = header[156], read_number(header[124:136])
            if size is None or size < 0:
                msg = f"the size field of this tar header holds {header[124:136]!r}, which is not a size"
                hint = "the shard is damaged: fetch or write it again"
                raise ShardError(msg, shard=self.shard, byte=byte, hint=hint)
            if kind not in _EXTENDED_KINDS:
                break
            following = position + BLOCK_BYTES + padded(size)
            if (num_bytes := following - first) > _MAX_EXTENDED_BYTES:
                most = _MAX_EXTENDED_BYTES
                msg = f"the extended headers of this member take {num_bytes} bytes, more than the {most} allowed"
                raise ShardError(msg, shard=self.shard, byte=byte, hint="the shard is damaged, or is malicious")
            if not self._has(chain, first, position, following - position):
                del chain.extended[mark:]
                return None
            payload = bytes(chain.buffer[position + BLOCK_BYTES : position + BLOCK_BYTES + size])
            self._take_extended(kind, payload, pending, byte, chain.first_byte + following)
            position = following
        if kind == _SPARSE_KIND:
            raise self._sparse(byte)
        chain.extended.pop()
        path = self._in_force.path if pending.path is None else pending.path
        is_v7_directory = _is_v7_directory(header)
        if path is not None:
            chain.names[len(chain.starts)] = path.rstrip(b"/") + b"/" if is_v7_directory else path
        for stated in (self._in_force.size, pending.size):
            size = size if stated is None else stated
        return position, 0 if kind in _EMPTY_KINDS or is_v7_directory else size

    def _has(self, chain: _Chain, first: int, position: int, num_bytes: int) -> bool:
        """Return True if the buffer holds these bytes; if not, record how long a buffer from ``first`` must be."""
        end = position + num_bytes
        if end <= len(chain.buffer):
            return True
        if end > self.num_bytes - chain.first_byte:
            raise self._cut_short(chain.first_byte + position, num_bytes)
        # Twice the length, so that a chain of extended headers is not walked once for each of them.
        twice = min(2 * (len(chain.buffer) - first), _MAX_EXTENDED_BYTES)
        self.needed_bytes = max(end - first, twice)
        return False

    def _take_extended(self, kind: int, payload: bytes, pending: _Pending, byte: int, holds_from: int) -> None:
        """Apply one extended header; if several give a name the first one wins, as in tarfile."""
        pending.needs_member = pending.needs_member or kind != _GLOBAL_KIND
        if kind == _LONG_NAME_KIND:
            if pending.path is None:
                pending.path = payload.partition(b"\0")[0]
            return
        if kind == _LONG_LINK_KIND or not is_of_interest(payload):
            return
        try:
            records = pax_records(payload)
        except ValueError as error:
            msg = f"this PAX header cannot be read: {error}"
            raise ShardError(msg, shard=self.shard, byte=byte, hint=_WRITE_AGAIN) from None
        if kind == _GLOBAL_KIND:  # for all following members; an empty value cancels an earlier one
            path, size = self._in_force
            if b"path" in records:
                path = records[b"path"].rstrip(b"/") or None
            if b"size" in records:
                size = self._decimal(records[b"size"], holds_from) if records[b"size"] else None
            if (path, size) != self._in_force:
                self._in_force = PaxGlobals(path, size)
                self.globals_log.append((holds_from, self._in_force))
            return
        if any(name.startswith(b"GNU.sparse.") for name in records):
            raise self._sparse(byte)
        if records.get(b"path") and pending.path is None:
            pending.path = records[b"path"].rstrip(b"/")
        if records.get(b"size") and pending.size is None:
            pending.size = self._decimal(records[b"size"], byte)

    def _decimal(self, value: bytes, byte: int) -> int:
        if not (value.isdigit() and len(value) <= 20):
            msg = f"a PAX header gives the size {value[:40]!r}, which is not a size"
            raise ShardError(msg, shard=self.shard, byte=byte, hint=_WRITE_AGAIN)
        return int(value)

    def _verified_headers(self, chain: _Chain) -> NDArray[np.uint8]:
        """Raise for the first header whose checksum is wrong; return all, shape (n, 512), members first."""
        positions = np.array(chain.headers + chain.extended, dtype=np.int64)
        whole = len(chain.buffer) // BLOCK_BYTES
        table = np.frombuffer(chain.buffer, dtype=np.uint8, count=whole * BLOCK_BYTES).reshape(whole, BLOCK_BYTES)
        blocks: NDArray[np.uint8] = table[positions // BLOCK_BYTES]
        wrong = positions[~check_sums(blocks)]
        if not wrong.size:
            return blocks
        if byte := chain.first_byte + int(wrong.min()):
            msg = "these bytes should be a tar header, but the checksum is wrong"
            hint = "the shard is damaged from here on, or the index was made of another file: fetch or write it again"
            raise ShardError(msg, shard=self.shard, byte=byte, hint=hint)
        hint = packed_hint(chain.buffer[:6], "tar") or "check the kind of the file"
        raise self._no_tar(chain.buffer, "its first header has a wrong checksum", hint)

    def _no_tar(self, buffer: Buffer, what: str, hint: str) -> ShardError:
        msg = f"this is not a tar archive: it begins with {bytes(buffer[:6])!r} and {what}"
        return ShardError(msg, shard=self.shard, byte=0, hint=hint)

    def _cut_short(self, byte: int, num_bytes: int) -> ShardError:
        what = "the shard ends" if self._is_whole else "the bytes that the index gives end"
        msg = f"{what} inside this member: {num_bytes} bytes are needed from here, {self.num_bytes - byte} are left"
        return ShardError(msg, shard=self.shard, byte=byte, hint=_CUT_SHORT if self._is_whole else OTHER_FILE)

    def _sparse(self, byte: int) -> ShardError:
        msg = "this member is a GNU sparse file: the archive keeps only the parts that are not zeros"
        hint = "write the shard again without tar's --sparse (-S): tar -xf SHARD, and tar -cf SHARD of the files"
        return ShardError(msg, shard=self.shard, byte=byte, hint=hint)


def _is_v7_directory(header: Buffer) -> bool:
    """Return True for a directory of an archive from before type bytes: its name ends with a slash.

    As for other directories, its size field does not count bytes that follow.
    """
    return header[156] == _V7_KIND and bytes(header[:NAME_BYTES]).partition(b"\0")[0].endswith(b"/")
