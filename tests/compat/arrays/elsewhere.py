"""HDF5 and Zarr from servers and memory, in forked processes, spilled to the cache, damaged, and refused.

``python elsewhere.py DIRECTORY`` runs where the packages are, and ends with an error if anything differs.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from shoal_hdf5 import Hdf5

import shoal
from shoal.errors import ShardError, SourceError
from shoal.storage.memory_store import MemoryStore
from shoal.testing import RangeServer

_NUM_ROWS = 600


def write(directory: Path) -> None:
    """Write a file whose fields lie one after another, and a group of the same rows."""
    rows = np.arange(_NUM_ROWS)
    images = np.random.default_rng(0).integers(0, 255, (_NUM_ROWS, 32, 32), dtype=np.uint8)
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset("image", data=images, chunks=(20, 32, 32), compression="gzip")
        file.create_dataset("depth", data=images[::-1], chunks=(20, 32, 32))
        file.create_dataset("label", data=rows)
    group = zarr.create_group(directory / "a.zarr")
    group.create_array("image", data=images, chunks=(20, 32, 32), shards=(200, 32, 32))
    group.create_array("depth", data=images[::-1].copy(), chunks=(50, 32, 16))
    group.create_array("label", data=rows, chunks=(90,))


def check(source: str, _: int = 0, *, directory: Path, window: str = "16MiB", **options: Any) -> None:
    """Compare all rows of a shuffled epoch with zarr's."""
    images, seen = zarr.open_group(directory / "a.zarr", mode="r")["image"][:], set[int]()
    for sample in shoal.open(source, **options).shuffle(seed=3, window=window):
        seen.add(label := int(sample["label"]))
        assert np.array_equal(sample["image"], images[label]), (source, label)
        assert np.array_equal(sample["depth"], images[_NUM_ROWS - 1 - label]), (source, label)
    assert len(seen) == _NUM_ROWS, source


def check_damage(directory: Path) -> None:
    """A flipped bit in a compressed chunk is an error that names the shard and a byte."""
    data = bytearray((directory / "a.h5").read_bytes())
    with h5py.File(directory / "a.h5") as file:
        chunk = file["image"].id.get_chunk_info(7)
    data[chunk.byte_offset + chunk.size // 2] ^= 255
    (directory / "damaged.h5").write_bytes(data)
    try:
        list(shoal.open(directory / "damaged.h5"))
    except ShardError as error:
        assert (error.shard, error.byte is None) == ("damaged.h5", False), error  # noqa: PT017
    else:
        raise AssertionError("a damaged chunk was read")


def refused(directory: Path) -> int:
    """Files that would read other files, or have no samples, are refused; return how many."""
    files: dict[str, Any] = {
        "outside": lambda file: file.__setitem__("image", h5py.ExternalLink(str(directory / "a.h5"), "/image")),
        "external": lambda file: file.create_dataset("x", (4,), "u1", external=[(str(directory / "a.h5"), 0, 4)]),
        "lengths": lambda file: (file.create_dataset("x", data=[1, 2]), file.create_dataset("y", data=[1])),
        "references": lambda file: file.create_dataset("x", (3,), h5py.ref_dtype),
        "sparse": lambda file: file.create_dataset("x", (1 << 40,), "u1", chunks=(1024,)),
        "virtual": lambda file: file.create_virtual_dataset("x", h5py.VirtualLayout((4,), "u1")),
        "scalar": lambda file: file.create_dataset("x", data=4),
    }
    for name, fill in files.items():
        with h5py.File(directory / f"{name}.h5", "w") as file:
            fill(file)
        try:
            shoal.open(directory / f"{name}.h5").num_samples  # noqa: B018
        except ShardError as error:
            assert error.hint, name  # noqa: PT017
        else:
            raise AssertionError(f"{name} was read")
    assert shoal.open(directory / "lengths.h5", format=Hdf5(fields=["y"]))[0] == {"y": 1}
    zarr.create_group(directory / "lengths.zarr").create_array("x", data=np.arange(3))
    zarr.open_group(directory / "lengths.zarr").create_array("y", data=np.arange(4))
    for source in (directory / "lengths.zarr", directory / "a.zarr"):
        try:
            shoal.open(source, version=3)
        except SourceError:
            continue
        raise AssertionError(f"{source} was read")
    return len(files) + 2


def main() -> None:
    """Check everything, and print what was checked."""
    directory = Path(sys.argv[1])
    write(directory)
    both = [str(directory / name) for name in ("a.h5", "a.zarr")]
    for source in both:
        check(source, directory=directory)
    check(both[0], directory=directory, window="1MiB", cache=str(directory / "chunks"))
    print("hdf5: a piece of the whole file, 1.2 MB, was spilled under a window of 1 MiB, and read by sample")
    with multiprocessing.get_context("fork").Pool(2) as pool:  # after reading in this process
        for source in both:
            pool.map(partial(check, source, directory=directory), range(2))
    print("both: read in forked processes of a process that had read them")
    with RangeServer({"a.h5": (directory / "a.h5").read_bytes()}) as server:
        check(server.url_of("a.h5"), directory=directory)
    store = MemoryStore()
    for path in (directory / "a.zarr").rglob("*"):
        if path.is_file():
            store.put(f"memory://here/a.zarr/{path.relative_to(directory / 'a.zarr')}", path.read_bytes())
    check("memory://here/a.zarr", directory=directory)
    print("both: read from a server of ranges and from memory")
    check_damage(directory)
    print(f"hdf5: a damaged chunk is named; {refused(directory)} sources are refused")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
