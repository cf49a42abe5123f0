"""A shortcut past `shoal.formats.rows.tar.headers`, for one sample with known borders and plain headers alone.

Nearly all samples are like that, and their headers are nearly alike: they differ in name, size, time and checksum.
Known checksums, sizes and tails of headers are looked up, so a member takes 1 us. No numpy: the samples of a chunk are
too few for its calls. The shortcut accepts fewer headers than the parser and none other: for an unusual or wrong sample
it returns None, and the parser reads the sample in full or reports the defect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from zlib import adler32

from shoal.formats.rows.tar.header_fields import BLOCK_BYTES, NAME_BYTES, is_of_interest, text
from shoal.formats.rows.tar.headers import REGULAR_KINDS
from shoal.formats.rows.tar.names import key_and_suffix
from shoal.formats.shard_format import ReadBytes, Sample
from shoal.hints import MOST_POINTER_BYTES, POINTER_BEGINNINGS

_OCTAL_DIGITS = b"01234567"
_PAX_KIND, _V7_KIND = b"x\0"
_ADLER_PRIME = 65521
_CHECKSUM_AS_SPACES = 8 * ord(" ")
_MOST_KNOWN = 1 << 12  # of each; later ones are read in full every time


class _Known(dict[bytes, int]):
    """The numbers in fields of headers, read once."""

    def __init__(self, read: Callable[[bytes], int]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, field: bytes) -> int:
        value = self._read(field)
        if len(self) < _MOST_KNOWN:
            self[field] = value
        return value


def _size(field: bytes) -> int:
    """Return the size in a field of 12 bytes; -1 if the field has an unusual form."""
    return -1 if field[:11].strip(_OCTAL_DIGITS) or field[11:].strip(b"\0 ") else int(field[:11], 8)


def _adler(field: bytes) -> int:
    """Return the low half of Adler-32 of a header with this checksum field; -1 if the field has an unusual form.

    This half of Adler-32 is the sum of the bytes plus one, modulo a prime, and takes a tenth of the time of a sum. The
    tar checksum counts its own eight bytes as spaces.
    """
    if field[:6].strip(_OCTAL_DIGITS) or field[6:].strip(b"\0 "):
        return -1
    return (int(field[:6], 8) - _CHECKSUM_AS_SPACES + sum(field) + 1) % _ADLER_PRIME


def _pax_size(header: bytes) -> int:
    """Return the size in a header if its checksum is right, else -1."""
    is_right = adler32(header) & 0xFFFF == _ADLERS[header[148:156]]
    return _SIZES[header[124:136]] if is_right else -1


_SIZES, _ADLERS, _PAX_SIZES = _Known(_size), _Known(_adler), _Known(_pax_size)
_TAILS: set[bytes] = set()  # the ends of headers, from the kind on, of regular members without a prefix
_FIELDS: dict[bytes, str] = {}  # by suffix


class Sliced(Protocol):
    """Bytes, or an object that returns bytes when sliced."""

    def __getitem__(self, span: slice, /) -> bytes:
        """Return the bytes from ``span.start`` up to ``span.stop``."""
        ...


def read_plain_sample(
    buffer: Sliced, start: int, end: int, payloads: Sliced | memoryview | None = None
) -> Sample | None:
    """Return the sample in ``buffer[start:end]``; None if it is unusual or wrong in any way. About 1 us a member.

    A plain sample has regular members with octal sizes and with names that are equal up to the first dot; a member may
    follow a PAX header that has only times (as WebDataset's writer makes them). ``buffer`` is bytes, or a
    `SlicedShard`; with ``payloads``, a view of the same bytes, values are slices of ``payloads``.
    """
    values: Any = buffer if payloads is None else payloads
    sample: Sample = {}
    first_stem = None
    position = start
    while position < end:
        payload = position + BLOCK_BYTES
        header = buffer[position:payload]
        if payload > end:
            return None
        if header[156] == _PAX_KIND:
            payload_end = payload + _PAX_SIZES[header]
            position = payload_end + -payload_end % BLOCK_BYTES
            if not payload <= payload_end <= position < end or is_of_interest(buffer[payload:payload_end]):
                return None
            continue
        size = _SIZES[header[124:136]]
        payload_end = payload + size
        position = payload_end + -payload_end % BLOCK_BYTES
        name_end = header.find(b"\0")
        if size < 0 or position > end or not 0 <= name_end <= NAME_BYTES:
            return None
        if adler32(header) & 0xFFFF != _ADLERS[header[148:156]]:
            return None
        name = header[:name_end]
        if header[156:] not in _TAILS:
            prefix = _prefix(header)
            if prefix is None or (header[156] == _V7_KIND and name.endswith(b"/")):  # a directory
                return None
            name = prefix + name
        stem, dot, suffix = name.partition(b".")
        field = _FIELDS.get(suffix) if dot else None
        if field is None or stem != first_stem:
            # A known suffix has no slash, so before it is the key, unless that is empty or the name of metadata; or
            # ends with a slash, as before the names that macOS gives.
            is_usual = stem[:1] not in b"_" and stem[-1:] != b"/"
            parts = (text(stem), field) if is_usual and field is not None else key_and_suffix(text(name))
            if parts is None:
                continue
            key, field = parts
            if not sample:
                sample["__key__"], first_stem = key, stem if is_usual and b"/" not in suffix else None
            elif key != sample["__key__"]:
                return None
            if b"/" not in suffix and len(_FIELDS) < _MOST_KNOWN:
                _FIELDS[suffix] = field
        if field in sample or field == "__url__":
            return None
        sample[field] = value = values[payload:payload_end]
        if size <= MOST_POINTER_BYTES and type(value) is not slice and value[:15] in POINTER_BEGINNINGS:
            return None  # the parser explains the pointer
    return sample or None


def _prefix(header: bytes) -> bytes | None:
    """Return the prefix of a regular member's name, empty as a rule; None for any other member."""
    if header[156] not in REGULAR_KINDS:
        return None
    if header[345] and header[257:263] == b"ustar\0":  # other archives use the field of the prefix otherwise
        return header[345:500].partition(b"\0")[0] + b"/"
    if header[156] != _V7_KIND and len(_TAILS) < _MOST_KNOWN:
        _TAILS.add(header[156:])
    return b""


class SlicedShard:
    """A shard that is read when sliced, so that a large payload need not be copied out of a larger buffer."""

    __slots__ = ("_read",)

    def __init__(self, read: ReadBytes) -> None:
        self._read = read

    def __getitem__(self, span: slice, /) -> bytes:
        data = self._read(span.start, span.stop)
        return data if isinstance(data, bytes) else bytes(data)
