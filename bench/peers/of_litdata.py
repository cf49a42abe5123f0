"""LitData: its optimized chunks. "" is its default on local files; with "all keys" all of a chunk is permuted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from job import Job
from workloads import BATCH, metadata, pixels, samples_of


class Rows:
    """All samples as one input of `litdata.optimize`."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, _: int) -> Iterator[dict[str, Any]]:
        """All of them, whatever the input is."""
        for sample in samples_of(self.job.flat):
            row: dict[str, Any] = {"class": sample.label, "x": sample.payload}
            if self.job.kind == "tokens":
                row["x"] = np.frombuffer(sample.payload, np.uint16)
            elif self.job.kind == "text":
                row = {"class": sample.label, "text": sample.payload.decode(), **metadata(sample.number)}
            yield row


def write(job: Job) -> None:
    import litdata  # noqa: PLC0415  # it reads the environment when it is imported

    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = job.scratch()
    out = str(job.folder("litdata"))
    litdata.optimize(fn=Rows(job), inputs=[0], output_dir=out, chunk_bytes="16MB", num_workers=1, mode="overwrite")


def with_pixels(row: dict[str, Any]) -> dict[str, Any]:
    return {"class": row["class"], "x": pixels(row["x"])}


def dataset(job: Job) -> Any:
    options: dict[str, Any] = {"transform": with_pixels} if job.kind == "jpeg" else {}
    if job.variant == "all keys":
        if not job.workers:  # without its maps of files, two workers of 0.2.76 that share a chunk read nothing of it
            os.environ["LITDATA_POSIX_FAST"] = "0"
        options |= {"item_shuffle_window": "full", "batch_decode": 0}
    import litdata  # noqa: PLC0415  # as above

    where = str(job.folder("litdata"))
    if job.far:
        from litdata.streaming import downloader  # noqa: PLC0415

        # 0.2.76 has no option by which obstore accepts an address that begins with http://.
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
        access = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "endpoint_url": job.far}
        where = job.s3("litdata")
        options |= {"storage_options": access | {"region_name": "us-east-1"}, "cache_dir": job.scratch()}
    return litdata.StreamingDataset(where, shuffle=True, drop_last=False, seed=job.seed, **options)


def samples(job: Job) -> tuple[Iterable[Any], str]:
    return dataset(job), "class"


def batches(job: Job) -> tuple[Iterable[Any], str]:
    made = dataset(job)
    import litdata  # noqa: PLC0415  # as above

    return litdata.StreamingDataLoader(made, batch_size=BATCH, num_workers=job.workers), "class"
