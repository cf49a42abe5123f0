"""MosaicML Streaming: an `MDSWriter` in each process of a pool, then `merge_index`, as its guide has it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from multiprocessing import Pool

from packing_job import PROCESSES, PackingJob, begun, main, sample_of
from streaming import LocalDataset, MDSWriter
from streaming.base.util import merge_index


def convert(asked: tuple[str, list[str], int]) -> None:
    out, files, shard_bytes = asked
    with MDSWriter(out=out, columns={"key": "str", "data": "bytes"}, size_limit=shard_bytes) as writer:
        for path in files:
            writer.write(sample_of(path))


def write(job: PackingJob) -> None:
    begun()
    asked = [(f"{job.out}/{number}", part, job.shard_bytes) for number, part in enumerate(job.parts(4 * PROCESSES))]
    with Pool(PROCESSES) as pool:
        for _ in pool.imap(convert, asked):
            pass
    merge_index(job.out, keep_local=True)


def read(out: str) -> Iterator[str]:
    dataset = LocalDataset(local=out)
    for number in range(len(dataset)):
        yield dataset[number]["key"]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(write, read)
