r"""The ``.idx`` of Megatron-LM and NeMo: the type of the tokens in the ``.bin`` beside it, and where documents begin.

Layout, little-endian: ``b"MMIDIDX\0\0"``, u64 version 1, u8 code of the type, u64 number of sequences, u64 number of
document indices; then per sequence its length in tokens (i32), per sequence its first byte in the ``.bin`` (i64), and
the first sequence of each document, followed by the number of sequences (i64). Multimodal indexes have one more byte
per sequence, which is not read.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.shard_format import ReadBytes

_MAGIC = b"MMIDIDX\0\0"
_HEADER_BYTES = len(_MAGIC) + 8 + 1 + 8 + 8
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_HINT = "copy both files again, or write the .idx again with the tools of Megatron-LM"


def megatron_dtype(read: ReadBytes, num_bytes: int, *, shard: str) -> str:
    """Return the type of the tokens, from the header alone; raises `ShardError` if the file is not such an index."""
    header = bytes(read(0, min(num_bytes, _HEADER_BYTES)))
    if len(header) < _HEADER_BYTES:
        _refuse(f"the .idx of the shard has {num_bytes} bytes, but a header needs {_HEADER_BYTES}", shard)
    if not header.startswith(_MAGIC):
        _refuse(f"the .idx of the shard begins with {header[:9]!r}; Megatron-LM writes {_MAGIC!r}", shard)
    version, code = int.from_bytes(header[9:17], "little"), header[17]
    if version != 1 or code not in _DTYPES:
        problem = f"the .idx of the shard has version {version} and type {code}"
        _refuse(f"{problem}; shoal reads version 1 and types {list(_DTYPES)}", shard)
    return _DTYPES[code]


def document_borders(
    read: ReadBytes, num_bytes: int, data_bytes: int, *, itemsize: int, shard: str
) -> NDArray[np.int64]:
    """Return the bytes of the ``.bin`` where documents begin and the last one ends, shape (num_documents + 1,).

    Raises `ShardError` if the index contradicts itself or the size of the ``.bin``.
    """
    header = bytes(read(0, _HEADER_BYTES))
    num_sequences, num_documents = (int.from_bytes(header[at : at + 8], "little") for at in (18, 26))
    pointers_at = _HEADER_BYTES + 4 * num_sequences
    documents_at = pointers_at + 8 * num_sequences
    end = documents_at + 8 * num_documents
    if end > num_bytes:
        _refuse(f"the .idx of the shard has {num_bytes} bytes, but its sequences need {end}", shard)
    lengths = np.frombuffer(read(_HEADER_BYTES, pointers_at), "<i4")
    pointers = np.frombuffer(read(pointers_at, documents_at), "<i8")
    documents = np.frombuffer(read(documents_at, end), "<i8")
    borders = np.zeros(num_sequences + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=borders[1:])
    borders *= itemsize
    if bool((lengths < 0).any()) or not np.array_equal(pointers, borders[:-1]):
        _refuse("the sequences in the .idx of the shard do not follow each other", shard)
    if borders[-1] != data_bytes:
        _refuse(f"the sequences in the .idx of the shard end at byte {borders[-1]}, the file at {data_bytes}", shard)
    bounds = [0, num_sequences]
    if not len(documents) or [documents[0], documents[-1]] != bounds or bool((np.diff(documents) < 0).any()):
        _refuse(f"the documents in the .idx of the shard do not divide its {num_sequences} sequences", shard)
    document_bytes: NDArray[np.int64] = borders[documents]
    return document_bytes


def _refuse(what: str, shard: str) -> NoReturn:
    raise ShardError(what, shard=shard, byte=0, hint=_HINT)
