"""Joining of indexes, the inverse of `shoal.index.cutting.subset`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.cutting import fingerprint
from shoal.index.table import Index

_MOST_SAMPLES_WITH_SIZES = 10**8


def joined(
    indexes: Sequence[Index],
    *,
    columns: Mapping[str, NDArray[Any]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    most_samples_with_sizes: int = _MOST_SAMPLES_WITH_SIZES,
) -> Index:
    """Join indexes into that of a dataset with the shards of all of them, in their order; O(extents + samples).

    The result equals that of `assemble` on the scans of all shards. ``columns`` replace those of the parts, which are
    joined by name. Checksums are kept if all parts have them, sample sizes likewise and for up to 10^8 samples.

    Raises
    ------
    UsageError
        If there are none, they have different formats, or one lacks a column that another has.
    """
    formats = sorted({index.format for index in indexes})
    if len(formats) != 1:
        msg = f"indexes of {len(formats)} formats ({', '.join(formats)}) are to be joined"
        raise UsageError(msg, hint="a dataset has one format, and at least one shard")
    firsts = [0, *accumulate(index.num_shards for index in indexes)]
    names = tuple(name for index in indexes for name in index.shard_names)
    shard = _together([index.extent_shard + np.int32(first) for index, first in zip(indexes, firsts, strict=False)])
    first_byte = _together([index.extent_first_byte for index in indexes])
    end_byte = _together([index.extent_end_byte for index in indexes])
    num_samples = _together([index.extent_num_samples for index in indexes])
    notes: dict[str, int] = {}
    for index in indexes:
        for note, count in index.notes.items():
            notes[note] = notes.get(note, 0) + count
    checksums = [index.extent_checksum for index in indexes]
    return Index(
        format=formats[0],
        shard_names=names,
        shard_bytes=_together([index.shard_bytes for index in indexes]),
        shard_versions=tuple(version for index in indexes for version in index.shard_versions),
        shard_heads={
            first + number: head
            for index, first in zip(indexes, firsts, strict=False)
            for number, head in index.shard_heads.items()
        },
        extent_shard=shard,
        extent_first_byte=first_byte,
        extent_end_byte=end_byte,
        extent_num_samples=num_samples,
        extent_decoded_bytes=_together([index.extent_decoded_bytes for index in indexes]),
        extent_layout_crc=_together([index.extent_layout_crc for index in indexes]),
        extent_checksum=None if any(sums is None for sums in checksums) else _together(_known(checksums)),
        sample_bytes=_sizes(indexes, int(num_samples.sum()), most_samples_with_sizes),
        fingerprint=fingerprint(names, shard, first_byte, end_byte, num_samples),
        columns=_columns(indexes) if columns is None else dict(columns),
        notes=notes,
        metadata=dict(metadata or {}),
    )


def _columns(indexes: Sequence[Index]) -> dict[str, NDArray[Any]]:
    names = list(indexes[0].columns)
    for index in indexes:
        if sorted(index.columns) != sorted(names):
            msg = f"one index has the columns {sorted(index.columns)}, another {sorted(names)}"
            raise UsageError(msg, hint="all shards need the same columns")
    return {name: np.concatenate([index.columns[name] for index in indexes]) for name in names}


def _sizes(indexes: Sequence[Index], num_samples: int, most: int) -> NDArray[np.unsignedinteger[Any]] | None:
    sizes = [index.sample_bytes for index in indexes if index.num_samples]
    if num_samples > most or any(part is None for part in sizes):
        return None
    return np.concatenate(_known(sizes)) if sizes else np.zeros(0, dtype=np.uint32)


def _known(parts: Sequence[NDArray[Any] | None]) -> list[NDArray[Any]]:
    return [part for part in parts if part is not None]


def _together(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts)
