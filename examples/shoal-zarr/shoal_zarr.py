"""Zarr groups (version 3) as tables: arrays with a common first axis are the fields, and a sample is a row of each.

A shard has the rows of one object of the largest array, a piece the rows of one chunk: the chunks of all arrays that
hold these rows. Zarr decodes them, by the metadata of arrays that have these chunks alone.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import product
from math import prod
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore

from shoal.errors import SourceError, StorageError
from shoal.formats import Buffer
from shoal.indexing.tables.joined_pieces import JoinedPieces, JoinedRows, JoinedStore, Part, Pieces
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest
from shoal.storage.sources.source import Source
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join, relative

MOST_BYTES, MOST_CHUNKS = 1 << 32, 10**7  # of an object and of an array, whatever metadata claims
NOT_STORED = 2**64 - 1  # the size of a chunk in the index of an object


class Array:
    """An array by its ``zarr.json``: objects of the shape ``outer`` hold chunks of the shape ``inner``."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.shape, self.outer = metadata["shape"], metadata["chunk_grid"]["configuration"]["chunk_shape"]
        self.inner, self.sharding, codecs, keys = self.outer, {}, metadata["codecs"], metadata["chunk_key_encoding"]
        if codecs[0]["name"] == "sharding_indexed":
            self.sharding = codecs[0]["configuration"]
            self.inner, codecs = self.sharding["chunk_shape"], self.sharding["codecs"]
        self._first = ["c"] if keys["name"] == "default" else []
        self._separator = keys.get("configuration", {}).get("separator", "/" if self._first else ".")
        grid = {"name": "regular", "configuration": {"chunk_shape": self.inner}}
        self._metadata = json.dumps({**metadata, "chunk_grid": grid, "codecs": codecs}).encode()
        self.grid = [outer // inner for outer, inner in zip(self.outer, self.inner, strict=True)]
        itemsize = self.opened({}).dtype.itemsize
        self.row_bytes = itemsize * prod(self.shape[1:])
        if itemsize * prod(self.outer) > MOST_BYTES or prod(map(len, self.ranges(0, self.shape[0]))) > MOST_CHUNKS:
            raise ValueError(f"the shape {self.shape} has too many objects of {self.outer}, or they are too large")

    def opened(self, chunks: Mapping[str, Buffer]) -> "zarr.Array[Any]":
        files = {"zarr.json": self._metadata, **chunks}
        return zarr.open_array(MemoryStore({key: cpu.Buffer.from_bytes(bytes(files[key])) for key in files}), mode="r")

    def key(self, chunk: Sequence[int]) -> str:
        return self._separator.join([*self._first, *map(str, chunk)])

    def ranges(self, row: int, end_row: int) -> list[range]:
        """Return the numbers of the chunks that hold some rows, along each axis."""
        others = [range(-(-size // of)) for size, of in zip(self.shape[1:], self.inner[1:], strict=True)]
        return [range(row // self.inner[0], -(-end_row // self.inner[0])), *others]


class ZarrRows(JoinedPieces):
    """The format of the shards; a group that is an array has the field ``data``."""

    name = "zarr"

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.options = {"arrays": arrays}
        self.arrays = {name: Array(metadata) for name, metadata in arrays.items()}
        if len(lengths := {array.shape[0] for array in self.arrays.values()}) != 1:
            raise ValueError(f"first axes of the lengths {sorted(lengths)}")
        self.fields = [name or "data" for name in arrays]
        self.largest = max(self.arrays.values(), key=lambda array: array.row_bytes)
        self.row_bytes = sum(array.row_bytes for array in self.arrays.values())

    def num_parts(self, row: int, end_row: int) -> int:
        if row % (step := self.largest.inner[0]) or row < 0 or end_row != min(row + step, self.largest.shape[0]):
            raise ValueError(f"no chunk has the rows [{row}, {end_row})")
        return sum(prod(map(len, array.ranges(row, end_row))) for array in self.arrays.values())

    def chunks(self, row: int, end_row: int) -> list[tuple[str, tuple[int, ...]]]:
        arrays = self.arrays.items()
        return [(name, chunk) for name, array in arrays for chunk in product(*array.ranges(row, end_row))]

    def decoded(self, pieces: Pieces, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        stored: dict[str, dict[str, Buffer]] = {name: {} for name in self.arrays}
        for row, end_row, parts in pieces:
            for (name, chunk), part in zip(self.chunks(row, end_row), parts, strict=True):
                if len(part):
                    stored[name][self.arrays[name].key(chunk)] = part
        rows, wanted = slice(pieces[0][0], pieces[-1][1]), [name for name in self.arrays if (name or "data") in names]
        return {name or "data": np.asarray(self.arrays[name].opened(stored[name])[rows]) for name in wanted}


class PiecesOfGroup:
    """The pieces of each shard of a group, whose objects have ``infos`` by name."""

    def __init__(self, store: Store, rows: ZarrRows, infos: Mapping[str, ObjectInfo]) -> None:
        self.store, self.rows, self.infos = store, rows, infos

    def __call__(self, path: str) -> list[JoinedRows]:
        largest, indexes = self.rows.largest, dict[str, NDArray[np.uint64]]()
        first_row, step = int(path.rpartition("-")[2]), largest.inner[0]
        end = min(first_row + largest.outer[0], largest.shape[0])
        pieces = [(row, min(row + step, end)) for row in range(first_row, end, step)]
        return [JoinedRows(*rows, [self._part(*each, indexes) for each in self.rows.chunks(*rows)]) for rows in pieces]

    def _part(self, name: str, chunk: Sequence[int], indexes: dict[str, NDArray[np.uint64]]) -> Part:
        array = self.rows.arrays[name]
        path = f"{name}/{array.key([number // of for number, of in zip(chunk, array.grid, strict=True)])}".lstrip("/")
        if (info := self.infos.get(path)) is None or not array.sharding:
            return Part() if info is None else Part(info, 0, info.num_bytes)
        if path not in indexes:
            num_bytes = 16 * prod(array.grid)
            crc_bytes = 4 * (array.sharding["index_codecs"][-1]["name"] == "crc32c")
            is_first = array.sharding.get("index_location") == "start"
            first = 0 if is_first else info.num_bytes - num_bytes - crc_bytes
            data = self.store.read_range(info.path, first, first + num_bytes)
            indexes[path] = np.frombuffer(data, "<u8").reshape(*array.grid, 2)
        first, size = indexes[path][tuple(number % of for number, of in zip(chunk, array.grid, strict=True))].tolist()
        if size != NOT_STORED and first + size > info.num_bytes:
            raise StorageError(f"{info.path}: its index has a chunk up to byte {first + size} of {info.num_bytes}")
        return Part() if size == NOT_STORED else Part(info, first, size)


class Zarr:
    """The kind of table."""

    name = "zarr"

    def snapshot(self, request: TableRequest) -> Snapshot:
        request.wanted.refuse_for(request.root)
        root, store = request.directory, request.store
        infos = {relative(info.path, root): info for info in store.list(root)}
        files = sorted(name for name in infos if name.split("/")[-1] == "zarr.json" and name.count("/") < 2)
        try:
            nodes = [(file[:-10], json.loads(store.map(infos[file].path).tobytes())) for file in files]
            rows = ZarrRows({name: node for name, node in nodes if node["node_type"] == "array" and node["shape"]})
        except (LookupError, TypeError, ValueError, ZeroDivisionError) as error:
            msg = f"{root}: the arrays of this group cannot be read: {error}"
            raise SourceError(msg, hint="open a group of Zarr version 3 whose arrays have one length") from error
        names = tuple(f"rows-{row}" for row in range(0, rows.largest.shape[0], rows.largest.outer[0]))
        source = Source("list", request.root, root, names, tuple(join(root, name) for name in names))
        version = {"zarr": blake2b(json.dumps(rows.options).encode(), digest_size=16).hexdigest()}
        return Snapshot(source, rows, version, store=JoinedStore(store, PiecesOfGroup(store, rows, infos)))
