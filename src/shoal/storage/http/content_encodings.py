"""Interpretation of Content-Encoding: it describes the stored object, or a transformation for this answer.

Ranges are of the object as the server stores it; so an answer encoded on the way is of no use. But many stores repeat
for each answer the encoding given when the object was written, which for "train.jsonl.gz" is often "gzip": then the
bytes are those that are stored, and that its name promises.
"""

from __future__ import annotations

_STORED_AS = {
    "gz": ("gzip", "x-gzip"),
    "tgz": ("gzip", "x-gzip"),
    "bz2": ("bzip2", "x-bzip2"),
    "xz": ("xz", "x-xz"),
    "zst": ("zstd",),
    "zstd": ("zstd",),
    "br": ("br",),
}
# "aws-chunked" is how a client once sent the object to its store, which did not remove it.
_NO_CODES = ("", "identity", "aws-chunked")


def encoded_on_the_way(encoding: str, path: str) -> bool:
    """Return True if an answer for ``path`` with this Content-Encoding holds other bytes than those stored.

    >>> [encoded_on_the_way(said, "a/b.jsonl.gz") for said in ("gzip", "aws-chunked, gzip", "br", "gzip, gzip")]
    [False, False, True, True]
    >>> encoded_on_the_way("gzip", "a/b.jsonl")
    True
    """
    codes = [code for said in encoding.split(",") if (code := said.strip().lower()) not in _NO_CODES]
    stored_as = _STORED_AS.get(path.partition("#")[0].rpartition(".")[2].lower(), ())
    return bool(codes) and (len(codes) > 1 or codes[0] not in stored_as)
