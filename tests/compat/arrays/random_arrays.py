"""Random HDF5 files and Zarr groups, and their rows as h5py and zarr read them; runs in an environment with both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from zarr import codecs

Rows = list[dict[str, Any]]
_DTYPES = ("u1", "i2", "<i4", ">i4", "i8", "f2", "<f4", ">f8", "?", "c8")


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return random numbers that compress a little."""
    return rng.integers(0, 100, shape).astype(dtype)


def texts(rng: np.random.Generator, count: int) -> list[str]:
    """Return random texts, some empty, some not in ASCII."""
    return ["ü" * int(length) + str(number) * bool(length) for number, length in enumerate(rng.integers(0, 9, count))]


def row_of(value: Any) -> Any:
    """Return a row of an array as shoal returns it: Python numbers if Python has the type, native byte order."""
    if isinstance(value, np.bytes_):
        return bytes(value)
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if isinstance(value, np.generic) and (value.dtype.kind == "b" or value.dtype.str[1:] in ("i8", "f8")):
        return value.item()
    return value.astype(value.dtype.newbyteorder("=")) if value.dtype.kind != "V" else value


def write_hdf5(path: Path, seed: int) -> Rows:
    """Write a random file, and return its rows as h5py reads them."""
    rng = np.random.default_rng(seed)
    num_rows = int(rng.integers(1, 300)) if seed % 12 else 0
    options: dict[str, Any] = {"libver": ("earliest", "latest")[seed % 2]}
    if seed % 5 == 0:
        options["userblock_size"] = 512
    filters: list[dict[str, Any]] = [
        {},
        {"compression": "gzip"},
        {"compression": "lzf"},
        {"shuffle": True, "compression": "gzip"},
    ]
    filters += [{"fletcher32": True}, {"scaleoffset": 0}]
    with h5py.File(path, "w", **options) as file:
        kinds = rng.permutation(["array", "array", "number", "text", "fixed", "record", "empty", "ragged"])
        plans: list[tuple[h5py.Dataset, Any, int]] = []
        for number, kind in enumerate(kinds[: int(rng.integers(1, 6))]):
            name, chunk = f"{kind}{number}", int(rng.integers(1, 40))
            if kind == "text":
                file.create_dataset(name, data=texts(rng, num_rows), dtype=h5py.string_dtype())
                continue
            if kind == "ragged":
                field = file.create_dataset(name, (num_rows,), dtype=h5py.vlen_dtype(np.int32))
                for row in range(num_rows):
                    field[row] = np.arange(int(rng.integers(0, 5)))
                continue
            shape = (
                (num_rows, *(int(size) for size in rng.integers(1, 12, int(rng.integers(1, 3)))))
                if kind == "array"
                else (num_rows,)
            )
            dtype = str(rng.choice(_DTYPES))
            data = values(rng, dtype, shape)
            if kind == "fixed":
                data = np.array([text.encode() for text in texts(rng, num_rows)], "S40")
            if kind == "record":
                data = np.zeros(num_rows, [("a", "<i4"), ("b", "<f8", (2,))])
                data["a"] = np.arange(num_rows)
            how = int(rng.integers(3))
            if how == 0 and num_rows:
                file.create_dataset(name, data=data)
                continue
            one = filters[int(rng.integers(len(filters)))]
            if "scaleoffset" in one and data.dtype.kind not in "iu":
                one = {}
            chunks = (chunk, *(max(1, size // int(rng.integers(1, 3))) for size in shape[1:]))
            field = file.create_dataset(name, shape, data.dtype, chunks=chunks, maxshape=(None, *shape[1:]), **one)
            if kind != "empty":
                plans.append((field, data, chunk))
        # Half of the files are written block by block, so that the chunks of all fields lie together.
        step = num_rows if seed % 2 else 40
        for row in range(0, num_rows, max(step, 1)):
            for field, data, _ in plans:
                if rng.integers(8) or step == num_rows:  # some chunks are never written
                    field[row : row + step] = data[row : row + step]
            file.flush()  # the chunks of this block, together
    with h5py.File(path) as file:
        columns = {
            name: field.asstr()[:] if field.dtype.hasobject and h5py.check_string_dtype(field.dtype) else field[:]
            for name, field in file.items()
        }
    return [{name: row_of(column[row]) for name, column in columns.items()} for row in range(num_rows)]


def write_zarr(path: Path, seed: int) -> Rows:
    """Write a random group, and return its rows as zarr reads them."""
    rng = np.random.default_rng(seed)
    num_rows = int(rng.integers(1, 300))
    group = zarr.create_group(path)
    compressors: list[Any] = [
        None,
        codecs.ZstdCodec(level=1),
        codecs.GzipCodec(level=1),
        codecs.BloscCodec(cname="lz4"),
    ]
    for number in range(int(rng.integers(1, 5))):
        kind = str(rng.choice(["array", "array", "number", "text", "fixed"]))
        shape = (
            (num_rows, *(int(size) for size in rng.integers(1, 12, int(rng.integers(1, 3)))))
            if kind == "array"
            else (num_rows,)
        )
        chunks = tuple(int(rng.integers(1, min(size, 40) + 1)) for size in shape)
        options: dict[str, Any] = {"compressors": compressors[int(rng.integers(4))]}
        if rng.integers(2):
            options["shards"] = tuple(size * int(rng.integers(1, 5)) for size in chunks)
        if kind == "array" and rng.integers(3) == 0:
            options["filters"] = [codecs.TransposeCodec(order=tuple(reversed(range(len(shape)))))]
        if rng.integers(4) == 0:
            options["chunk_key_encoding"] = {"name": "v2", "separator": "."}
        dtype: Any = {"text": str, "fixed": "<U20"}.get(kind, str(rng.choice(_DTYPES)))
        fill = "" if kind in ("text", "fixed") else 1
        field = group.create_array(
            f"{kind}{number}", shape=shape, chunks=chunks, dtype=dtype, fill_value=fill, **options
        )
        data: Any = (
            values(rng, dtype, shape)
            if fill
            else np.array(texts(rng, num_rows), dtype=object if kind == "text" else dtype)
        )
        written = num_rows if rng.integers(2) else int(rng.integers(num_rows + 1))  # later chunks are not stored
        if written:
            field[:written] = data[:written]
    if seed % 7 == 0:
        group.create_group("more").create_array("other", shape=(3,), chunks=(3,), dtype="i4")
    opened = zarr.open_group(path, mode="r")
    columns = {name: field[:] for name, field in sorted(opened.arrays())}
    return [
        {
            name: row_of(str(column[row]) if isinstance(column[row], str) else column[row])
            for name, column in columns.items()
        }
        for row in range(num_rows)
    ]
