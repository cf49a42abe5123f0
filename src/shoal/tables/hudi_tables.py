"""Hudi: the library ``hudi`` reads the timeline; base files of copy-on-write tables are read in place."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from typing import Any

from shoal.errors import SourceError
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest
from shoal.storage.urls import redacted, without_secrets
from shoal.tables.client_options import library_options
from shoal.tables.table_columns import Stored, columns_of
from shoal.tables.table_parquet import TableParquet
from shoal.tables.table_requests import (
    needs,
    path_below,
    predicate_of,
    pruned,
    refuse_split,
    refuse_version_and_time,
    root_of,
    source_of,
    source_of_nothing,
    time_of,
)

_INSTANT = re.compile(r"\d{14}(\d{3})?")
_COMPACT = (
    "compact the table: CALL run_compaction(op => 'run', table => 'name') in Spark; or open an earlier version= "
    "without log files"
)


class Hudi:
    """Copy-on-write tables of Hudi by ``hudi://``, or by a directory with ``.hoodie``."""

    name = "hudi"

    def snapshot(self, request: TableRequest) -> Snapshot:
        """Resolve an instant of the timeline to its base files, in the order in which they were committed.

        Samples have the current schema of the table, without the fields of Hudi itself (``_hoodie_...``).
        """
        refuse_split(request)
        refuse_version_and_time(request)
        root, shown = root_of(request), without_secrets(request.root)
        with _errors_of(request):
            table = _table(request, root)
            schema = table.get_schema()
            columns = [column.as_json() for column in columns_of(schema, _stored_as)]
            form = TableParquet(columns)
            digest = hashlib.blake2b(str(columns).encode(), digest_size=4).hexdigest()
            instant = _instant(table, request)
            if instant is None:
                return Snapshot(source_of_nothing(request.root), form, {self.name: "", "schema": digest})
            every = _slices(table, instant, [])
            slices = _kept(table, instant, request, every)
        version = {self.name: instant, "schema": digest}
        if logs := [name for one in slices for name in one.log_file_names]:
            msg = f"{shown}: {len(logs)} log files of this Hudi table are not merged with their base files: {logs[0]}"
            raise SourceError(msg, hint=_COMPACT)
        slices.sort(key=lambda one: (one.creation_instant_time, one.base_file_relative_path()))
        paths = [path_below(root, one.base_file_relative_path()) for one in slices]
        if other := next((path for path in paths if not path.endswith(".parquet")), None):
            msg = f"{shown}: the base file {other} is not Parquet"
            raise SourceError(msg, hint="set hoodie.table.base.file.format to PARQUET, and write the table again")
        source = source_of(request.root, root, paths) if paths else source_of_nothing(request.root)
        return Snapshot(pruned(request, source, len(every)), form, version)


def _table(request: TableRequest, root: str) -> Any:
    try:
        from hudi import HudiTableBuilder  # noqa: PLC0415  # optional
    except ImportError:
        raise needs("hudi", "a Hudi table") from None
    options = library_options(root, request.storage_options, "hudi") or {}
    return HudiTableBuilder.from_base_uri(root).with_storage_options(options).build()


def _instant(table: Any, request: TableRequest) -> str | None:
    """Return the instant of the wanted version; None if the table has no commit.

    Raises `SourceError`: the timeline has no such instant.
    """
    version, timestamp, shown = request.wanted.version, request.wanted.timestamp, without_secrets(request.root)
    if isinstance(version, Mapping):
        version = version.get(Hudi.name)
    timeline = table.get_timeline()
    completed = sorted(
        {
            one.timestamp
            for commits in (
                timeline.get_completed_commits(), timeline.get_completed_deltacommits(),
                timeline.get_completed_replacecommits(), timeline.get_completed_clustering_commits(),
            )
            for one in commits
        }
    )  # fmt: skip
    if version is not None:
        if str(version) not in completed:
            msg = (
                f"{shown}: there is no instant {version!r}; the last instants are {', '.join(completed[-3:]) or 'none'}"
            )
            raise SourceError(msg, hint='version="20260101120000000", an instant of the timeline; or timestamp=')
        return str(version)
    if timestamp is not None:
        time = time_of(timestamp).astimezone(UTC if table.timezone.lower() == "utc" else None)
        wanted = f"{time:%Y%m%d%H%M%S}{time.microsecond // 1000:03}"
        completed = [instant for instant in completed if instant.ljust(17, "0") <= wanted]
        if not completed:
            raise SourceError(f"{shown}: the table had no commit at {timestamp}", hint="give a later timestamp=")
    return completed[-1] if completed else None


def _slices(table: Any, instant: str, filters: list[tuple[str, str, str]]) -> list[Any]:
    from hudi import HudiReadOptions  # noqa: PLC0415  # optional

    options = HudiReadOptions().with_as_of_timestamp(instant)
    return list(table.get_file_slices(options.with_filters(filters) if filters else options))


def _kept(table: Any, instant: str, request: TableRequest, every: list[Any]) -> list[Any]:
    """Return the file slices that may have wanted rows."""
    predicate = predicate_of(request)
    if not predicate:
        return every
    kept = set()
    for group in predicate:
        filters = [(name, operator, _text(value)) for name, operator, value in group]
        kept |= {one.base_file_relative_path() for one in _slices(table, instant, filters)}
    return [one for one in every if one.base_file_relative_path() in kept]


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@contextmanager
def _errors_of(request: TableRequest) -> Iterator[None]:
    """Turn errors of the library into `SourceError`, without the values of the options."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("hudi", "_internal", "builtins"):
            raise
        secrets = [str(value) for value in request.storage_options.values() if len(str(value)) > 3]
        reason = redacted(" ".join(str(error).split()), secrets)
        msg = f"{without_secrets(request.root)}: the library hudi cannot read this table: {reason:.300}"
        raise SourceError(
            msg, hint="is this the directory with .hoodie? are the columns of predicate= right?"
        ) from None


def _stored_as(field: Any) -> Stored:
    return Stored(None, (field.name,))
