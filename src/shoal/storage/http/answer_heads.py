"""Fast parser for the heads of ordinary answers, in one step; anything unusual is left to the standard library.

The standard library parses the fields as those of an e-mail, in full generality: a third of the CPU time of a GET.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MOST_FIELDS = 100  # the limit of the standard library
_HEAD = re.compile(rb"HTTP/1\.1 ([2-5]\d\d)(?: [^\r\n\0]*)?\r\n((?:[!-9;-~]+:[^\r\n\0]*\r\n)+)\r\n").match
_FIELD = re.compile(r"([^:]+):[ \t]*([^\r]*)\r\n").findall
_LENGTH = re.compile(r"[0-9]{1,19}").fullmatch
# Fields that change where a body ends; statuses without a body.
_LEFT_TO_OTHERS = ("transfer-encoding", "trailer", "upgrade")
_WITHOUT_BODY = (204, 304)


class PlainHead(NamedTuple):
    """The head of an answer whose body has a stated length."""

    num_bytes: int
    status: int
    fields: dict[str, str]  # by names in lower case, each of which came once
    length: int
    will_close: bool


def plain_head(data: bytes) -> PlainHead | None:
    """Parse the head at the start of ``data``; None if it is incomplete, unusual, or wrong in any way.

    Plain are answers of HTTP/1.1 with a body of a known length, whose fields take one line each and come once.
    """
    found = _HEAD(data)
    if found is None:
        return None
    status, lines = int(found[1]), _FIELD(found[2].decode("latin-1"))
    fields = {name.lower(): text for name, text in lines}
    length = fields.get("content-length", "")
    if len(fields) != len(lines) or len(lines) > _MOST_FIELDS or not _LENGTH(length):
        return None
    if status in _WITHOUT_BODY or any(name in fields for name in _LEFT_TO_OTHERS):
        return None
    will_close = "close" in fields.get("connection", "").lower()
    return PlainHead(found.end(), status, fields, int(length), will_close)
