"""Snapshots of Iceberg tables, by metadata file, directory or catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.errors import SourceError, UsageError
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest
from shoal.storage.urls import without_secrets
from shoal.tables.iceberg.current_metadata import iceberg_table
from shoal.tables.iceberg.row_deletes import deleted_rows, refuse_equality_deletes
from shoal.tables.iceberg.row_filters import row_filter
from shoal.tables.iceberg.table_schema import iceberg_columns, internal_scalar
from shoal.tables.table_columns import constant_text
from shoal.tables.table_parquet import ABSENT, TableParquet
from shoal.tables.table_requests import (
    path_below,
    pruned,
    refuse_split,
    refuse_version_and_time,
    source_of,
    source_of_nothing,
    time_of,
)

_NO_SNAPSHOT = 0
_REMEDY = "pyiceberg's table.refs() and table.snapshots() list them; expired snapshots are lost"


class Iceberg:
    """Tables of Iceberg: ``iceberg://CATALOG/NAMESPACE.TABLE``, a directory with ``metadata/``, or a metadata file."""

    name = "iceberg"

    def snapshot(self, request: TableRequest) -> Snapshot:
        """Resolve a snapshot to its files, in the order in which they were committed.

        The current version has the current schema of the table; a chosen version has the schema of its time.
        """
        refuse_split(request)
        refuse_version_and_time(request)
        table, root, options = iceberg_table(request)
        scan = _scan(table, request)
        snapshot = scan.snapshot()
        schema = _schema(table, scan, request.wanted.version)
        form = TableParquet([column.as_json() for column in iceberg_columns(schema, table.name_mapping())], by_id=True)
        version = {self.name: _NO_SNAPSHOT if snapshot is None else snapshot.snapshot_id, "schema": schema.schema_id}
        if snapshot is None:
            return Snapshot(source_of_nothing(request.root), form, version)
        shown = without_secrets(request.root)
        entries = _Entries.of(snapshot, table.io)
        refuse_equality_deletes(entries.deletes, shown)
        tasks = _planned(scan, row_filter(request, schema, table.schema()), request)
        tasks.sort(key=lambda task: entries.place(task.file.file_path))
        _refuse_formats(tasks, shown)
        if not tasks:
            return Snapshot(source_of_nothing(request.root), form, version)
        paths = [task.file.file_path for task in tasks]
        source = source_of(request.root, root, [path_below(root, path) for path in paths])
        names = dict(zip(paths, source.names, strict=True))
        rows = {names[task.file.file_path]: row for task in tasks if (row := _row(task.file, table, schema))}
        deleted = {names[path]: numbers for path, numbers in deleted_rows(tasks, table.io).items()}
        source = pruned(request, source, len(entries.sequence))
        return Snapshot(source, form, version, rows, deleted, options)


class _Entries(NamedTuple):
    """Entries of the manifests of a snapshot: when each data file was committed, and the files that delete rows."""

    sequence: Mapping[str, int]
    deletes: Sequence[Any]

    @staticmethod
    def of(snapshot: Any, files: Any) -> _Entries:
        """Read the manifests of a snapshot."""
        from pyiceberg.manifest import DataFileContent  # noqa: PLC0415  # optional

        entries = [entry for manifest in snapshot.manifests(files) for entry in manifest.fetch_manifest_entry(files)]
        is_data = [entry.data_file.content == DataFileContent.DATA for entry in entries]
        sequence = {
            entry.data_file.file_path: entry.file_sequence_number or entry.sequence_number or 0
            for entry, is_rows in zip(entries, is_data, strict=True)
            if is_rows
        }
        return _Entries(sequence, [entry for entry, is_rows in zip(entries, is_data, strict=True) if not is_rows])

    def place(self, path: str) -> tuple[int, str]:
        """Return the key that sorts data files by commit."""
        return self.sequence[path], path


def _scan(table: Any, request: TableRequest) -> Any:
    """Return the scan of the wanted snapshot."""
    version, timestamp, shown = request.wanted.version, request.wanted.timestamp, without_secrets(request.root)
    if timestamp is not None:
        snapshot = table.snapshot_as_of_timestamp(int(time_of(timestamp).timestamp() * 1000))
        if snapshot is None:
            raise SourceError(f"{shown}: the table had no snapshot at {timestamp}", hint="give a later timestamp=")
        return table.scan(snapshot_id=snapshot.snapshot_id)
    if isinstance(version, Mapping):
        version = version.get(Iceberg.name)
        if version == _NO_SNAPSHOT:
            msg = f"{shown}: the table had no snapshot yet"
            raise SourceError(msg, hint="begin a new run")
    if version is None:
        return table.scan()
    if isinstance(version, str) and version in table.refs():
        return table.scan().use_ref(version)
    if isinstance(version, str) and version.isdecimal():
        version = int(version)
    if isinstance(version, bool) or not isinstance(version, int) or table.snapshot_by_id(version) is None:
        names = ", ".join(sorted(table.refs())) or "none"
        newest = ", ".join(str(snapshot.snapshot_id) for snapshot in table.snapshots()[-3:]) or "none"
        msg = f"{shown}: there is no version {version!r}; branches and tags: {names}; the last snapshots: {newest}"
        raise SourceError(msg, hint=_REMEDY)
    return table.scan(snapshot_id=version)


def _planned(scan: Any, wanted_rows: Any, request: TableRequest) -> list[Any]:
    """Return the data files that may have wanted rows, each with the files that delete its rows."""
    try:
        return list(scan.filter(wanted_rows).plan_files())
    except (TypeError, ValueError) as error:
        shown = without_secrets(request.root)
        reason = " ".join(str(error).split())
        if request.wanted.predicate is None:
            msg = f"{shown}: pyiceberg cannot plan a scan of this snapshot: {reason:.300}"
            raise SourceError(msg, hint="a newer pyiceberg may know more: pip install --upgrade pyiceberg") from None
        msg = f"{shown}: predicate={request.wanted.predicate!r:.120} cannot be compared: {reason:.200}"
        raise UsageError(msg, hint="are the values of the types of the columns?") from None


def _schema(table: Any, scan: Any, version: Any) -> Any:
    """Return the schema of a scan, or the schema that the version of a `Snapshot` names."""
    number = version.get("schema") if isinstance(version, Mapping) else None
    return table.schemas().get(number) or scan.projection()


def _refuse_formats(tasks: Sequence[Any], shown: str) -> None:
    """Raise `SourceError` if a data file is not Parquet."""
    for task in tasks:
        if str(task.file.file_format).rpartition(".")[2].upper() != "PARQUET":
            msg = f"{shown}: the data file {task.file.file_path} is {task.file.file_format}, and not Parquet"
            raise SourceError(msg, hint="set write.format.default to parquet, and rewrite the data files")


def _row(file: Any, table: Any, schema: Any) -> dict[str, dict[str, str | None]]:
    """Return the values of identity partitions, for columns that a file lacks."""
    from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415  # optional

    spec = table.specs()[file.spec_id or 0]
    names = {field.field_id: field for field in schema.fields}
    values = {}
    for number, field in enumerate(spec.fields):
        column = names.get(field.source_id)
        if isinstance(field.transform, IdentityTransform) and column is not None:
            values[column.name] = constant_text(internal_scalar(file.partition[number], column.field_type))
    return {ABSENT: values} if values else {}
