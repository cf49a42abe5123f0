"""Consistency checks between the columns of an index, which opening it skips because they read all columns."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexFileError
from shoal.index.assembly import fingerprint
from shoal.index.index_file import check_names
from shoal.index.table import Index


def validate(index: Index) -> None:
    """Check that the columns of an index agree; O(extents + samples), vectorised.

    Extents must lie in their shards, in order and without gaps, each with at least one sample; the sizes of samples
    must add up to those of the extents; names must be safe and distinct; the fingerprint must match the rest. If sample
    sizes are unknown, an extent may begin with bytes that the one before ends with. Raises `IndexFileError` if
    something does not match, with the first row at which that shows.
    """
    check_names(index.shard_names)
    if len(set(index.shard_names)) != index.num_shards:
        _refuse("two of its shards have the same name")
    shard, first, end = index.extent_shard, index.extent_first_byte, index.extent_end_byte
    _all(index.shard_bytes >= 0, "the size of shard {} is negative")
    _all((shard >= 0) & (shard < index.num_shards), "extent {} belongs to no shard")
    _all(shard[1:] >= shard[:-1], "extent {} belongs to a later shard than the next one")
    _all((first >= 0) & (first < end), "extent {} has no bytes")
    _all(end <= index.shard_bytes[shard], "extent {} ends behind its shard")
    follows = (shard[1:] != shard[:-1]) | (first[1:] == end[:-1])
    if index.sample_bytes is None:  # an extent may begin inside the one before
        follows |= (first[:-1] < first[1:]) & (first[1:] < end[:-1]) & (end[:-1] < end[1:])
    _all(follows, "extent {} does not end where the next one begins")
    _all((shard[2:] != shard[:-2]) | (first[2:] >= end[:-2]), "extent {} ends behind the start of the next but one")
    _all(index.extent_num_samples >= 1, "extent {} has no samples")
    _all(index.extent_decoded_bytes >= 0, "extent {} has a negative size in memory")
    _all(np.diff(index.extent_first_sample) == index.extent_num_samples, "the samples of extent {} are miscounted")
    if index.sample_bytes is not None and index.num_extents:
        sums = np.add.reduceat(index.sample_bytes, index.extent_first_sample[:-1], dtype=np.uint64)
        _all(sums == (end - first).view(np.uint64), "the samples of extent {} do not add up to its bytes")
        _all(index.sample_bytes > 0, "sample {} has no bytes")
    found = fingerprint(index.shard_names, shard, first, end, index.extent_num_samples)
    if found != index.fingerprint:
        _refuse(f"its fingerprint is {index.fingerprint[:40]!r}, and its contents have {found!r}")


def _all(right: NDArray[np.bool_] | Any, msg: str) -> None:
    """Raise for the first row that is not right."""
    if not right.all():
        _refuse(msg.format(int(np.argmin(right))))


def _refuse(what: str) -> NoReturn:
    msg = f"the index contradicts itself: {what}"
    raise IndexFileError(msg, hint="the file is damaged, or was not made by shoal: make the index again")
