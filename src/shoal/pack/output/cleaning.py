"""`shoal.pack.clean`: what an unfinished job left behind is removed, and nothing else."""

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
"""Default time for which a job must have written nothing before it counts as dead: a day."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Result of `clean`: names of what was removed, and their bytes; ``kept`` are changed shards, not removed."""

    removed: tuple[str, ...]
    num_bytes: int
    kept: tuple[str, ...] = ()


def clean(
    url: str | os.PathLike[str],
    *,
    grace_seconds: float = GRACE_SECONDS,
    storage_options: Mapping[str, Any] | None = None,
) -> Cleaned:
    """Remove what a job left in a destination and no index names: its shards, if it was not finished, and its records.

    A shard is removed only if the job recorded that it made these very bytes, which are read and compared. A finished
    dataset stays as it is; a job that was not finished is gone, and its late tasks end with an error.

    Parameters
    ----------
    url
        The destination of the job.
    grace_seconds
        How long ago the job must have written its last record; 0 if it is known to be dead.
    storage_options
        Options of the store.

    Returns
    -------
    Cleaned
        What was removed; nothing, if no job left anything.

    Raises
    ------
    UsageError
        The job wrote something within the grace period, or its store tells no times and ``grace_seconds`` is not 0.
    StorageError
        A process of this machine is packing here, or something cannot be removed.

    Examples
    --------
    >>> import tempfile, shoal
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     old = shoal.pack.pack(({"text": f"document {i}"} for i in range(200)), f"{directory}/old", format="jsonl")
    ...     job = shoal.pack.plan_repack(old.url, f"{directory}/new", shard_bytes="2KiB")
    ...     name = job.run(1).name  # and never another
    ...     name in shoal.pack.clean(f"{directory}/new", grace_seconds=0).removed
    True
    """
    out = Output(url, plan="cleaned", storage_options=storage_options)
    records = out.journal.records()
    if not records:
        return Cleaned((), 0)
    out.lock()
    try:
        _check_age(out.url, records, grace_seconds)
        out.journal.take_over()
        removed: tuple[str, ...] = ()
        num_bytes = 0
        while True:
            there = out.store.find(join(out.url, INDEX_NAME))
            found = remove_made(out, records, named=set() if there is None else _named(out))
            removed, num_bytes = (*removed, *found.removed), num_bytes + found.num_bytes
            out.store.close()
            if out.store.find(join(out.url, INDEX_NAME)) == there:
                break  # else a job that lives has committed, or taken back, its index meanwhile
        removed = (*removed, *(relative(info.path, out.url) for info in records))
        num_bytes += sum(info.num_bytes for info in records)
        out.journal.remove_records()
        return Cleaned(removed, num_bytes, found.kept)
    finally:
        out.release()


def remove_made(out: Output, records: Sequence[ObjectInfo], *, named: Collection[str]) -> Cleaned:
    """Remove the shards that a job has made by its records, except those ``named``; the records stay."""
    removed, kept, num_bytes = [], [], 0
    for name, digests in sorted(out.journal.made_by_name(records).items()):
        info = None if name in named else out.store.find(join(out.url, name))
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
    """Return the names of the files that belong to the dataset, by its index."""
    index = out.index()
    return {*index.shard_names, *([MANIFEST_NAME] if index.format == "mds" else [])}


def _check_age(url: str, records: list[ObjectInfo], grace_seconds: float) -> None:
    if grace_seconds <= 0:
        return
    times = [info.modified_ns for info in records]
    known = [modified_ns for modified_ns in times if modified_ns is not None]
    if len(known) < len(times):
        msg = f"{without_secrets(url)}: this store does not tell when the job last wrote something"
        raise UsageError(msg, hint="grace_seconds=0 removes it, if you know that it is dead")
    age_seconds = time.time() - max(known) / 1e9
    if age_seconds < grace_seconds:
        msg = f"{without_secrets(url)}: a job wrote here {max(0, age_seconds):.0f} s ago, and counts as dead after "
        msg += f"{grace_seconds:.0f} s"
        raise UsageError(msg, hint="wait; or grace_seconds=0 removes it at once, if you know that it is dead")
