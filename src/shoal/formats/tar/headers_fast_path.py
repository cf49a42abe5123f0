"""A shortcut past the parser of `shoal.formats.tar.headers`: one sample of known borders whose headers are all plain.

Nearly all samples are like that, and are read here in 2 us a member. No numpy: a sample has one to five members, and a
numpy call costs as much as two of them. This accepts fewer headers than the parser and none other: whatever is unusual
or wrong in any way gives None, and the parser reads it in full or says what is wrong.
"""

from __future__ import annotations

import re
from typing import Protocol
from zlib import adler32

from shoal.formats.shard_format import ReadBytes, Sample
from shoal.formats.tar.header_fields import BLOCK_BYTES, NAME_BYTES, is_of_interest, text
from shoal.formats.tar.names import key_and_suffix

# The relevant fields in one step: name, size, stated checksum, kind. Octal digits only, ended as tar ends them.
_HEADER = re.compile(
    rb"(?s)(?=([^\0]*))"  # the name, if it has at most 100 bytes
    rb".{124}([0-7]{11})[\0 ]"
    rb".{12}([0-7]{6})[\0 ]{2}"
    rb"([0\0007x])",
).match
_PAX, _V7_KIND = b"x", b"\0"
_ADLER_PRIME = 65521
_CHECKSUM_AS_SPACES = 8 * ord(" ")


class Sliced(Protocol):
    """Bytes, or an object that returns bytes when sliced."""

    def __getitem__(self, span: slice, /) -> bytes:
        """Return the bytes from ``span.start`` up to ``span.stop``."""
        ...


def read_plain_sample(
    buffer: Sliced, start: int, end: int, payloads: Sliced | memoryview | None = None
) -> Sample | None:
    """Return the sample in ``buffer[start:end]``; None if it is unusual or wrong in any way. About 2 us a member.

    Plain are regular members with octal sizes, alone or after a PAX header with only times (as WebDataset's writer
    makes them), whose names are all the same up to the first dot. ``buffer`` is bytes, or a `SlicedShard`; with
    ``payloads``, a view of the same bytes, values are slices of that, whatever these are.
    """
    values: Sliced | memoryview = buffer if payloads is None else payloads
    sample: Sample = {}
    key = ""
    position = start
    while position < end:
        payload = position + BLOCK_BYTES
        header = buffer[position:payload]
        found = _HEADER(header)
        if found is None or payload > end:
            return None
        name, digits, stated, kind = found.groups()
        # The low half of Adler-32 is one more than the sum of the bytes, modulo a prime: ten times as fast as adding
        # them. The checksum counts its own eight bytes as spaces.
        added = (adler32(header) & 0xFFFF) - (adler32(header[148:156]) & 0xFFFF) + _CHECKSUM_AS_SPACES
        if (added - int(stated, 8)) % _ADLER_PRIME or len(name) > NAME_BYTES:
            return None
        if kind == _V7_KIND and name.endswith(b"/"):  # a directory
            return None
        payload_end = payload + int(digits, 8)
        position = payload_end + -payload_end % BLOCK_BYTES
        if position > end:
            return None
        if kind == _PAX:
            if position == end or is_of_interest(buffer[payload:payload_end]):
                return None
            continue
        if header[345] and header[257:263] == b"ustar\0":  # other archives use the field of the prefix otherwise
            name = header[345:500].partition(b"\0")[0] + b"/" + name
        parts = key_and_suffix(text(name))
        if parts is None:
            continue
        member_key, field = parts
        if not sample:
            sample["__key__"] = key = member_key
        elif member_key != key:
            return None
        if field in sample or field == "__url__":
            return None
        sample[field] = values[payload:payload_end]
    return sample or None


class SlicedShard:
    """A shard that is read when sliced, so that a large payload need not be copied out of a larger buffer."""

    __slots__ = ("_read",)

    def __init__(self, read: ReadBytes) -> None:
        self._read = read

    def __getitem__(self, span: slice, /) -> bytes:
        data = self._read(span.start, span.stop)
        return data if isinstance(data, bytes) else bytes(data)
