"""What Content-Encoding says of an answer: of the object as it is stored, or of what was done to it on the way.

Ranges are of the object as the server has it; so what it encodes for the answer is of no use. But many stores repeat
for each answer what they were told when the object was written, which for "train.jsonl.gz" is often "gzip": then the
bytes are those that are stored, and that its name promises.
"""

from __future__ import annotations

__all__ = ["encoded_on_the_way"]

_STORED_AS = {
    "gz": ("gzip", "x-gzip"),
    "tgz": ("gzip", "x-gzip"),
    "bz2": ("bzip2", "x-bzip2"),
    "xz": ("xz", "x-xz"),
    "zst": ("zstd",),
    "zstd": ("zstd",),
    "br": ("br",),
}
# The second is how a client once sent the object to its store, which did not take it off.
_NO_CODES = ("", "identity", "aws-chunked")


def encoded_on_the_way(encoding: str, path: str) -> bool:
    """Whether an answer about ``path`` with this Content-Encoding holds other bytes than those that are stored.

    >>> [encoded_on_the_way(said, "a/b.jsonl.gz") for said in ("gzip", "aws-chunked, gzip", "br", "gzip, gzip")]
    [False, False, True, True]
    >>> encoded_on_the_way("gzip", "a/b.jsonl")
    True
    """
    codes = [code for said in encoding.split(",") if (code := said.strip().lower()) not in _NO_CODES]
    stored_as = _STORED_AS.get(path.partition("#")[0].rpartition(".")[2].lower(), ())
    return bool(codes) and (len(codes) > 1 or codes[0] not in stored_as)
