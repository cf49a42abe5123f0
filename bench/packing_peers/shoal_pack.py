"""`shoal pack` with two processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packing_job import PROCESSES, PackingJob, begun, main

import shoal

FORMAT = os.environ.get("PACKING_FORMAT", "tar")


def asked_of(job: PackingJob) -> dict[str, Any]:
    source = Path(job.files[0]).parents[1]
    return {
        "source": source,
        "url": job.out,
        "format": FORMAT,
        "labelled": False,
        "shard_bytes": job.shard_bytes,
    }


def planned(job: PackingJob) -> shoal.pack.PackJob:
    return shoal.pack.plan(**asked_of(job))


def write(job: PackingJob) -> None:
    begun()
    shoal.pack.pack(**asked_of(job), num_workers=PROCESSES)


def read(out: str) -> Iterator[str]:
    for sample in shoal.open(out):
        yield sample["__key__" if FORMAT == "tar" else "key"].rpartition("/")[2]


if __name__ == "__main__":
    main(write, read)
