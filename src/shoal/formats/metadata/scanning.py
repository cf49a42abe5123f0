"""Scans that are checked against a manifest or sped up by a third-party index."""

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
    """Scan a shard by the third-party index beside it, if any, or with `Format.scan`; compare it with ``expected``.

    ``index`` reads the third-party index, of ``index_bytes``. If it does not fit the shard, `Format.scan` scans the
    shard, and ``notes`` count it under ``stale_indexes``. With ``is_local``, where small reads are cheap, more offsets
    are compared.

    Hashes are compared only if the scan reads the whole shard in order, as for compressed shards. Raises `ShardError`
    if the shard does not match ``expected``, cannot be scanned, or is a pointer file.
    """
    if index is None or not format.has_sidecar:
        read = without_pointer(read, num_bytes, shard=shard)
    expected = expected or Expected()
    if expected.num_bytes not in (None, num_bytes):
        msg = f"the shard has {num_bytes} bytes, but index.json says {expected.num_bytes}"
        raise ShardError(msg, shard=shard, byte=min(num_bytes, expected.num_bytes or 0), hint=STALE)
    hashes, hashed_bytes = Hashes(expected), 0

    def hashed_read(first_byte: int, end_byte: int, /) -> Buffer:
        nonlocal hashed_bytes
        data = read(first_byte, end_byte)
        if first_byte <= hashed_bytes < end_byte:
            hashes.add(memoryview(data)[hashed_bytes - first_byte :])
            hashed_bytes = end_byte
        return data

    scan = None
    if index is not None and format.has_sidecar:
        scan = _scan_sidecar(format, read, index, index_bytes, num_bytes, shard=shard)
    elif index is not None:
        scan = scan_by_index(format, index(0, index_bytes), read, num_bytes, shard=shard, is_local=is_local)
    if scan is None:
        scan = format.scan(hashed_read if expected.hashes else read, num_bytes, shard=shard)
        scan = scan if index is None else replace(scan, notes={**scan.notes, STALE_INDEXES: 1})
    if hashed_bytes == num_bytes:
        hashes.check(shard=shard)
    if expected.num_samples not in (None, scan.num_samples):
        msg = f"the shard has {scan.num_samples} samples, but index.json says {expected.num_samples}"
        raise ShardError(msg, shard=shard, hint=STALE)
    return scan


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
    """Scan a shard again, to compare the scan with an existing index; ``head`` is the shard's header in that index.

    ``index`` reads the third-party index beside the shard, which a format with sidecars needs. Raises `ShardError` if
    the shard cannot be scanned, or is a pointer file.
    """
    if index is not None and format.has_sidecar:
        return _scan_sidecar(format, read, index, index_bytes, num_bytes, shard=shard)
    read = without_pointer(read, num_bytes, shard=shard)
    scan = format.scan_as(head, read, num_bytes, shard=shard)
    return by_borders(scan, entry=head[BY_BORDERS]) if has_foreign_borders(head) else scan


def without_pointer(read: ReadBytes, num_bytes: int, *, shard: str) -> ReadBytes:
    """Read a shard that is small enough for a pointer file, and return a reader of the shard.

    Raises `ShardError` if it is a pointer file of Git LFS or git-annex.
    """
    if not 0 < num_bytes <= MOST_POINTER_BYTES:
        return read
    data = bytes(read(0, num_bytes))
    if pointer := pointer_in(data):
        raise ShardError(pointer[0], shard=shard, byte=0, hint=pointer[1])
    return lambda first_byte, end_byte: data[first_byte:end_byte]


def _scan_sidecar(
    shard_format: Format, read: ReadBytes, index: ReadBytes, index_bytes: int, num_bytes: int, *, shard: str
) -> ShardScan:
    index = without_pointer(index, index_bytes, shard=f"the .idx beside {shard}")
    try:
        return shard_format.scan_sidecar(index, index_bytes, num_bytes, shard=shard)
    except ShardError:
        without_pointer(read, num_bytes, shard=shard)  # only now: a shard that fits its index is not read
        raise
