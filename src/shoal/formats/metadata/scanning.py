"""Scans of shards that are checked against a manifest or sped up by a third-party index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import ShardError
from shoal.formats.metadata.manifests import STALE, Expected, Hashes
from shoal.formats.metadata.third_party_index import by_borders, scan_by_index
from shoal.formats.shard_format import Format, ReadBytes
from shoal.hints import MOST_POINTER_BYTES, pointer_in
from shoal.index.shard_scan import BY_BORDERS, Buffer, ShardScan, has_foreign_borders

STALE_INDEXES = "stale_indexes"


def checked_scan(
    format: Format,  # noqa: A002
    read: ReadBytes,
    num_bytes: int,
    *,
    shard: str,
    expected: Expected | None = None,
    index: ReadBytes | None = None,
    index_bytes: int = 0,
    is_local: bool = True,
) -> ShardScan:
    """Scan a shard by a third-party index beside it if given, else with `Format.scan`; compare it with ``expected``.

    ``index`` reads such an index, of ``index_bytes``. If it does not fit the shard, the shard is scanned with
    `Format.scan`, and ``notes`` count it under ``stale_indexes``. With ``is_local``, where small reads are cheap, more
    of its offsets are compared.

    Hashes are compared only if the scan reads the whole shard in order, as it does for compressed shards. Raises
    `ShardError` if the shard is not what was expected, cannot be scanned, or is a pointer to it.
    """
    if index is None or not format.has_sidecar:
        read = without_pointer(read, num_bytes, shard=shard)
    expected = expected or Expected()
    if expected.num_bytes not in (None, num_bytes):
        msg = f"the index.json beside it says {expected.num_bytes} bytes, and it has {num_bytes}"
        raise ShardError(msg, shard=shard, byte=min(num_bytes, expected.num_bytes or 0), hint=STALE)
    hashes, hashed_bytes = Hashes(expected), 0

    def hashed_read(first_byte: int, end_byte: int, /) -> Buffer:
        nonlocal hashed_bytes
        data = read(first_byte, end_byte)
        if first_byte <= hashed_bytes < end_byte:
            hashes.add(memoryview(data)[hashed_bytes - first_byte :])
            hashed_bytes = end_byte
        return data

    found = None
    if index is not None and format.has_sidecar:
        found = _scan_sidecar(format, read, index, index_bytes, num_bytes, shard=shard)
    elif index is not None:
        borders = index(0, index_bytes)
        found = scan_by_index(format, borders, read, num_bytes, shard=shard, is_local=is_local)
    if found is None:
        found = format.scan(hashed_read if expected.hashes else read, num_bytes, shard=shard)
        found = found if index is None else replace(found, notes={**found.notes, STALE_INDEXES: 1})
    if hashed_bytes == num_bytes:
        hashes.check(shard=shard)
    if expected.num_samples not in (None, found.num_samples):
        msg = f"the index.json beside it says {expected.num_samples} samples, and {found.num_samples} are found"
        raise ShardError(msg, shard=shard, hint=STALE)
    return found


def scan_again(
    format: Format,  # noqa: A002
    read: ReadBytes,
    num_bytes: int,
    *,
    shard: str,
    head: Mapping[str, Any],
    index: ReadBytes | None = None,
    index_bytes: int = 0,
) -> ShardScan:
    """Scan a shard knowing only what an index that keeps ``head`` of it knows, to compare the scan with that index.

    ``index`` reads a third-party index beside the shard, without which a format with sidecars cannot scan it.

    Raises `ShardError` if the shard cannot be scanned, or is a pointer to it.
    """
    if index is not None and format.has_sidecar:
        return _scan_sidecar(format, read, index, index_bytes, num_bytes, shard=shard)
    read = without_pointer(read, num_bytes, shard=shard)
    found = format.scan_as(head, read, num_bytes, shard=shard)
    return by_borders(found, entry=head[BY_BORDERS]) if has_foreign_borders(head) else found


def without_pointer(read: ReadBytes, num_bytes: int, *, shard: str) -> ReadBytes:
    """Return a reader of the same shard, after a look at all of it if it is small enough for a pointer.

    Raises `ShardError` if it is a pointer of Git LFS or git-annex.
    """
    if not 0 < num_bytes <= MOST_POINTER_BYTES:
        return read
    data = bytes(read(0, num_bytes))
    if pointer := pointer_in(data):
        raise ShardError(pointer[0], shard=shard, byte=0, hint=pointer[1])
    return lambda first_byte, end_byte: data[first_byte:end_byte]


def _scan_sidecar(
    format: Format,  # noqa: A002
    read: ReadBytes,
    index: ReadBytes,
    index_bytes: int,
    num_bytes: int,
    *,
    shard: str,
) -> ShardScan:
    index = without_pointer(index, index_bytes, shard=f"the .idx beside {shard}")
    try:
        return format.scan_sidecar(index, index_bytes, num_bytes, shard=shard)
    except ShardError:
        without_pointer(read, num_bytes, shard=shard)  # of a shard that fits its index, no byte is read
        raise
