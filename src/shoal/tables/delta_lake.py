"""Delta Lake: the library ``deltalake`` reads the log; its files are read in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShoalError, SourceError, UsageError
from shoal.formats.tables.arrow_types import arrow_library
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest
from shoal.storage.urls import redacted, without_secrets
from shoal.tables.client_options import library_options
from shoal.tables.table_columns import Stored, columns_of, constant_text
from shoal.tables.table_parquet import CONSTANTS, TableParquet
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

_ID, _NAME = b"delta.columnMapping.id", b"delta.columnMapping.physicalName"
# Features of readers that change nothing about the rows of files, or that this module and `TableParquet` apply.
_FEATURES = frozenset(
    (
        "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
        "vacuumProtocolCheck", "variantType", "variantType-preview", "variantShredding-preview",
    )
)  # fmt: skip
_LARGEST_PROTOCOL = 3


class DeltaLake:
    """Tables of Delta Lake by ``delta://``, or by a directory with ``_delta_log``."""

    name = "delta"

    def snapshot(self, request: TableRequest) -> Snapshot:
        """Resolve a version to its files, in the order in which they were written."""
        refuse_split(request)
        refuse_version_and_time(request)
        table, root = _table(request), root_of(request)
        _refuse_features(table, without_secrets(root))
        with _errors_of(request):
            adds = arrow_library("Delta Lake").table(table.get_add_actions())
            kept = _kept(table, request)
            columns = columns_of(arrow_library("Delta Lake").schema(table.schema().to_arrow()), _stored_as)
        rows = sorted(adds.to_pylist(), key=lambda row: (row["modification_time"], row["path"]))
        paths = {row["path"]: path_below(root, unquote(row["path"])) for row in rows}
        num_files = len(paths)
        if kept is not None:
            paths = {name: path for name, path in paths.items() if path in kept}
        is_by_id = table.metadata().configuration.get("delta.columnMapping.mode") == "id"
        form = TableParquet([column.as_json() for column in columns], by_id=is_by_id)
        version = {"delta": table.version()}
        if not paths:
            return Snapshot(source_of_nothing(request.root), form, version)
        source = source_of(request.root, root, list(paths.values()))
        names = dict(zip(paths, source.names, strict=True))
        constants = {names[name]: {CONSTANTS: values} for name, values in _partitions(adds).items() if name in names}
        with _errors_of(request):
            deleted = _deleted(table, dict(zip(source.paths, source.names, strict=True)))
        return Snapshot(pruned(request, source, num_files), form, version, constants, deleted)


def _table(request: TableRequest) -> Any:
    try:
        from deltalake import DeltaTable  # noqa: PLC0415  # optional
    except ImportError:
        raise needs("deltalake", "a Delta Lake table") from None
    version, timestamp = request.wanted.version, request.wanted.timestamp
    if isinstance(version, Mapping):
        version = version.get(DeltaLake.name)
    if isinstance(version, str) and version.isdecimal():
        version = int(version)
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        msg = f"{without_secrets(request.root)}: version={version!r} was given, but versions of Delta Lake are numbers"
        raise SourceError(msg, hint="version=12, or timestamp=")
    options = library_options(root_of(request), request.storage_options, "deltalake")
    with _errors_of(request):
        table = DeltaTable(root_of(request), version=version, storage_options=options)
        if timestamp is None:
            return table
        time = time_of(timestamp)
        table.load_as_version(time)
        _refuse_earlier(table, request, time.timestamp())
    return table


def _refuse_earlier(table: Any, request: TableRequest, seconds: float) -> None:
    """Raise `SourceError` if a time is before the first version: the library then gives the first version."""
    if table.version() == 0:
        # The history of deltalake 1.6.6 begins at the newest commit, and ignores its limit.
        written_ms = [commit["timestamp"] for commit in table.history() if "timestamp" in commit]
        if written_ms and min(written_ms) > round(seconds * 1000):
            msg = f"{without_secrets(request.root)}: the table had no version at {request.wanted.timestamp}"
            raise SourceError(msg, hint="give a later timestamp=")


@contextmanager
def _errors_of(request: TableRequest) -> Iterator[None]:
    """Turn errors of the library into `SourceError`, without the values of the options."""
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  # optional

    try:
        yield
    except ShoalError:
        raise
    except (DeltaError, OSError, ValueError) as error:
        secrets = [str(value) for value in request.storage_options.values() if len(str(value)) > 3]
        reason = " ".join(redacted(str(error), secrets).split())
        msg = f"{without_secrets(request.root)}: deltalake cannot read this version of the table: {reason:.400}"
        hint = "is there such a version? deltalake.DeltaTable(...).history() lists them; versions older than a "
        raise SourceError(msg, hint=f"{hint}clean-up of the log are lost") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, no Exception: deltalake refuses forked processes by it
            raise
        msg = (
            f"{without_secrets(request.root)}: deltalake cannot read the log here: {' '.join(str(error).split()):.200}"
        )
        raise SourceError(
            msg, hint='workers that open a version start by multiprocessing_context="spawn" or "forkserver"'
        ) from None


def _refuse_features(table: Any, root: str) -> None:
    """Raise `SourceError` if the table needs a reader that knows more than shoal does."""
    protocol = table.protocol()
    unknown = sorted({*(protocol.reader_features or ())} - _FEATURES)
    if unknown or protocol.min_reader_version > _LARGEST_PROTOCOL:
        named = ", ".join(unknown) or f"version {protocol.min_reader_version} of the protocol"
        msg = f"{root}: readers of this Delta Lake table must know {named}, which shoal does not"
        raise SourceError(msg, hint="ALTER TABLE ... DROP FEATURE removes a feature; or write the rows to other files")


def _kept(table: Any, request: TableRequest) -> frozenset[str] | None:
    """Return the paths of files that may have wanted rows; None for all."""
    predicate = predicate_of(request)
    if not predicate:
        return None
    try:
        uris = table.file_uris(file_pruning_predicate=predicate)
    except Exception as error:  # noqa: BLE001  # of several kinds
        msg = f"predicate={request.wanted.predicate!r:.120} cannot be used: {' '.join(str(error).split()):.200}"
        raise UsageError(msg, hint="are the names and the types of the columns right?") from None
    return frozenset(path_below(root_of(request), uri) for uri in uris)


def _stored_as(field: Any) -> Stored:
    """Return the identity of a column in files: with column mapping, its physical name and its id."""
    metadata = field.metadata or {}
    number = metadata.get(_ID)
    return Stored(None if number is None else int(number), (metadata.get(_NAME, field.name.encode()).decode(),))


def _partitions(adds: Any) -> Mapping[str, Mapping[str, str | None]]:
    """Return the values of partitions by file and column."""
    if "partition" not in adds.column_names:
        return {}
    values = adds.column("partition").combine_chunks().flatten()
    names = [field.name for field in adds.schema.field("partition").type]
    return {
        path.as_py(): {name: constant_text(column[row]) for name, column in zip(names, values, strict=True)}
        for row, path in enumerate(adds.column("path"))
    }


def _deleted(table: Any, names: Mapping[str, str]) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of the deleted rows by name of file, from the deletion vectors."""
    deleted: dict[str, NDArray[np.int64]] = {}
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return deleted
    vectors = arrow_library("Delta Lake").RecordBatchReader.from_stream(table.deletion_vectors())
    for path, is_left in chain.from_iterable(zip(*batch.columns, strict=True) for batch in vectors):
        name = names.get(path_below("", unquote(path.as_py())))
        if name is not None and len(is_left):
            deleted[name] = np.flatnonzero(~is_left.values.to_numpy(zero_copy_only=False)).astype(np.int64)
    return {name: numbers for name, numbers in deleted.items() if len(numbers)}
