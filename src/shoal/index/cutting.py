"""Construction of an index: shards cut into extents, concatenated, and identified by a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.shard_scan import ShardScan
from shoal.index.table import Index

EXTENT_BYTES = 65536
CUTTING_RULE = 1
_FINGERPRINT_TAG = b"shoal.fingerprint.1\0"


@dataclass(frozen=True, slots=True, eq=False)
class ScannedShard:
    """One shard and the result of its scan; ``name`` is relative to the directory of the dataset."""

    name: str
    num_bytes: int
    version: str
    scan: ShardScan


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """The extents of one shard; all arrays have shape (num_extents,)."""

    first_byte: NDArray[np.int64]
    end_byte: NDArray[np.int64]
    num_samples: NDArray[np.int64]
    decoded_bytes: NDArray[np.int64]
    layout_crc: NDArray[np.uint32]


def even_cuts(total: int, *, size: int) -> NDArray[np.int64]:
    """Return the borders that cut ``total`` items into ``ceil(total / size)`` parts whose sizes differ by at most one.

    >>> even_cuts(10, size=4).tolist()
    [0, 3, 6, 10]
    """
    num_parts = -(-total // size)
    return np.arange(num_parts + 1, dtype=np.int64) * total // max(1, num_parts)


def cut_extents(scan: ShardScan, *, extent_bytes: int = EXTENT_BYTES) -> Extents:
    """Cut the samples of a shard into extents of about ``extent_bytes``, by cutting rule 1.

    With ``n = max(1, round(extent_bytes / mean sample bytes))`` the shard's S samples form ``ceil(S / n)`` extents
    whose counts differ by at most one. An extent never holds part of a sample. Pieces, which cannot be cut, are extents
    as they are.
    """
    if extent_bytes < 1:
        msg = f"extent_bytes={extent_bytes} is not positive"
        raise UsageError(msg, hint="give the bytes of an extent, 65536 for instance")
    starts, num_samples = scan.sample_starts, scan.num_samples
    if num_samples == 0:
        none = np.zeros(0, dtype=np.int64)
        return Extents(none, none, none, none, np.zeros(0, dtype=np.uint32))
    if scan.piece_samples is not None:
        return _pieces(scan, scan.piece_samples)
    cuts = cut_borders(scan, extent_bytes=extent_bytes)
    borders = starts[cuts]
    crcs = scan.layout_crcs.astype("<u4").tobytes()
    layout = [crc32(crcs[first:end]) for first, end in pairwise((4 * cuts).tolist())]
    sizes = np.diff(borders)
    return Extents(borders[:-1], borders[1:], np.diff(cuts), sizes, np.array(layout, dtype=np.uint32))


def cut_borders(scan: ShardScan, *, extent_bytes: int) -> NDArray[np.int64]:
    """Return the samples at which `cut_extents` cuts a shard of samples, not pieces; the last is their number."""
    starts, num_samples = scan.sample_starts, scan.num_samples
    # round(extent_bytes * S / bytes) in integers, halves up: the rule must give equal results everywhere.
    num_bytes = int(starts[-1] - starts[0])
    per_extent = max(1, (2 * extent_bytes * num_samples + num_bytes) // (2 * num_bytes))
    return even_cuts(num_samples, size=per_extent)


def _pieces(scan: ShardScan, piece_samples: NDArray[np.int64]) -> Extents:
    first_byte, end_byte = scan.sample_starts[:-1], scan.ends
    decoded = end_byte - first_byte if scan.piece_decoded_bytes is None else scan.piece_decoded_bytes
    return Extents(first_byte, end_byte, piece_samples, decoded, layout_of(scan.layout_crcs))


def layout_of(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the layout CRCs of extents that have one CRC each, of a piece or of a single sample; same shape."""
    return np.array([crc32(crc.tobytes()) for crc in crcs.astype("<u4")], dtype=np.uint32)


def assemble(
    format_name: str,
    shards: Sequence[ScannedShard],
    *,
    extent_bytes: int = EXTENT_BYTES,
    keep_sample_bytes: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Index:
    """Build the index of a dataset from the scans of its shards, in the given order; O(samples).

    A shard without samples is kept and has no extents. ``keep_sample_bytes=False`` omits the sample sizes, which take
    4 bytes per sample; shards of pieces, which have no sample sizes, omit them as well.
    """
    cuts = [cut_extents(shard.scan, extent_bytes=extent_bytes) for shard in shards]
    counts = [len(cut.first_byte) for cut in cuts]
    extent_shard = np.repeat(np.arange(len(shards), dtype=np.int32), counts)
    first_byte = _joined([cut.first_byte for cut in cuts], np.int64)
    end_byte = _joined([cut.end_byte for cut in cuts], np.int64)
    num_samples = _joined([cut.num_samples for cut in cuts], np.int64)
    keep_sample_bytes = keep_sample_bytes and all(shard.scan.piece_samples is None for shard in shards)
    names = tuple(shard.name for shard in shards)
    notes: dict[str, int] = {}
    for shard in shards:
        for note, count in shard.scan.notes.items():
            notes[note] = notes.get(note, 0) + count
    return Index(
        format=format_name,
        shard_names=names,
        shard_bytes=np.array([shard.num_bytes for shard in shards], dtype=np.int64),
        shard_versions=tuple(shard.version for shard in shards),
        shard_heads={number: dict(shard.scan.head) for number, shard in enumerate(shards) if shard.scan.head},
        extent_shard=extent_shard,
        extent_first_byte=first_byte,
        extent_end_byte=end_byte,
        extent_num_samples=num_samples,
        extent_decoded_bytes=_joined([cut.decoded_bytes for cut in cuts], np.int64),
        extent_layout_crc=_joined([cut.layout_crc for cut in cuts], np.uint32),
        extent_checksum=None,
        sample_bytes=_sample_bytes(shards) if keep_sample_bytes else None,
        fingerprint=fingerprint(names, extent_shard, first_byte, end_byte, num_samples),
        notes=notes,
        metadata={"cutting_rule": CUTTING_RULE, "extent_bytes": extent_bytes, **(metadata or {})},
    )


def fingerprint(
    shard_names: Iterable[str],
    extent_shard: NDArray[np.int32],
    first_byte: NDArray[np.int64],
    end_byte: NDArray[np.int64],
    num_samples: NDArray[np.int64],
) -> str:
    """Return the fingerprint of a dataset: blake2b over base names, extents and counts, 16 bytes as hex.

    Excludes directory, times, versions and checksums: a copied dataset is the same dataset.
    """
    digest = hashlib.blake2b(_FINGERPRINT_TAG, digest_size=16)
    base_names = [name.rsplit("/", 1)[-1].encode("utf-8", "surrogateescape") for name in shard_names]
    digest.update(f"{len(base_names)} {len(extent_shard)}\0".encode())
    digest.update(b"\0".join(base_names) + b"\0")
    columns: tuple[tuple[NDArray[Any], str], ...] = (
        (extent_shard, "<i4"),
        (first_byte, "<i8"),
        (end_byte, "<i8"),
        (num_samples, "<i8"),
    )
    for column, kind in columns:
        digest.update(np.ascontiguousarray(column.astype(kind, copy=False)).data)
    return digest.hexdigest()


def subset(index: Index, shard_numbers: Sequence[int]) -> Index:
    """Return the index of some shards, in the given order, with its own fingerprint; O(extents + chosen samples).

    Notes describe the whole dataset, and are left out.

    Raises
    ------
    UsageError
        If a shard number is out of range or comes twice.
    """
    chosen = np.asarray(shard_numbers, dtype=np.int64).reshape(-1)
    inside = bool(((chosen >= 0) & (chosen < index.num_shards)).all())
    if not inside or len(np.unique(chosen)) != len(chosen):
        msg = f"{list(shard_numbers)[:20]} are not different numbers of shards: the index has {index.num_shards}"
        raise UsageError(msg, hint="give each shard once, counted from 0")
    first_extent = index.shard_first_extent
    counts = (first_extent[1:] - first_extent[:-1])[chosen]
    rows = _ranges(first_extent[chosen], counts)
    samples = _ranges(index.extent_first_sample[rows], index.extent_num_samples[rows].astype(np.int64))
    names = tuple(index.shard_names[number] for number in chosen.tolist())
    extent_shard = np.repeat(np.arange(len(chosen), dtype=np.int32), counts)
    extents = (index.extent_first_byte[rows], index.extent_end_byte[rows], index.extent_num_samples[rows])
    heads = {new: index.shard_heads[old] for new, old in enumerate(chosen.tolist()) if old in index.shard_heads}
    return Index(
        format=index.format,
        shard_names=names,
        shard_bytes=index.shard_bytes[chosen],
        shard_versions=tuple(index.shard_versions[number] for number in chosen.tolist()),
        shard_heads=heads,
        extent_shard=extent_shard,
        extent_first_byte=extents[0],
        extent_end_byte=extents[1],
        extent_num_samples=extents[2],
        extent_decoded_bytes=index.extent_decoded_bytes[rows],
        extent_layout_crc=index.extent_layout_crc[rows],
        extent_checksum=None if index.extent_checksum is None else index.extent_checksum[rows],
        sample_bytes=None if index.sample_bytes is None else index.sample_bytes[samples],
        fingerprint=fingerprint(names, extent_shard, *extents),
        columns={name: column[samples] for name, column in index.columns.items()},
        metadata=dict(index.metadata),
    )


def _ranges(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate the numbers of several ranges."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    numbers: NDArray[np.int64] = np.arange(total, dtype=np.int64) + np.repeat(firsts - (ends - counts), counts)
    return numbers


def _joined(parts: list[NDArray[Any]], kind: type) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=kind)


def _sample_bytes(shards: Sequence[ScannedShard]) -> NDArray[np.unsignedinteger[Any]]:
    sizes = _joined([np.diff(shard.scan.sample_starts) for shard in shards], np.int64)
    large = len(sizes) > 0 and int(sizes.max()) >= 1 << 32
    return sizes.astype(np.uint64 if large else np.uint32)
