"""Lance tables: a number, a tag, a branch or a time names the version, whose fragments are the shards."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SourceError, StorageError
from shoal.hints import did_you_mean
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest, WantedVersion
from shoal.storage.sources.source import Source
from shoal.storage.urls import join, scheme_of, without_secrets
from shoal.tables.client_options import library_options
from shoal.tables.lance.lance_library import Location, OpenedTable, lance_errors, lance_library
from shoal.tables.lance.lance_rows import LanceRows, name_of, rows_left
from shoal.tables.table_requests import refuse_split, refuse_version_and_time, root_of, time_of


class LanceTables:
    """The kind of table of Lance, for directories named ``*.lance`` and ``lance://`` before a directory or URL."""

    name: str = "lance"

    def __init__(self) -> None:
        lance_library()

    def snapshot(self, request: TableRequest) -> Snapshot:
        """Resolve a version to its fragments; see `TableKind.snapshot`. Only fragments with deleted rows are read."""
        root, wanted = root_of(request), request.wanted
        if wanted.predicate is not None:
            msg = f"{without_secrets(root)}: predicate= chooses files by statistics, which Lance does not give"
            raise SourceError(msg, hint='leave out predicate=; index_columns=["label"] and select(label=3) choose rows')
        refuse_split(request)
        refuse_version_and_time(request)
        options = library_options(root, request.storage_options, "lance") or {}
        location = _located(root, wanted, options)
        table = OpenedTable(location, options)
        with lance_errors(location.words, is_remote=table.is_remote):
            fragments = table.dataset().get_fragments()
            deleted = {name_of(each): _deleted(each) for each in fragments if each.num_deletions}
            paths = tuple(_path_of(location, table.dataset(), each) for each in fragments)
        version: dict[str, Any] = {"lance": location.version}
        if location.branch:
            version["branch"] = location.branch
        source = Source("list", without_secrets(request.root), root, tuple(map(name_of, fragments)), paths)
        return Snapshot(source, LanceRows(table), version, deleted=deleted)


def _located(root: str, wanted: WantedVersion, options: Mapping[str, str]) -> Location:
    """Find the number of the wanted version, and its branch; raises `SourceError` if there is none."""
    lance, shown = lance_library(), without_secrets(root)
    try:
        with lance_errors(f"the Lance table {shown}", is_remote=bool(scheme_of(root))):
            main = lance.dataset(root, storage_options=dict(options) or None)
    except StorageError as error:
        if error.transient:
            raise
        msg = f"{shown}: there is no Lance table, or not its current version: {error.message}"
        raise SourceError(msg, hint="give the directory that lance.write_dataset or lancedb made") from None
    if wanted.timestamp is not None:
        return Location(root, _version_then(main, wanted.timestamp, shown))
    version: Any = wanted.version
    if isinstance(version, Mapping):  # of a snapshot
        version = f"{version['branch']}:{version['lance']}" if version.get("branch") else version.get("lance")
    if version is None:
        return Location(root, int(main.version))
    if isinstance(version, str) and (named := _named(main, root, version, shown)) is not None:
        return named
    known = [int(each["version"]) for each in main.versions()]
    if int(version) not in known:
        raise _no_version(version, shown, known)
    return Location(root, int(version))


def _named(main: Any, root: str, name: str, shown: str) -> Location | None:
    """Find a version by its tag, its branch, or ``branch:number``; None for a number as text."""
    tags, branches = main.tags.list(), main.branches.list()
    if name in tags:
        return Location(root, int(tags[name]["version"]), tags[name].get("branch") or "")
    branch, _, number = name.partition(":")
    if branch in branches:
        latest = main.checkout_version((branch, None))
        known = [int(each["version"]) for each in latest.versions()]
        if not number:
            return Location(root, int(latest.version), branch)
        if not number.isdecimal() or int(number) not in known:
            raise _no_version(name, shown, known)
        return Location(root, int(number), branch)
    if name.isdecimal():
        return None
    msg = f"{shown} has no tag and no branch {name!r}"
    names = sorted([*tags, *branches])
    kept = f"its tags and branches are {', '.join(names)}" if names else "it has no tags and no branches"
    raise SourceError(msg, hint=did_you_mean(name, names) + kept)


def _version_then(main: Any, timestamp: str, shown: str) -> int:
    """Return the last version of the main branch that was made at or before a time; a time without a zone is UTC."""
    then = time_of(timestamp)
    made = [(int(each["version"]), each["timestamp"].astimezone(UTC)) for each in main.versions()]
    if not (before := [version for version, time in made if time <= then]):
        msg = f"{shown} had no version at {timestamp}, or it was cleaned up"
        raise SourceError(msg, hint=f"its oldest version is {made[0][0]}, of {made[0][1].isoformat()}")
    return max(before)


def _no_version(version: object, shown: str, known: list[int]) -> SourceError:
    least, most = min(known), max(known)
    msg = f"{shown} has no version {version}"
    return SourceError(msg, hint=f"there are {len(known)} versions from {least} to {most}; others were cleaned up")


def _deleted(fragment: Any) -> NDArray[np.int64]:
    is_deleted = np.ones(fragment.physical_rows, dtype=np.bool_)
    is_deleted[rows_left(fragment)] = False
    return np.flatnonzero(is_deleted).astype(np.int64)


def _path_of(location: Location, dataset: Any, fragment: Any) -> str:
    """Return the first data file of a fragment: of the branch, or of the table that it was cloned or branched from."""
    file = fragment.metadata.files[0]
    base = None if file.base_id is None else dataset.base_paths()[file.base_id]
    if base is None:
        own = join(location.url, f"tree/{location.branch}") if location.branch else location.url
        return join(join(own, "data"), file.path)
    inside = base.path if not base.is_dataset_root else join(base.path, "data")
    return join(str(Path(inside).absolute()) if not scheme_of(inside) else inside, file.path)
