"""Parts of shard heads that an index keeps packed as text: a footer, a schema. They are unpacked in bounded memory."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

from shoal.errors import IndexFileError, ShardError

LIMIT_BYTES = 512 << 20  # the footers and dictionaries that scans accept are smaller
_HINT = "the index is damaged: index the shards again"


def packed(data: bytes) -> str:
    """Pack bytes as text for `unpacked`."""
    return base64.b64encode(zlib.compress(data)).decode()


def unpacked(head: Mapping[str, Any], name: str, *, shard: str = "") -> bytes:
    """Unpack the bytes that a head keeps under a name; memory O(text), and at most `LIMIT_BYTES`.

    Raises `ShardError`: they are missing or damaged (`IndexFileError` if the shard is not known).
    """
    try:
        member = zlib.decompressobj()
        data = member.decompress(base64.b64decode(head[name], validate=True), LIMIT_BYTES)
    except (LookupError, TypeError, ValueError, zlib.error) as error:
        raise unusable(name, error, shard=shard) from None
    if not member.eof:
        raise unusable(name, f"it is cut short, or has more than {LIMIT_BYTES} bytes", shard=shard)
    return data


def number_of(head: Mapping[str, Any], name: str, *, shard: str) -> int:
    """Return a number of a head, 0 or more.

    Raises `ShardError` if the number is missing or invalid.
    """
    number = head.get(name)
    if not isinstance(number, int) or number < 0:
        raise unusable(name, f"{number!r:.40} is not a number of bytes", shard=shard)
    return number


def unusable(name: str, why: object, *, shard: str = "") -> ShardError | IndexFileError:
    """Return the error for a part of a head that cannot be read."""
    msg = f"the head of this shard in the index ({name}) cannot be read: {why}"
    return ShardError(msg, shard=shard, hint=_HINT) if shard else IndexFileError(msg, hint=_HINT)
