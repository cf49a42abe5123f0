"""Writer of tar shards as WebDataset reads them: one member for each field of a sample, named ``key.field``.

Headers are ustar and hold no time, place or owner of the writing. Names that do not fit get a PAX record.
"""

from __future__ import annotations

import io
import json
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np

from shoal.errors import UsageError
from shoal.formats.rows.lines.json_values import check_keys, plain_number
from shoal.formats.rows.tar.header_fields import BLOCK_BYTES, NAME_BYTES
from shoal.formats.rows.tar.names import key_and_suffix
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import AppendedShard, EncodedRecord
from shoal.index.shard_scan import Buffer

_PREFIX_BYTES = 155
MOST_OCTAL_BYTES = 8**11 - 1
_PADDINGS = tuple(bytes(-size % BLOCK_BYTES) for size in range(BLOCK_BYTES))
_MODE_AND_OWNERS = b"0000644\0" + 2 * b"0000000\0"
_AFTER_SIZE = b"\0" + b"00000000000\0"  # and the time
_REST = bytes(100) + b"ustar\x0000" + bytes(80)  # no link, no owners' names, no device
_AFTER_PREFIX = bytes(12)
_NO_PREFIX = bytes(_PREFIX_BYTES)
_PLAIN = b"\0 0" + _REST + _NO_PREFIX + _AFTER_PREFIX
# Sum of the bytes that are the same in each header, with the checksum itself counted as spaces.
_FIXED_SUM = sum(_MODE_AND_OWNERS + _AFTER_SIZE + _REST) + 8 * ord(" ")

_OF_READERS = frozenset(("__key__", "__url__", "__local_path__", "__id__", "__pad__"))
_TEXTS = frozenset(("txt", "text", "transcript"))
_INTEGERS = frozenset(("cls", "cls2", "index", "count", "inx", "id"))
_JSON = frozenset(("json", "jsn"))


class TarEncoder:
    """The tar format of WebDataset.

    A sample has ``__key__`` and fields. Fields of bytes are written as they are, under their names. Other values are
    written in a form that `Dataset.decode` (and WebDataset's) converts back, and their fields are renamed for it: text
    gets ``.txt``, integers ``.cls``, arrays ``.npy``, anything else that JSON can hold ``.json``, unless the name
    already ends like that. Names of fields are lower-cased, as every reader does. Fields that readers add to samples
    (``__url__``, ``__id__``) describe where a sample was read, and are left out.
    """

    name: str = "tar"
    suffix: str = ".tar"

    def record(self, sample: Sample) -> EncodedRecord:
        """Encode the members of a sample; 2 us, and about 1.5 us for each member.

        Raises `UsageError` if it has no key or no field, if a name would be read back differently, or if a value cannot
        be written.
        """
        key = sample.get("__key__")
        if not isinstance(key, str) or not key:
            msg = f"a sample of a tar shard needs a text as '__key__', but this sample has {key!r:.80}"
            raise UsageError(msg, hint=f"its fields are {', '.join(map(repr, sample))}")
        parts: list[Buffer] = []
        num_bytes = crc = 0
        for field, value in sample.items():
            if field in _OF_READERS:
                continue
            suffix, payload = (field, value) if isinstance(value, bytes) else _encoded(field, value, key)
            headers = _headers(key, suffix.lower(), len(payload))
            crc = crc32(headers, crc)
            padding = _PADDINGS[len(payload) % BLOCK_BYTES]
            parts += (headers, payload, padding)
            num_bytes += len(headers) + len(payload) + len(padding)
        if len(parts) != 3:
            _check_fields(sample, key, parts)
        return EncodedRecord(parts, num_bytes, crc)

    def begin(self) -> AppendedShard:
        """Begin a new shard."""
        return AppendedShard(tail=bytes(2 * BLOCK_BYTES))


def _headers(key: str, suffix: str, num_bytes: int) -> bytes:
    """Return the header of a member, after PAX records if it needs some."""
    name = f"{key}.{suffix}"
    if key_and_suffix(name) != (key, suffix) or not is_safe_name(name):
        parts = key_and_suffix(name)
        what = f"as key {parts[0]!r} and field {parts[1]!r}" if parts else "as no sample"
        msg = f"the key {key!r} and the field {suffix!r} make the member {name!r}, which would be read {what}"
        hint = (
            "keys have no dot after their last slash, do not begin with a slash, and hold no '..' or control characters"
        )
        raise UsageError(msg, hint=hint)
    try:
        encoded = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"the name {name!r} is not text: {error.reason}", hint="give the sample another key") from None
    if len(encoded) <= NAME_BYTES and num_bytes <= MOST_OCTAL_BYTES:
        return plain_header(encoded, num_bytes)
    return _long_header(encoded, num_bytes)


def is_safe_name(name: str) -> bool:
    """Return True if a name is safe for terminals and for unpacking."""
    is_shown = name.isprintable() or not any(ord(letter) < 32 or ord(letter) == 127 for letter in name)
    return is_shown and name[0] != "/" and ".." not in name.split("/")


def plain_header(name: bytes, num_bytes: int, *, prefix: bytes = _NO_PREFIX, kind: bytes = b"0") -> bytes:
    """Return one header, for a name of at most 100 bytes and a size below 8 GiB."""
    size, size_sum = _size_field(num_bytes)
    is_plain = prefix is _NO_PREFIX and kind == b"0"  # nearly all: one step
    after = _PLAIN if is_plain else b"".join((b"\0 ", kind, _REST, prefix, _AFTER_PREFIX))
    total = _FIXED_SUM + sum(name) + size_sum + kind[0] + (0 if is_plain else sum(prefix))
    return b"%b%b%b%b%06o%b" % (name.ljust(NAME_BYTES, b"\0"), _MODE_AND_OWNERS, size, _AFTER_SIZE, total, after)


@lru_cache(maxsize=1 << 14)
def _size_field(num_bytes: int) -> tuple[bytes, int]:
    """Return the digits of a size, and the sum of their bytes; cached, since most files share few sizes."""
    size = b"%011o" % num_bytes
    return size, sum(size)


def _long_header(name: bytes, num_bytes: int) -> bytes:
    """Return a header with the name split at a slash, as in ustar; else with name, and size from 8 GiB on, in PAX."""
    if num_bytes <= MOST_OCTAL_BYTES:
        cut = name.find(b"/", len(name) - NAME_BYTES - 1)
        if 0 < cut <= _PREFIX_BYTES and cut < len(name) - 1:
            return plain_header(name[cut + 1 :], num_bytes, prefix=name[:cut].ljust(_PREFIX_BYTES, b"\0"))
    records = _pax_record(b"path", name)
    stated = num_bytes
    if num_bytes > MOST_OCTAL_BYTES:
        records += _pax_record(b"size", b"%d" % num_bytes)
        stated = 0
    padding = _PADDINGS[len(records) % BLOCK_BYTES]
    extended = plain_header(b"PaxHeaders/" + name[: NAME_BYTES - 11], len(records), kind=b"x") + records + padding
    return extended + plain_header(name[:NAME_BYTES], stated)


def _pax_record(key: bytes, value: bytes) -> bytes:
    r"""Return ``"length key=value\n"``, where the length counts its own digits."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def _check_fields(sample: Sample, key: str, parts: list[Buffer]) -> None:
    """Check that a sample has a field, and that no two fields have one name."""
    if not parts:
        raise UsageError(f"the sample {key!r} has no field but its key", hint="leave it out, or give it a field")
    names: dict[str, str] = {}
    for field, value in sample.items():
        if field in _OF_READERS:
            continue
        suffix = (field if isinstance(value, bytes) else _named(field, value)).lower()
        if suffix in names:
            msg = f"the fields {names[suffix]!r} and {field!r} of the sample {key!r} would both be named {suffix!r}"
            raise UsageError(msg, hint="rename one of them; upper and lower case are one in a tar shard")
        names[suffix] = field


def _named(field: str, value: Any) -> str:
    """Return the name for a value that is not bytes, with a suffix that tells how to read it back."""
    last = field.rpartition(".")[2].lower()
    if isinstance(value, bytearray | memoryview) or last in _JSON:
        return field
    if isinstance(value, str):
        return field if last in _TEXTS else f"{field}.txt"
    # As Python's are, unless the name says npy.
    is_number = isinstance(value, np.generic) and value.dtype.kind in "biuf"
    if isinstance(value, np.ndarray | np.generic) and (last == "npy" or not is_number):
        return field if last == "npy" else f"{field}.npy"
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return field if last in _INTEGERS else f"{field}.cls"
    return f"{field}.json"


def _encoded(field: str, value: Any, key: str) -> tuple[str, bytes]:
    """Return the name of a field and the encoding of its value, which is not bytes."""
    name = _named(field, value)
    try:
        return name, _payload(name.rpartition(".")[2].lower(), value)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"the field {field!r} of the sample {key!r}, {type(value).__name__}, cannot be written: {error}"
        raise UsageError(msg, hint="give bytes, text, numbers, arrays, or JSON values") from None


def _payload(kind: str, value: Any) -> bytes:
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if kind in _JSON:
        text = json.dumps(value, ensure_ascii=False, default=plain_number)
        if "{" in text:
            check_keys(value)
        return text.encode("utf-8")
    if kind == "npy":
        file = io.BytesIO()
        np.lib.format.write_array(file, np.asarray(value), allow_pickle=False)
        return file.getvalue()
    # Not str(value), which gives the name of an enumeration member.
    return value.encode("utf-8") if isinstance(value, str) else b"%d" % value
