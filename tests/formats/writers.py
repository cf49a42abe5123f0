"""Writers of shards, after the descriptions of the formats: what readers are tested against."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import itertools
import json
import lzma
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.formats.rows.tfrecord.crc32c import masked

RECORDIO_MAGIC = struct.pack("<I", 0xCED7230A)


def _library(name: str) -> Any:
    return importlib.import_module(name)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "zlib": zlib.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: _library("zstandard").ZstdCompressor(write_content_size=False).compress(data),
    "br": lambda data: _library("brotli").compress(data),
    "snappy": lambda data: bytes(_library("cramjam").snappy.compress_raw(data)),
}


def tar_of(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def framed(data: bytes) -> bytes:
    """A record of a TFRecord shard."""
    crc32c = _library("google_crc32c").value
    length = struct.pack("<Q", len(data))
    crcs = [struct.pack("<I", int(masked(crc32c(part)))) for part in (length, data)]
    return length + crcs[0] + data + crcs[1]


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(value: Any, *, packed: bool = True) -> bytes:
    if isinstance(value, list):
        return field(1, b"".join(field(1, item) for item in value))
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        items = [struct.pack("<f", item) for item in value.tolist()]
        return field(2, field(1, b"".join(items)) if packed else b"".join(b"\x0d" + item for item in items))
    numbers = [varint(item) for item in value.tolist()]
    return field(3, field(1, b"".join(numbers)) if packed else b"".join(b"\x08" + number for number in numbers))


def example(features: dict[str, Any], *, packed: bool = True) -> bytes:
    """A ``tf.train.Example``."""
    entries = [field(1, field(1, k.encode()) + field(2, feature(v, packed=packed))) for k, v in features.items()]
    return field(1, b"".join(entries))


def recordio_part(kind: int, data: bytes) -> bytes:
    return RECORDIO_MAGIC + struct.pack("<I", kind << 29 | len(data)) + data + bytes(-len(data) % 4)


def recordio_record(data: bytes) -> bytes:
    """Cut at every magic number that lies at a multiple of four, as dmlc's writer does."""
    pieces, begin = [], 0
    for at in range(0, len(data) - 3, 4):
        if data[at : at + 4] == RECORDIO_MAGIC and at >= begin:
            pieces.append(data[begin:at])
            begin = at + 4
    pieces.append(data[begin:])
    if len(pieces) == 1:
        return recordio_part(0, data)
    kinds = [1, *[2] * (len(pieces) - 2), 3]
    return b"".join(recordio_part(kind, piece) for kind, piece in zip(kinds, pieces, strict=True))


def mds_of(columns: Mapping[str, tuple[str, int | None]], samples: list[list[bytes]]) -> bytes:
    """An MDS shard of columns (encoding, bytes of a value or None) and samples of encoded values."""
    names = sorted(columns)
    about = {
        "column_names": names,
        "column_encodings": [columns[name][0] for name in names],
        "column_sizes": [columns[name][1] for name in names],
    }
    config = json.dumps(about).encode()
    encoded = []
    for values in samples:
        by_name = dict(zip(columns, values, strict=True))
        variable = [len(by_name[name]).to_bytes(4, "little") for name in names if columns[name][1] is None]
        encoded.append(b"".join(variable) + b"".join(by_name[name] for name in names))
    first = 4 * (len(samples) + 2) + len(config)
    starts = first + np.concatenate([[0], np.cumsum([len(sample) for sample in encoded], dtype=np.int64)])
    return len(samples).to_bytes(4, "little") + starts.astype("<u4").tobytes() + config + b"".join(encoded)


def framed_snappy(data: bytes) -> bytes:
    """Snappy's framing, as command lines write it."""
    import cramjam

    return bytes(cramjam.snappy.compress(data)) or b"\xff\x06\0\0sNaPpY"


def in_frames(data: bytes, sizes: Sequence[int], codec: str) -> list[bytes]:
    """The data in members of these sizes, over and over, each compressed apart."""
    return [COMPRESS[codec](part) for part in in_parts(data, sizes)]


def in_parts(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    parts, at, repeated = [], 0, itertools.cycle(sizes)
    while at < len(data):
        parts.append(data[at : at + next(repeated)])
        at += len(parts[-1])
    return parts


def seekable_zstd(data: bytes, sizes: Sequence[int]) -> bytes:
    """Frames with the table of them behind, as the seekable format of zstd has it: in a frame that is skipped."""
    frames = in_frames(data, sizes, "zst")
    pairs = zip(frames, in_parts(data, sizes), strict=True)
    entries = b"".join(struct.pack("<II", len(frame), len(part)) for frame, part in pairs)
    table = entries + struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
    return b"".join(frames) + struct.pack("<II", 0x184D2A5E, len(table)) + table
