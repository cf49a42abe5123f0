"""WebDataset: tar shards, all of them shuffled, then a buffer of as many samples as the window has."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import webdataset as wds
from job import Job
from workloads import BATCH, document, pixels, samples_of

SHARD_BYTES = 16 << 20


def write(job: Job) -> None:
    job.folder("tar").mkdir(parents=True)
    pattern = str(job.folder("tar") / "part-%06d.tar")
    with wds.ShardWriter(pattern, maxsize=SHARD_BYTES, maxcount=10**9, verbose=0) as writer:
        for sample in samples_of(job.flat):
            row: dict[str, Any] = {"__key__": f"{sample.number:09d}"}
            if job.kind == "text":
                row["json"] = document(sample)
            else:
                row |= {"cls": str(sample.label), "jpg" if job.kind == "jpeg" else "bin": sample.payload}
            writer.write(row)


class Fields:
    """The class and the value of a sample."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, sample: dict[str, Any]) -> tuple[int, Any]:
        """Of what WebDataset read."""
        if self.kind == "text":
            found = json.loads(sample["json"])
            return found["class"], found
        label = int(sample["cls"])
        if self.kind == "jpeg":
            return label, pixels(sample["jpg"])
        return label, np.frombuffer(sample["bin"], np.uint16)


def dataset(job: Job) -> Any:
    paths = sorted(job.folder("tar").glob("*.tar"))
    urls = [f"pipe:curl -s -f {job.url('tar')}/{path.name}" if job.far else str(path) for path in paths]
    made = wds.WebDataset(
        urls, shardshuffle=len(urls), seed=job.seed, empty_check=False, workersplitter=wds.split_by_worker
    )
    return made.shuffle(job.window_samples, initial=job.window_samples, seed=job.seed).map(Fields(job.kind))


def samples(job: Job) -> tuple[Iterable[Any], int]:
    return dataset(job), 0


def batches(job: Job) -> tuple[Iterable[Any], int]:
    made = dataset(job).batched(BATCH)
    return (wds.WebLoader(made, batch_size=None, num_workers=job.workers) if job.workers else made), 0
