"""`shoal pack` with two processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import shoal
from packing_job import PROCESSES, PackingJob, begun, main

FORMAT = os.environ.get("PACKING_FORMAT", "tar")


def write(job: PackingJob) -> None:
    begun()
    shoal.pack.pack(
        os.path.dirname(os.path.dirname(job.files[0])), job.out, format=FORMAT, labelled=False,
        shard_bytes=job.shard_bytes, num_workers=PROCESSES,
    )  # fmt: skip


def read(out: str) -> Iterator[str]:
    for sample in shoal.open(out):
        yield sample["__key__" if FORMAT == "tar" else "key"].rpartition("/")[2]


if __name__ == "__main__":
    main(write, read)
