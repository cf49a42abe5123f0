"""The loop of img2dataset: a pool of processes, a tar of 1,000 samples for each task, and a file of counts beside it.

By its default, ``incremental_mode="incremental"``, a later run makes the shards that lack the file of counts.
"""

from __future__ import annotations

import json
from multiprocessing import Pool
from pathlib import Path

import webdataset
from packing_job import PROCESSES, PackingJob, begun, main, sample_of
from tar_keys import tar_keys

SAMPLES = 1000


def make(asked: tuple[str, list[str]]) -> int:
    shard, files = asked
    with webdataset.TarWriter(f"{shard}.tar") as writer:
        for path in files:
            sample = sample_of(path)
            writer.write({"__key__": sample["key"], "bin": sample["data"]})
    Path(f"{shard}_stats.json").write_text(json.dumps({"count": len(files)}))
    return len(files)


def write(job: PackingJob) -> None:
    begun()
    Path(job.out).mkdir(exist_ok=True)
    asked = [
        (f"{job.out}/{number:05d}", job.files[first : first + SAMPLES])
        for number, first in enumerate(range(0, len(job.files), SAMPLES))
    ]
    missing = [each for each in asked if not Path(f"{each[0]}_stats.json").exists()]
    with Pool(PROCESSES, maxtasksperchild=5) as pool:
        for _ in pool.imap_unordered(make, missing):
            pass


if __name__ == "__main__":
    main(write, tar_keys)
