"""Deletes in tables of Iceberg, written by hand after the specification: pyiceberg rewrites files instead."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def catalog_in(directory: Path, name: str = "local") -> Any:
    """A catalog of SQLite, whose tables lie below the directory."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(name, uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/warehouse")
    catalog.create_namespace("ns")
    return catalog


def position_deletes(table: Any, rows: Mapping[str, Iterable[int]], name: str = "deletes") -> Any:
    """Write the deleted rows by path of the data file as a file of position deletes."""
    from pyiceberg.manifest import FileFormat

    pairs = sorted((path, row) for path, numbers in rows.items() for row in numbers)
    columns = {"file_path": [path for path, _ in pairs], "pos": pa.array([row for _, row in pairs], pa.int64())}
    path = Path(table.location().removeprefix("file://"), "data", f"{name}.parquet")
    pq.write_table(pa.table(columns), path)
    return _delete_file(table, path, FileFormat.PARQUET, len(pairs))


def deletion_vectors(table: Any, rows: Mapping[str, Iterable[int]], name: str = "vectors") -> Any:
    """Write the deleted rows by path of the data file as a Puffin file."""
    from pyiceberg.manifest import FileFormat
    from pyroaring import BitMap

    content, blobs = b"PFA1", []
    for path, numbers in rows.items():
        vector = b"\xd1\xd3\x39\x64" + struct.pack("<QI", 1, 0) + bytes(BitMap(numbers).serialize())
        blob = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
        about = {"snapshot-id": -1, "sequence-number": -1, "type": "deletion-vector-v1", "fields": [2147483645]}
        place = {"offset": len(content), "length": len(blob)}
        blobs.append({**about, **place, "properties": {"referenced-data-file": path, "cardinality": "1"}})
        content += blob
    footer = json.dumps({"blobs": blobs, "properties": {}}).encode()
    content += b"PFA1" + footer + struct.pack("<I", len(footer)) + b"\0\0\0\0" + b"PFA1"
    file = Path(table.location().removeprefix("file://"), "data", f"{name}.puffin")
    file.write_bytes(content)
    return _delete_file(table, file, FileFormat.PUFFIN, len(rows))


def equality_deletes(table: Any) -> Any:
    """Write a file that deletes rows by their values."""
    from pyiceberg.manifest import FileFormat

    path = Path(table.location().removeprefix("file://"), "data", "equal.parquet")
    pq.write_table(pa.table({"id": [1]}), path)
    return _delete_file(table, path, FileFormat.PARQUET, 1, is_by_values=True)


def commit_deletes(table: Any, *files: Any) -> None:
    """Commit files that delete rows as the next snapshot."""
    from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestWriterV2
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update.snapshot import _FastAppendFiles

    class DeleteManifest(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    class Deletes(_FastAppendFiles):
        def _manifests(self) -> list[Any]:
            written = self.new_manifest_output()
            spec = self._transaction.table_metadata.spec()
            with DeleteManifest(spec, self.schema(), written, self._snapshot_id, self._compression) as writer:
                for file in files:
                    added = {"status": ManifestEntryStatus.ADDED, "snapshot_id": self._snapshot_id}
                    terms = {"sequence_number": None, "file_sequence_number": None, "data_file": file}
                    writer.add_entry(ManifestEntry.from_args(**added, **terms))
            return [writer.to_manifest_file(), *self._existing_manifests()]

        def _summary(self, snapshot_properties: Any = None) -> Any:  # noqa: ARG002
            return Summary(Operation.DELETE)

    with table.transaction() as transaction:
        Deletes(Operation.DELETE, transaction, table.io).commit()


def _delete_file(table: Any, path: Path, kind: Any, num_rows: int, *, is_by_values: bool = False) -> Any:
    from pyiceberg.manifest import DataFile, DataFileContent
    from pyiceberg.typedef import Record

    content = DataFileContent.EQUALITY_DELETES if is_by_values else DataFileContent.POSITION_DELETES
    file = DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=kind,
        partition=Record(),
        record_count=num_rows,
        file_size_in_bytes=path.stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        key_metadata=None,
        split_offsets=None,
        equality_ids=[1] if is_by_values else None,
        sort_order_id=None,
    )
    file.spec_id = table.spec().spec_id
    return file
