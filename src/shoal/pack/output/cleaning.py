"""`shoal.pack.clean`: remove the shards and records of an unfinished job, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import UsageError
from shoal.formats.metadata.manifests import MANIFEST_NAME
from shoal.pack.output.destination import Output, digest_of
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.store_protocol import ObjectInfo
from shoal.storage.urls import join, relative, without_secrets

GRACE_SECONDS = 86_400.0
"""A job counts as dead if it has written nothing for this time by default: a day."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Result of `clean`: names and bytes of the removed files; ``kept`` lists changed shards, which stay.

    Examples
    --------
    >>> job = shoal.pack.plan("pets", "packed", shard_bytes="100KiB")
    >>> shard = job.run(0)
    >>> cleaned = shoal.pack.clean("packed", grace_seconds=0)
    >>> shard.name in cleaned.removed, cleaned.kept
    (True, ())
    """

    removed: tuple[str, ...]
    num_bytes: int
    kept: tuple[str, ...] = ()


def clean(
    url: str | os.PathLike[str],
    *,
    grace_seconds: float = GRACE_SECONDS,
    storage_options: Mapping[str, Any] | None = None,
) -> Cleaned:
    """Remove the records of a job from its destination, and its shards if no index names them.

    A shard is read and removed only if the job recorded its bytes. A finished dataset stays unchanged. An unfinished
    job is gone, and its late tasks end with an error.

    Parameters
    ----------
    url
        The destination of the job.
    grace_seconds
        Least age of the last record of a dead job; 0 if the job is known to be dead.
    storage_options
        Options of the store.

    Returns
    -------
    Cleaned
        Removed files; none if no job left any.

    Raises
    ------
    UsageError
        The job has written something within the grace period, or the store reports no times and ``grace_seconds`` is
        not 0.
    StorageError
        A process of this machine is packing here, or a file cannot be removed.

    Examples
    --------
    >>> job = shoal.pack.plan("pets", "packed", shard_bytes="100KiB")
    >>> shard = job.run(1)  # and never another
    >>> shard.name in shoal.pack.clean("packed", grace_seconds=0).removed
    True
    """
    out = Output(url, plan="cleaned", storage_options=storage_options)
    records = out.journal.records()
    if not records:
        return Cleaned((), 0)
    out.lock()
    try:
        _check_age(out.url, records, grace_seconds)
        if out.journal.planned() is not None:
            out.journal.begin({}, replaces=True)  # tasks of other packings stop
        removed = tuple(relative(info.path, out.url) for info in records)
        num_bytes = sum(info.num_bytes for info in records)
        while True:
            index_info = out.store.find(join(out.url, INDEX_NAME))
            shards = remove_shards(out, records, but=set() if index_info is None else _named(out))
            removed, num_bytes = (*shards.removed, *removed), num_bytes + shards.num_bytes
            out.store.close()
            if out.store.find(join(out.url, INDEX_NAME)) == index_info:
                break  # else a living job has committed, or taken back, its index meanwhile
        out.journal.remove_records()
        return Cleaned(removed, num_bytes, shards.kept)
    finally:
        out.release()


def remove_shards(out: Output, records: Sequence[ObjectInfo], *, but: Collection[str]) -> Cleaned:
    """Remove the recorded shards of a job, except the names in ``but``; the records stay."""
    removed, kept, num_bytes = [], [], 0
    for name, digests in sorted(out.journal.made_by_name(records).items()):
        info = None if name in but else out.store.find(join(out.url, name))
        if info is None:
            continue
        if digest_of(info.path, out.store) not in digests:
            kept.append(name)
            continue
        out.store.delete(info.path)
        removed.append(name)
        num_bytes += info.num_bytes
    return Cleaned(tuple(removed), num_bytes, tuple(kept))


def _named(out: Output) -> set[str]:
    """Return the names of the dataset's files, by its index."""
    index = out.index()
    return {*index.shard_names, *([MANIFEST_NAME] if index.format == "mds" else [])}


def _check_age(url: str, records: list[ObjectInfo], grace_seconds: float) -> None:
    if grace_seconds <= 0:
        return
    times = [info.modified_ns for info in records]
    known = [modified_ns for modified_ns in times if modified_ns is not None]
    if len(known) < len(times):
        msg = f"{without_secrets(url)}: this store does not tell when the job last wrote something"
        raise UsageError(msg, hint="if you know that the job is dead, remove it with grace_seconds=0")
    age_seconds = time.time() - max(known) / 1e9
    if age_seconds < grace_seconds:
        msg = f"{without_secrets(url)}: a job wrote here {max(0, age_seconds):.0f} s ago, and counts as dead after "
        msg += f"{grace_seconds:.0f} s"
        raise UsageError(msg, hint="wait; or, if you know that the job is dead, remove it at once with grace_seconds=0")
