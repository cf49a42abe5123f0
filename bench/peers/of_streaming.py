"""MosaicML Streaming: MDS shards, py1e over as many samples as the window has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import streaming
from job import Job
from rows import FROM_99
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from workloads import BATCH, metadata, pixels, samples_of

SHARD_BYTES = 16 << 20


def write(job: Job) -> None:
    payload = {"tokens": ("x", "ndarray:uint16:2048"), "text": ("text", "str")}.get(job.kind, ("x", "bytes"))
    columns = {"class": "int", **dict([payload])} | ({"meta": "json"} if job.kind == "text" else {})
    with MDSWriter(out=str(job.folder("mds")), columns=columns, size_limit=SHARD_BYTES, exist_ok=True) as writer:
        for sample in samples_of(job.flat):
            row: dict[str, Any] = {"class": sample.label}
            if job.kind == "tokens":
                row["x"] = np.frombuffer(sample.payload, np.uint16)
            elif job.kind == "text":
                row |= {"text": sample.payload.decode(), "meta": metadata(sample.number)}
            else:
                row["x"] = sample.payload
            writer.write(row)


class Images(StreamingDataset):
    """Rows with their images decoded."""

    def __getitem__(self, at: Any) -> Any:
        row = super().__getitem__(at)
        return {"class": row["class"], "x": pixels(row["x"])}


def dataset(job: Job) -> Any:
    streaming.base.util.clean_stale_shared_memory()
    where: dict[str, Any] = {"local": str(job.folder("mds"))}
    if job.far:
        os.environ["S3_ENDPOINT_URL"] = job.far
        where = {"remote": job.s3("mds"), "local": job.scratch(), "cache_limit": 4 * max(job.window_bytes, SHARD_BYTES)}
    return (Images if job.kind == "jpeg" else StreamingDataset)(
        shuffle=True,
        shuffle_algo="py1e",
        shuffle_seed=job.seed,
        shuffle_block_size=job.window_samples,
        num_canonical_nodes=1,
        batch_size=BATCH,
        **where,
    )


def samples(job: Job) -> tuple[Iterable[Any], str]:
    return dataset(job), "class"


def first(job: Job) -> Any:
    """Batches from the start, or from 99 %."""
    made = dataset(job)
    if job.variant == FROM_99:
        state = {"epoch": 0, "sample_in_epoch": job.num_samples * 99 // 100, "num_canonical_nodes": 1}
        made.load_state_dict(state | {"shuffle_seed": job.seed, "initial_physical_nodes": 1})
    return StreamingDataLoader(made, batch_size=BATCH, num_workers=job.workers)


def batches(job: Job) -> tuple[Iterable[Any], str]:
    return StreamingDataLoader(dataset(job), batch_size=BATCH, num_workers=job.workers), "class"
