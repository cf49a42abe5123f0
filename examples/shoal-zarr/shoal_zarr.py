"""Zarr groups (version 3) as tables: arrays with a common first axis are the fields, and a sample is a row of each.

The chunks of some rows are many objects. A store joins them to one shard: for each piece, the rows of a chunk of the
largest array, first the numbers of the rows and the sizes of the chunks, then the chunks of all arrays, as stored.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from itertools import accumulate, product
from math import prod
from os.path import abspath
from typing import Any
from zlib import crc32

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore

from shoal.errors import ShardError, SourceError, StorageError
from shoal.formats import ArrayRows, Buffer, Format, ReadBytes, ShardScan, Span
from shoal.formats.field_columns import wanted_of
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest
from shoal.storage.sources.source import Source
from shoal.storage.store_protocol import ObjectInfo, Store, StoreWrapper
from shoal.storage.urls import join, relative, scheme_of

_MOST_CHUNK_BYTES, _MOST_SHARDS = 1 << 32, 10**7
_HINT = "was a chunk damaged or replaced? compare it with its source"

Part = tuple[ObjectInfo | bytes, int, int]
"""Part of a shard: an object, or bytes; the first byte there, and the number of bytes."""


class Array:
    """An array by its ``zarr.json``: objects of the shape ``outer`` hold chunks of the shape ``inner``."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.shape, self.outer = metadata["shape"], metadata["chunk_grid"]["configuration"]["chunk_shape"]
        self.inner, self.sharding, codecs, keys = self.outer, {}, metadata["codecs"], metadata["chunk_key_encoding"]
        if codecs[0]["name"] == "sharding_indexed":
            self.sharding = codecs[0]["configuration"]
            self.inner, codecs = self.sharding["chunk_shape"], self.sharding["codecs"]
            self.crc_bytes = 4 * sum(codec["name"] == "crc32c" for codec in self.sharding["index_codecs"])
        self._first = ["c"] if keys["name"] == "default" else []
        self._separator = keys.get("configuration", {}).get("separator", "/" if self._first else ".")
        grid = {"name": "regular", "configuration": {"chunk_shape": self.inner}}
        self._of_chunks = json.dumps({**metadata, "chunk_grid": grid, "codecs": codecs}).encode()
        itemsize = self.opened({}).dtype.itemsize
        self.row_bytes = itemsize * prod(self.shape[1:])
        if not self.inner[0] or any(of % by for of, by in zip(self.outer, self.inner, strict=True)):
            raise ValueError(f"objects of {self.outer} do not hold chunks of {self.inner}")
        if itemsize * prod(self.outer) > _MOST_CHUNK_BYTES or self.shape[0] / self.inner[0] > _MOST_SHARDS:
            raise ValueError(f"the shape {self.shape} in objects of {self.outer} is too large")

    def opened(self, chunks: Mapping[str, Buffer]) -> zarr.Array[Any]:
        files = {"zarr.json": self._of_chunks, **chunks}
        return zarr.open_array(MemoryStore({key: cpu.Buffer.from_bytes(data) for key, data in files.items()}), mode="r")

    def key(self, chunk: Sequence[int]) -> str:
        return self._separator.join([*self._first, *map(str, chunk)]) or "0"

    def chunks(self, row: int, end_row: int) -> list[range]:
        """Return the numbers of the chunks that hold some rows, along each axis."""
        others = zip(self.shape[1:], self.inner[1:], strict=True)
        return [range(row // self.inner[0], -(-end_row // self.inner[0])), *(range(-(-size // of)) for size, of in others)]


class Zarr:
    """The kind of table: the objects of some rows of the largest array, and the chunks of these rows, are a shard."""

    name = "zarr"

    def snapshot(self, request: TableRequest) -> Snapshot:
        request.wanted.refuse_for(request.root)
        root = request.root if scheme_of(request.root) else abspath(request.root)
        infos = {relative(info.path, root): info for info in request.store.list(root)}
        files = [name for name in infos if name.endswith("zarr.json") and name.count("/") < 2]
        try:
            nodes = {file[:-10]: json.loads(request.store.read_range(infos[file].path, 0, infos[file].num_bytes)) for file in files}
            rows = ZarrRows({name: nodes[name] for name in sorted(nodes) if nodes[name]["node_type"] == "array" and nodes[name]["shape"]})
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise SourceError(f"{root}: Zarr cannot be read: {error}", hint="open a group of version 3 whose arrays have one length") from error
        largest = rows.arrays[rows.largest]
        names = [f"rows-{row:012d}" for row in range(0, largest.shape[0], largest.outer[0])]
        source = Source("list", request.root, root, tuple(names), tuple(join(root, name) for name in names))
        version = {"zarr": blake2b(json.dumps(rows.options).encode(), digest_size=16).hexdigest()}
        return Snapshot(source, rows, version, store=RowStore(request.store, rows, infos))


class RowStore(StoreWrapper):
    """Shards whose bytes are numbers of rows, sizes of chunks, and chunks from the objects of ``store``."""

    def __init__(self, store: Store, rows: "ZarrRows", infos: Mapping[str, ObjectInfo]) -> None:
        super().__init__(store)
        self._rows, self._infos, self._shards = rows, infos, dict[str, tuple[list[Part], list[int]]]()

    def stat(self, path: str) -> ObjectInfo:
        parts, ends = self._shard(path)
        versions = {part.path: part.version for part, _, _ in parts if isinstance(part, ObjectInfo)}
        version = blake2b(json.dumps(versions).encode(), digest_size=16).hexdigest()
        return ObjectInfo(path, ends[-1], version if all(versions.values()) else "")

    stat_again = find = stat

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        (parts, ends), data = self._shard(path), []
        number = bisect_right(ends, first_byte)
        while first_byte < end_byte:
            part, first, size = parts[number]
            span = slice(first + size - ends[number] + first_byte, first + size + min(0, end_byte - ends[number]))
            data.append(part[span] if isinstance(part, bytes) else self.store.read_range(part.path, span.start, span.stop))
            first_byte, number = ends[number], number + 1
        return b"".join(data)

    def _shard(self, path: str) -> tuple[list[Part], list[int]]:
        if path not in self._shards:
            if len(self._shards) > 100:
                self._shards.clear()
            parts = list(self._parts(int(path[-12:])))
            self._shards[path] = parts, list(accumulate(size for _, _, size in parts))
        return self._shards[path]

    def _parts(self, first_row: int) -> Iterator[Part]:
        array, ranges = self._rows.arrays[self._rows.largest], dict[str, Sequence[Sequence[int]]]()
        for row in range(first_row, min(first_row + array.outer[0], array.shape[0]), array.inner[0]):
            end_row = min(row + array.inner[0], array.shape[0])
            chunks = [self._chunk(name, chunk, ranges) for name, chunk in self._rows.chunks(row, end_row)]
            header = np.array([row, end_row, *(size for _, _, size in chunks)], "<i8").tobytes()
            yield header, 0, len(header)
            yield from (part for part in chunks if part[2])

    def _chunk(
        self, name: str, chunk: Sequence[int], ranges: dict[str, Sequence[Sequence[int]]]
    ) -> Part:
        """Return the place of a chunk; without bytes if the chunk is not stored."""
        array = self._rows.arrays[name]
        in_object = [outer // inner for outer, inner in zip(array.outer, array.inner, strict=True)]
        path = "/".join([*name.split("/"), array.key([number // of for number, of in zip(chunk, in_object, strict=True)])])
        if (info := self._infos.get(path)) is None or not array.sharding:
            return (b"", 0, 0) if info is None else (info, 0, info.num_bytes)
        if path not in ranges:
            num_bytes = 16 * prod(in_object)
            first = 0 if array.sharding.get("index_location") == "start" else info.num_bytes - num_bytes - array.crc_bytes
            ranges[path] = np.frombuffer(self.store.read_range(info.path, first, first + num_bytes), "<u8").reshape(-1, 2)
        first, size = ranges[path][np.ravel_multi_index([number % of for number, of in zip(chunk, in_object)], in_object)].tolist()
        if size == 2**64 - 1:
            return b"", 0, 0
        if first + size > info.num_bytes:
            raise StorageError(f"{info.path}: its index has a chunk up to byte {first + size}, but there are {info.num_bytes}", hint=_HINT)
        return info, first, size


class ZarrRows(Format):
    """The format of the joined shards."""

    name, suffixes, has_columns = "zarr", (), True

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.options, self._wanted = {"arrays": arrays}, tuple(arrays)
        self.arrays = {name: Array(metadata) for name, metadata in arrays.items()}
        if len(lengths := {array.shape[0] for array in self.arrays.values()}) != 1:
            raise ValueError(f"first axes of the lengths {sorted(lengths)}")
        self.largest = max(arrays, key=lambda name: self.arrays[name].row_bytes)

    def projected(self, names: Sequence[str]) -> "ZarrRows":
        projected = copy(self)
        projected._wanted = tuple(wanted_of(list(self.arrays), names))
        return projected

    def chunks(self, row: int, end_row: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the chunks of some rows, array by array."""
        return ((name, chunk) for name, array in self.arrays.items() for chunk in product(*array.chunks(row, end_row)))

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        pieces = list(self._pieces(read, 0, num_bytes, shard))
        borders = np.array([*(first for first, _, _ in pieces), num_bytes], np.int64)
        counts = np.array([head[1] - head[0] for _, head, _ in pieces], np.int64)
        crcs = np.array([crc32(head.tobytes()) for _, head, _ in pieces], np.uint32)
        row_bytes = sum(array.row_bytes for array in self.arrays.values())
        return ShardScan(borders, crcs, piece_samples=counts, piece_decoded_bytes=counts * row_bytes)

    def parse(self, buffer: Buffer, span: Span) -> ArrayRows:
        view, first_byte, crcs = memoryview(buffer), span.first_byte, []
        chunks: dict[str, dict[str, Buffer]] = {name: {} for name in self.arrays}
        rows: list[int] = []
        read = lambda first, end: view[first - first_byte : end - first_byte]
        for _, head, at in self._pieces(read, first_byte, first_byte + len(view), span.shard):
            crcs.append(crc32(head.tobytes()))
            rows += head[:2].tolist()
            for (name, chunk), size in zip(self.chunks(*head[:2].tolist()), head[2:].tolist(), strict=True):
                if size:
                    chunks[name][self.arrays[name].key(chunk)] = bytes(read(at, at + size))
                at += size
        try:
            if rows[-1] - rows[0] != span.num_samples:
                raise ValueError(f"the index has {span.num_samples} rows here, and the shard {rows[-1] - rows[0]}")
            return ArrayRows({name: self.arrays[name].opened(chunks[name])[rows[0] : rows[-1]] for name in self._wanted}, crcs)
        except Exception as error:
            raise ShardError(f"Zarr: {error}", shard=span.shard, byte=first_byte, hint=_HINT) from error

    def _pieces(self, read: ReadBytes, at: int, end_byte: int, shard: str) -> Iterator[tuple[int, NDArray[np.int64], int]]:
        """Yield the first byte of each piece, its rows and sizes of chunks, and the first byte of its chunks."""
        largest, end_row, is_first = self.arrays[self.largest], 0, True
        while at < end_byte:
            head = np.frombuffer(read(at, at + 16), "<i8") if at + 16 <= end_byte else np.zeros(2, "<i8")
            row, before, end_row = int(head[0]), end_row, int(head[1])
            is_sound = 0 <= row < end_row <= min(row + largest.inner[0], largest.shape[0]) and (is_first or row == before)
            num_chunks = sum(prod(map(len, array.chunks(row, end_row))) for array in self.arrays.values()) if is_sound else 0
            first = at + 16 + 8 * num_chunks
            if is_sound and first <= end_byte:
                head = np.concatenate([head, np.frombuffer(read(at + 16, first), "<i8")])
            next_byte = first + sum(head[2:].tolist())
            if not is_sound or first > end_byte or (head < 0).any() or next_byte > end_byte:
                raise ShardError("the sizes of the chunks are wrong", shard=shard, byte=at, hint=_HINT)
            yield at, head, first
            at, is_first = next_byte, False
