"""Tables of Delta Lake written by hand, after the protocol: deltalake writes no deletion vectors and renames no column."""

from __future__ import annotations

import base64
import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_MAGIC = 1681511377
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_AS_Z85 = str.maketrans(_B85, _Z85)


def field(name: str, kind: Any, physical: str = "", number: int = 0) -> dict[str, Any]:
    """A field of a schema; with a physical name and an id, it is mapped to a column of files."""
    mapped = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    return {"name": name, "type": kind, "nullable": True, "metadata": mapped if physical else {}}


def struct_of(*fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


class HandmadeDelta:
    """A table whose log is written here; each `commit` is a version."""

    def __init__(self, root: Path, *features: str, partition_columns: Sequence[str] = (), mode: str = "none") -> None:
        self.root, self.num_commits = root, 0
        self.partition_columns, self.mode = list(partition_columns), mode
        self.features = features
        (root / "_delta_log").mkdir(parents=True)

    def protocol(self) -> dict[str, Any]:
        features = list(self.features)
        return {
            "protocol": {
                "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features,
            }
        }  # fmt: skip

    def schema(self, *fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "metaData": {
                "id": "9f0f4f3c-6a4b-4b71-8a83-7fbb5ff6a1d0",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(struct_of(*fields)),
                "partitionColumns": self.partition_columns,
                "configuration": {"delta.columnMapping.mode": self.mode} if self.mode != "none" else {},
                "createdTime": 1,
            }
        }

    def file(
        self, name: str, table: pa.Table, *, partition: Mapping[str, str | None] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Write a file, and return the action that adds it."""
        pq.write_table(table, self.root / name, **options)
        return self.add(name, table.num_rows, partition=partition)

    def add(
        self,
        name: str,
        num_rows: int,
        *,
        partition: Mapping[str, str | None] | None = None,
        vector: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        action = {
            "path": name,
            "partitionValues": dict(partition or {}),
            "size": (self.root / name).stat().st_size,
            "modificationTime": 1000 + self.num_commits,
            "dataChange": True,
            "stats": json.dumps({"numRecords": num_rows}),
        }
        return {"add": {**action, **({"deletionVector": dict(vector)} if vector else {})}}

    def remove(self, name: str, vector: Mapping[str, Any] | None = None) -> dict[str, Any]:
        removed = {"path": name, "deletionTimestamp": 1, "dataChange": True}
        return {"remove": {**removed, **({"deletionVector": dict(vector)} if vector else {})}}

    def commit(self, *actions: Mapping[str, Any]) -> int:
        """Write the next version; the first also has the protocol."""
        first = [self.protocol()] if not self.num_commits else []
        path = self.root / "_delta_log" / f"{self.num_commits:020}.json"
        path.write_text("".join(json.dumps(action) + "\n" for action in [*first, *actions]))
        self.num_commits += 1
        return self.num_commits - 1

    def inline_vector(self, rows: Iterable[int]) -> dict[str, Any]:
        """A deletion vector in the log."""
        data = bitmap(rows)
        padded = data + b"\0" * (-len(data) % 4)
        text = base64.b85encode(padded).decode().translate(_AS_Z85)
        return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(set(rows))}

    def vector_in_file(self, rows: Iterable[int]) -> dict[str, Any]:
        """A deletion vector in a file beside the data."""
        data, number = bitmap(rows), uuid.UUID(int=0x1234567890ABCDEF + self.num_commits)
        content = b"\x01" + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        (self.root / f"deletion_vector_{number}.bin").write_bytes(content)
        name = base64.b85encode(number.bytes).decode().translate(_AS_Z85)
        return {
            "storageType": "u", "pathOrInlineDv": name, "offset": 1, "sizeInBytes": len(data),
            "cardinality": len(set(rows)),
        }  # fmt: skip


def bitmap(rows: Iterable[int]) -> bytes:
    """Row numbers below 2^32 as the portable array of Roaring bitmaps of the protocol."""
    from pyroaring import BitMap

    return struct.pack("<IqI", _MAGIC, 1, 0) + bytes(BitMap(rows).serialize())
