"""Beside h5py and zarr: bytes read per sample, and samples per second of processor time, chunk by chunk and shuffled.

``python bench/arrays_beside_libraries.py DIRECTORY [--rounds 3]`` needs h5py, zarr, and the packages of examples/. It
writes images of 32 x 32 x 3 (uint8) with labels: 8 HDF5 files and a Zarr group, 40,000 samples.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr

import shoal

_FILES, _ROWS, _CHUNK = 8, 5000, 100


def write(directory: Path) -> None:
    """Write both kinds once."""
    group = None
    if not (directory / "images.zarr").exists():
        group = zarr.create_group(directory / "images.zarr")
        group.create_array("image", shape=(_FILES * _ROWS, 32, 32, 3), chunks=(_CHUNK, 32, 32, 3), dtype="u1")
        group.create_array("label", data=np.arange(_FILES * _ROWS), chunks=(1000,))
    for number in range(_FILES):
        rng = np.random.default_rng(number)
        images = (rng.normal(size=(_ROWS, 32, 32, 3)) * 20 + 128).astype(np.uint8)
        if group is not None:
            group["image"][number * _ROWS : (number + 1) * _ROWS] = images
        if not (path := directory / f"images-{number}.h5").exists():
            with h5py.File(path, "w") as file:
                file.create_dataset("image", data=images, chunks=(_CHUNK, 32, 32, 3), compression="gzip")
                file.create_dataset("label", data=np.arange(_ROWS))


def chunks_of_h5py(directory: Path) -> int:
    """Read each chunk with h5py, file by file."""
    count = 0
    for number in range(_FILES):
        with h5py.File(directory / f"images-{number}.h5") as file:
            for row in range(0, _ROWS, _CHUNK):
                count += len(file["image"][row : row + _CHUNK]) and len(file["label"][row : row + _CHUNK])
    return count


def chunks_of_zarr(directory: Path) -> int:
    """Read each chunk with zarr."""
    group, count = zarr.open_group(directory / "images.zarr", mode="r"), 0
    image, label = group["image"], group["label"]
    for row in range(0, _FILES * _ROWS, _CHUNK):
        count += len(image[row : row + _CHUNK]) and len(label[row : row + _CHUNK])
    return count


def epoch(source: str, read_bytes: dict[str, int], *, shuffled: bool) -> int:
    """Read an epoch in batches of 100 with shoal."""
    ds = shoal.open(source)
    ds = (ds.shuffle(seed=1, window="16MiB") if shuffled else ds).batch(_CHUNK)
    iterator = iter(ds)
    count = sum(len(batch["label"]) for batch in iterator)
    read_bytes[source] = ds.stats()["read_bytes"]
    return count


def main() -> None:
    """Measure in turn, and print the best round of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    write(directory)
    hdf5, table = f"{directory}/images-*.h5", f"{directory}/images.zarr"
    read_bytes: dict[str, int] = {}
    ways: dict[str, Callable[[], int]] = {
        "h5py, chunk by chunk": lambda: chunks_of_h5py(directory),
        "shoal, HDF5 in order": lambda: epoch(hdf5, read_bytes, shuffled=False),
        "shoal, HDF5 shuffled": lambda: epoch(hdf5, read_bytes, shuffled=True),
        "zarr, chunk by chunk": lambda: chunks_of_zarr(directory),
        "shoal, Zarr in order": lambda: epoch(table, read_bytes, shuffled=False),
        "shoal, Zarr shuffled": lambda: epoch(table, read_bytes, shuffled=True),
    }
    best: dict[str, float] = dict.fromkeys(ways, float("inf"))
    for _ in range(arguments.rounds + 1):  # the first round indexes
        for name, way in ways.items():
            began = time.process_time()
            count = way()
            best[name] = min(best[name], time.process_time() - began)
    for name, seconds in best.items():
        print(f"| {name} | {count / seconds:,.0f} |")
    print_bytes(directory, hdf5, table, read_bytes)


def print_bytes(directory: Path, hdf5: str, table: str, read_bytes: dict[str, Any]) -> None:
    """Print bytes read per sample beside the stored bytes of all chunks per sample."""
    num_samples, ideal = _FILES * _ROWS, 0
    for number in range(_FILES):
        with h5py.File(directory / f"images-{number}.h5") as file:
            ideal += sum(field.id.get_storage_size() for field in file.values())
    print(f"HDF5: {read_bytes[hdf5] / num_samples:,.1f} bytes read per sample, {ideal / num_samples:,.1f} stored")
    files = [path for path in (directory / "images.zarr").rglob("*") if path.is_file() and path.name != "zarr.json"]
    stored = sum(path.stat().st_size for path in files)
    print(f"Zarr: {read_bytes[table] / num_samples:,.1f} bytes read per sample, {stored / num_samples:,.1f} stored")


if __name__ == "__main__":
    main()
