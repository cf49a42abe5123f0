"""What it costs to compare an index file with its checksum, as each process does once with the file of its machine.

::

    python bench/compare_index.py [--extents 10000000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from shoal.index.assembly import fingerprint
from shoal.index.index_file import confirm, decode, encode
from shoal.index.table import Index
from shoal.storage.files.local_store import LocalStore

EXTENT_BYTES, PER_SHARD, PER_EXTENT = 65_536, 10_000, 4


def index_of(num_extents: int) -> Index:
    """An index of tars of 640 MB, with checksums and without the sizes of samples."""
    num_shards = max(1, num_extents // PER_SHARD)
    rows = np.full(num_extents, PER_EXTENT, dtype=np.int64)
    shard = (np.arange(num_extents) // PER_SHARD).clip(max=num_shards - 1).astype(np.int32)
    first_byte = (np.arange(num_extents, dtype=np.int64) - shard * PER_SHARD) * EXTENT_BYTES
    names = [f"s-{number:06d}.tar" for number in range(num_shards)]
    crcs = np.arange(num_extents, dtype=np.uint32) * np.uint32(2_654_435_761)
    return Index(
        format="tar",
        shard_names=names,
        shard_bytes=np.full(num_shards, int(first_byte.max()) + EXTENT_BYTES, dtype=np.int64),
        shard_versions=["1700000000000000000"] * num_shards,
        shard_heads={},
        extent_shard=shard,
        extent_first_byte=first_byte,
        extent_end_byte=first_byte + EXTENT_BYTES,
        extent_first_sample=np.arange(num_extents + 1, dtype=np.int64) * PER_EXTENT,
        extent_num_samples=rows,
        extent_decoded_bytes=np.full(num_extents, EXTENT_BYTES, dtype=np.int64),
        extent_layout_crc=crcs,
        extent_checksum=crcs,
        sample_bytes=None,
        columns={},
        notes={},
        metadata={},
        fingerprint=fingerprint(names, shard, first_byte, first_byte + EXTENT_BYTES, rows),
    )


def main() -> None:
    """Write an index, and take times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extents", type=int, default=10_000_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path, store = str(Path(directory, "shoal.index")), LocalStore()
        store.put(path, encode(index_of(asked.extents)))
        print(f"{asked.extents:,} extents, {store.stat(path).num_bytes / 1e6:,.0f} MB")
        for _ in range(5):
            began = time.perf_counter()
            data = store.map(path)
            decode(data)
            opened, cpu = time.perf_counter(), time.process_time()
            confirm(data)
            done = time.perf_counter()
            print(
                f"open {opened - began:.3f} s, compare {done - opened:.3f} s ({time.process_time() - cpu:.3f} s of CPU)"
            )


if __name__ == "__main__":
    main()
