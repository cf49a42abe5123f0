"""How fast shards are verified and repacked, beside a plain copy of their bytes.

python bench/repack.py [MIB] [FOLDER]
"""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.pack import repack
from shoal.verify.open_to_verify import open_to_verify, verify

SAMPLE_BYTES = 10_000


def timed(name: str, num_bytes: int, work: Callable[[], Any]) -> None:
    """Do it once, and print wall and processor time."""
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after, strict=True))
    rate, cpu_rate = num_bytes / seconds / 1e6, num_bytes / max(cpu, 1e-9) / 1e6
    print(
        f"{name:44s} {seconds:7.2f} s, {cpu:7.2f} s of processors: {rate:7.0f} MB/s, {cpu_rate:7.0f} MB/s and processor"
    )


def main() -> None:
    """Make a dataset of tars, and time what reads it whole."""
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        source, rng = Path(folder, "source"), np.random.default_rng(0)
        payload = rng.bytes(SAMPLE_BYTES)
        count = mib * 2**20 // (SAMPLE_BYTES + 2048)
        samples = ({"__key__": f"{i:07d}", "jpg": payload, "cls": str(i * 100 // count).encode()} for i in range(count))
        shoal.pack.pack(samples, source, format="tar", shard_bytes="32MiB")
        num_bytes = sum(path.stat().st_size for path in source.glob("*.tar"))
        print(f"{count} samples, {num_bytes / 1e6:.0f} MB, {len(list(source.glob('*.tar')))} shards")
        timed("copy of the files", num_bytes, lambda: shutil.copytree(source, f"{folder}/copy"))
        timed("verify, by checksums", num_bytes, lambda: verify(open_to_verify(source)))
        Path(folder, "copy", "shoal.index").unlink()
        shoal.open(f"{folder}/copy")  # its index is made and kept before
        timed("verify, by parsing", num_bytes, lambda: verify(open_to_verify(f"{folder}/copy")))
        for name, options in {
            "repack to tar, 1 process": {"num_workers": 1},
            "repack to tar, 2 processes": {"num_workers": 2},
            "repack to tar, mixed in 64 MiB": {"mix": True, "memory": "64MiB"},
            "repack to mds, 1 process": {"format": "mds", "num_workers": 1},
        }.items():
            out = f"{folder}/{name.replace(' ', '-')}"
            work = partial(repack, source, out, shard_bytes="32MiB", **options)
            timed(name, num_bytes, work)
            shutil.rmtree(out)


if __name__ == "__main__":
    main()
