"""Deleted rows of an Iceberg table: position deletes and deletion vectors; equality deletes are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShoalError, SourceError
from shoal.formats.tables.arrow_types import arrow_library

_REWRITE = (
    "an engine applies them: CALL catalog.system.rewrite_data_files(table => 'namespace.table', "
    "options => map('delete-file-threshold', '1')) in Spark, then open the new snapshot"
)


def refuse_equality_deletes(entries: Iterable[Any], shown: str) -> None:
    """Raise `SourceError` if a snapshot has equality deletes: finding their rows takes a join over all rows."""
    from pyiceberg.manifest import DataFileContent  # noqa: PLC0415  # optional

    files = [entry.data_file for entry in entries if entry.data_file.content == DataFileContent.EQUALITY_DELETES]
    if files:
        msg = f"{shown}: {len(files)} files delete rows by their values (equality deletes): {files[0].file_path}"
        raise SourceError(msg, hint=_REWRITE)


def deleted_rows(tasks: Iterable[Any], files: Any) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of the deleted rows, ascending, by path of the data file, for the tasks of a scan."""
    positions = cache(lambda path, kind: _positions(files, path, kind))
    deleted: dict[str, NDArray[np.int64]] = {}
    for task in tasks:
        parts = [
            numbers
            for delete in sorted(task.delete_files, key=lambda delete: delete.file_path)
            if (numbers := positions(delete.file_path, str(delete.file_format)).get(task.file.file_path)) is not None
        ]
        rows = np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
        if len(rows := rows[rows < task.file.record_count]):
            deleted[task.file.file_path] = rows
    return deleted


def _positions(files: Any, path: str, kind: str) -> Mapping[str, NDArray[np.int64]]:
    """Return the deleted rows that a file lists, by path of the data file."""
    read: Callable[[bytes], Mapping[str, NDArray[np.int64]]] | None = _READERS.get(kind.rpartition(".")[2].upper())
    if read is None:
        msg = f"{path}: this list of deleted rows is in {kind}, which shoal does not read"
        raise SourceError(msg, hint=_REWRITE)
    try:
        with files.new_input(path).open() as file:
            return read(file.read())
    except (OSError, ValueError) as error:
        if isinstance(error, ShoalError):
            raise
        msg = f"{path}: this list of deleted rows cannot be read: {' '.join(str(error).split()):.200}"
        raise SourceError(msg, hint=_REWRITE) from None


def _of_parquet(data: bytes) -> dict[str, NDArray[np.int64]]:
    """Read position deletes: one row for each deleted row."""
    pa = arrow_library("Iceberg")
    import pyarrow.parquet as pq  # noqa: PLC0415  # optional

    table = pq.ParquetFile(pa.BufferReader(data)).read(["file_path", "pos"], use_threads=False)
    paths = table.column("file_path").combine_chunks()
    numbers, pos = paths.dictionary_encode(), table.column("pos").to_numpy()
    codes = numbers.indices.to_numpy()
    return {name: pos[codes == code] for code, name in enumerate(numbers.dictionary.to_pylist())}


def _of_puffin(data: bytes) -> dict[str, NDArray[np.int64]]:
    """Read deletion vectors: one bitmap for each data file."""
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file  # noqa: PLC0415  # optional
    from pyiceberg.table.puffin import PuffinFile  # noqa: PLC0415  # the same

    deleted: dict[str, NDArray[np.int64]] = {}
    for vector in deletion_vectors_from_puffin_file(PuffinFile(data)):
        rows, path = vector.to_vector().to_numpy().astype(np.int64), vector.referenced_data_file
        # Vectors of one data file only grow, and an old vector may lie in the file beside vectors of other data files.
        deleted[path] = np.union1d(deleted.get(path, rows), rows)
    return deleted


_READERS = {"PARQUET": _of_parquet, "PUFFIN": _of_puffin}
