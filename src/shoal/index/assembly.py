"""Assembly of an index from scans of shards, from other indexes, or from some shards of an index; its validation."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexFileError, UsageError
from shoal.index.cutting import CUTTING_RULE, EXTENT_BYTES, cut_extents
from shoal.index.shard_scan import ShardScan
from shoal.index.shard_texts import check_names
from shoal.index.table import EXTENT_COLUMNS, Index, joined_ranges

SNAPSHOT = "snapshot"
"""Key of the version of a table in the metadata of an index: a few JSON values by name."""

_FINGERPRINT_TAG = b"shoal.fingerprint.1\0"
MOST_SAMPLES_WITH_SIZES = 10**8
"""Larger datasets have no sample sizes in their index."""

_TILE = 1 << 16

FINGERPRINTED = ("extent_shard", "extent_first_byte", "extent_end_byte", "extent_num_samples")
"""The columns of extents in the fingerprint."""


@dataclass(frozen=True, slots=True, eq=False)
class ScannedShard:
    """A shard and its scan; ``name`` is relative to the directory of the dataset."""

    name: str
    num_bytes: int
    version: str
    scan: ShardScan


def assemble(
    format_name: str,
    shards: Sequence[ScannedShard],
    *,
    extent_bytes: int = EXTENT_BYTES,
    keep_sample_bytes: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Index:
    """Build the index of a dataset from the scans of its shards, in the given order; O(samples).

    A shard without samples is kept and has no extents. ``keep_sample_bytes=False`` omits the sample sizes, 4 bytes per
    sample; shards of pieces have none.
    """
    cuts = [cut_extents(shard.scan, extent_bytes=extent_bytes) for shard in shards]
    counts = [len(cut.first_byte) for cut in cuts]
    extents = {
        name: _concatenated([getattr(cut, name.removeprefix("extent_")) for cut in cuts], kind)
        for name, kind in EXTENT_COLUMNS.items()
        if name != "extent_shard"
    }
    sizes = None
    if keep_sample_bytes and all(shard.scan.piece_samples is None for shard in shards):
        sizes = _concatenated([np.diff(shard.scan.sample_starts) for shard in shards], "<i8")
        sizes = sizes.astype(np.uint64 if len(sizes) and int(sizes.max()) >= 1 << 32 else np.uint32)
    return _index(
        {"extent_shard": np.repeat(np.arange(len(shards), dtype=np.int32), counts), **extents},
        format=format_name,
        shard_names=tuple(shard.name for shard in shards),
        shard_bytes=np.array([shard.num_bytes for shard in shards], dtype=np.int64),
        shard_versions=tuple(shard.version for shard in shards),
        shard_heads={number: dict(shard.scan.head) for number, shard in enumerate(shards) if shard.scan.head},
        extent_checksum=None,
        sample_bytes=sizes,
        notes=_summed(shard.scan.notes for shard in shards),
        metadata={"cutting_rule": CUTTING_RULE, "extent_bytes": extent_bytes, **(metadata or {})},
    )


def joined(
    indexes: Sequence[Index],
    *,
    columns: Mapping[str, NDArray[Any]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    most_samples_with_sizes: int = MOST_SAMPLES_WITH_SIZES,
) -> Index:
    """Concatenate indexes, in their order; O(extents + samples).

    The result equals `assemble` of the scans of all shards. Columns of the parts are joined by name, unless ``columns``
    replaces them. Checksums, and sample sizes for up to 10^8 samples, are kept if all parts have them. Raises
    `UsageError` if there is no index, formats differ, or an index lacks a column of another index.
    """
    formats = sorted({index.format for index in indexes})
    if len(formats) != 1:
        msg = f"indexes of {len(formats)} formats ({', '.join(formats)}) cannot be joined"
        raise UsageError(msg, hint="a dataset has one format, and at least one shard")
    firsts = [0, *accumulate(index.num_shards for index in indexes)][:-1]
    extents = {name: np.concatenate([getattr(index, name) for index in indexes]) for name in EXTENT_COLUMNS}
    extents["extent_shard"] += np.repeat(np.array(firsts, np.int32), [index.num_extents for index in indexes])
    checksums = [index.extent_checksum for index in indexes if index.extent_checksum is not None]
    filled = [index for index in indexes if index.num_samples]
    sizes = [index.sample_bytes for index in filled if index.sample_bytes is not None]
    has_sizes = len(sizes) == len(filled) and sum(index.num_samples for index in filled) <= most_samples_with_sizes
    return _index(
        extents,
        format=formats[0],
        shard_names=tuple(name for index in indexes for name in index.shard_names),
        shard_bytes=np.concatenate([index.shard_bytes for index in indexes]),
        shard_versions=tuple(version for index in indexes for version in index.shard_versions),
        shard_heads={
            first + number: head
            for index, first in zip(indexes, firsts, strict=True)
            for number, head in index.shard_heads.items()
        },
        extent_checksum=np.concatenate(checksums) if len(checksums) == len(indexes) else None,
        sample_bytes=_concatenated(sizes, "<u4") if has_sizes else None,
        columns=_joined_columns(indexes) if columns is None else dict(columns),
        notes=_summed(index.notes for index in indexes),
        metadata=dict(metadata or {}),
    )


def subset(index: Index, shard_numbers: Sequence[int]) -> Index:
    """Return the index of some shards, in the given order, with its own fingerprint; O(extents + chosen samples).

    Notes describe the whole dataset, and are left out. Raises `UsageError` if a shard number is out of range or occurs
    twice.
    """
    chosen = np.asarray(shard_numbers, dtype=np.int64).reshape(-1)
    inside = bool(((chosen >= 0) & (chosen < index.num_shards)).all())
    if not inside or len(set(chosen.tolist())) != len(chosen):
        msg = f"{list(shard_numbers)[:20]} are not distinct shard numbers: the index has {index.num_shards}"
        raise UsageError(msg, hint="give each shard once, counted from 0")
    first_extent, numbers = index.shard_first_extent, chosen.tolist()
    counts = np.diff(first_extent)[chosen]
    rows = joined_ranges(first_extent[chosen], counts)
    samples = joined_ranges(index.extent_first_sample[rows], index.extent_num_samples[rows].astype(np.int64))
    extents = {name: getattr(index, name)[rows] for name in EXTENT_COLUMNS}
    return _index(
        {**extents, "extent_shard": np.repeat(np.arange(len(chosen), dtype=np.int32), counts)},
        format=index.format,
        shard_names=tuple(index.shard_names[number] for number in numbers),
        shard_bytes=index.shard_bytes[chosen],
        shard_versions=tuple(index.shard_versions[number] for number in numbers),
        shard_heads={new: index.shard_heads[old] for new, old in enumerate(numbers) if old in index.shard_heads},
        extent_checksum=None if index.extent_checksum is None else index.extent_checksum[rows],
        sample_bytes=None if index.sample_bytes is None else index.sample_bytes[samples],
        columns={name: column[samples] for name, column in index.columns.items()},
        metadata=dict(index.metadata),
    )


def first_shards(index: Index, num_shards: int, *, metadata: Mapping[str, Any]) -> Index:
    """Return the index of the first shards, with its own fingerprint; columns are views. O(bytes of its extents).

    Notes describe the whole dataset, and are left out.
    """
    stop_extent = int(np.searchsorted(index.extent_shard, np.int32(num_shards)))
    stop_sample = int(index.extent_first_sample[stop_extent])
    return _index(
        {name: getattr(index, name)[:stop_extent] for name in EXTENT_COLUMNS},
        format=index.format,
        shard_names=tuple(index.shard_names[number] for number in range(num_shards)),
        shard_bytes=index.shard_bytes[:num_shards],
        shard_versions=tuple(index.shard_versions[number] for number in range(num_shards)),
        shard_heads={number: head for number, head in index.shard_heads.items() if number < num_shards},
        extent_checksum=None if index.extent_checksum is None else index.extent_checksum[:stop_extent],
        sample_bytes=None if index.sample_bytes is None else index.sample_bytes[:stop_sample],
        columns={name: column[:stop_sample] for name, column in index.columns.items()},
        metadata=dict(metadata),
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
    columns: tuple[NDArray[Any], ...] = (extent_shard, first_byte, end_byte, num_samples)
    named = zip(FINGERPRINTED, columns, strict=True)
    chunks = (column.astype(EXTENT_COLUMNS[name], copy=False) for name, column in named)
    return fingerprint_of_chunks(shard_names, len(extent_shard), chunks)


def of_snapshot(index: Index, version: Mapping[str, Any]) -> Index:
    """Return an index as the index of a version of a table, which its metadata and its fingerprint then name."""
    metadata = {**index.metadata, SNAPSHOT: dict(version)}
    return replace(index, metadata=metadata, fingerprint=_with_snapshot(index.fingerprint, metadata))


def _with_snapshot(digest: str, metadata: Mapping[str, Any]) -> str:
    """Return the fingerprint of a version of a table: versions with the same files may have other rows or columns."""
    version = metadata.get(SNAPSHOT)
    if version is None:
        return digest
    text = json.dumps([digest, version], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def fingerprint_of_chunks(shard_names: Iterable[str], num_extents: int, chunks: Iterable[NDArray[Any]]) -> str:
    """`fingerprint` of the columns `FINGERPRINTED`, one after another, in chunks of any length."""
    digest = hashlib.blake2b(_FINGERPRINT_TAG, digest_size=16)
    base_names = [name.rsplit("/", 1)[-1].encode("utf-8", "surrogateescape") for name in shard_names]
    digest.update(f"{len(base_names)} {num_extents}\0".encode())
    digest.update(b"\0".join(base_names) + b"\0")
    for chunk in chunks:
        digest.update(np.ascontiguousarray(chunk).data)
    return digest.hexdigest()


def validate(index: Index) -> None:
    """Check that the columns of an index agree; O(extents + samples), vectorised, in tiles of constant memory.

    Extents must lie in their shards, in order and without gaps, each with at least one sample; the sizes of samples
    must add up to the sizes of the extents; names must be safe and distinct; the fingerprint must match the rest. If
    sample sizes are unknown, an extent may begin with the last bytes of the extent before it. Opening a file skips this
    check, since it reads all columns. Raises `IndexFileError`, with the first row that does not match.
    """
    check_names(index.shard_names)
    if len(set(index.shard_names)) != index.num_shards:
        _refuse("two of its shards have the same name")
    _check_rows(index.shard_bytes >= 0, "the size of shard {} is negative")
    for begin in range(0, index.num_extents, _TILE):
        _check_extents(index, begin, min(begin + _TILE, index.num_extents))
    for begin in range(0, index.num_extents if index.sample_bytes is not None else 0, _TILE):
        _check_samples(index, begin, min(begin + _TILE, index.num_extents))
    columns = (index.extent_shard, index.extent_first_byte, index.extent_end_byte, index.extent_num_samples)
    actual = _with_snapshot(fingerprint(index.shard_names, *columns), index.metadata)
    if actual != index.fingerprint:
        _refuse(f"its fingerprint is {index.fingerprint[:40]!r}, but its contents have {actual!r}")


def _check_extents(index: Index, begin: int, end: int) -> None:
    """Check some extents, and their borders to the next two extents."""
    rows = slice(begin, end + 2)
    shard, first, stop = index.extent_shard[rows], index.extent_first_byte[rows], index.extent_end_byte[rows]
    _check_rows((shard >= 0) & (shard < index.num_shards), "extent {} belongs to no shard", begin)
    _check_rows(shard[1:] >= shard[:-1], "extent {} belongs to a later shard than the next extent", begin)
    _check_rows((first >= 0) & (first < stop), "extent {} has no bytes", begin)
    _check_rows(stop <= index.shard_bytes[shard], "extent {} ends after its shard", begin)
    follows = (shard[1:] != shard[:-1]) | (first[1:] == stop[:-1])
    if index.sample_bytes is None:
        follows |= (first[:-1] < first[1:]) & (first[1:] < stop[:-1]) & (stop[:-1] < stop[1:])
    _check_rows(follows, "extent {} does not end where the next one begins", begin)
    separate = (shard[2:] != shard[:-2]) | (first[2:] >= stop[:-2])
    _check_rows(separate, "extent {} overlaps the second extent after it", begin)
    num_samples = index.extent_num_samples[begin:end]
    _check_rows(num_samples >= 1, "extent {} has no samples", begin)
    _check_rows(index.extent_decoded_bytes[begin:end] >= 0, "extent {} has a negative size in memory", begin)
    counts = np.diff(index.extent_first_sample[begin : end + 1])
    _check_rows(counts == num_samples, "the samples of extent {} are miscounted", begin)


def _check_samples(index: Index, begin: int, end: int) -> None:
    """Check the sizes of the samples of some extents, whose counts are right."""
    first_sample = index.extent_first_sample[begin : end + 1]
    first, stop = int(first_sample[0]), int(first_sample[-1])
    sizes = index.sample_bytes[first:stop]  # type: ignore[index]  # the caller has checked
    sums = np.add.reduceat(sizes, first_sample[:-1] - first, dtype=np.uint64)
    num_bytes = (index.extent_end_byte[begin:end] - index.extent_first_byte[begin:end]).view(np.uint64)
    _check_rows(sums == num_bytes, "the samples of extent {} do not add up to its bytes", begin)
    _check_rows(sizes > 0, "sample {} has no bytes", first)


def _check_rows(is_right: NDArray[np.bool_] | Any, msg: str, begin: int = 0) -> None:
    """Raise `IndexFileError` for the first invalid row, counted from ``begin``."""
    if not is_right.all():
        _refuse(msg.format(begin + int(np.argmin(is_right))))


def _refuse(problem: str) -> NoReturn:
    msg = f"the index contradicts itself: {problem}"
    raise IndexFileError(msg, hint="the file is damaged, or was not made by shoal: make the index again")


def _index(extents: Mapping[str, Any], *, shard_names: Sequence[str], **rest: Any) -> Index:
    digest = _with_snapshot(fingerprint(shard_names, *(extents[name] for name in FINGERPRINTED)), rest["metadata"])
    return Index(shard_names=shard_names, fingerprint=digest, **extents, **rest)


def _joined_columns(indexes: Sequence[Index]) -> dict[str, NDArray[Any]]:
    names = list(indexes[0].columns)
    for index in indexes:
        if sorted(index.columns) != sorted(names):
            msg = f"one index has the columns {sorted(index.columns)}, another {sorted(names)}"
            raise UsageError(msg, hint="all shards need the same columns")
    return {name: np.concatenate([index.columns[name] for index in indexes]) for name in names}


def _concatenated(parts: Sequence[NDArray[Any]], kind: str) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=kind)


def _summed(notes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counts in notes:
        total.update(counts)
    return dict(total)
