"""Hugging Face datasets: Parquet with row groups of 4 MiB, a buffer of as many samples as the window has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from job import Job
from workloads import BATCH, Sample, metadata, pixels, samples_of

SHARD_BYTES, GROUP_BYTES = 16 << 20, 4 << 20


def table_of(job: Job, rows: list[Sample]) -> Any:
    columns: dict[str, Any] = {"class": pa.array([row.label for row in rows], pa.int32())}
    if job.kind == "text":
        columns["text"] = pa.array([row.payload.decode() for row in rows])
        about = [metadata(row.number) for row in rows]
        return pa.table(columns | {name: pa.array([each[name] for each in about]) for name in about[0]})
    return pa.table(columns | {"x": pa.array([row.payload for row in rows], pa.binary())})


def write(job: Job) -> None:
    job.folder("parquet").mkdir(parents=True)
    writer, rows, group, shard, number = None, [], 0, 0, 0
    compression = "snappy" if job.kind == "text" else "none"

    def flush() -> None:
        nonlocal writer, rows, group
        if rows:
            table = table_of(job, rows)
            path = job.folder("parquet") / f"part-{number:05d}.parquet"
            writer = writer or pq.ParquetWriter(path, table.schema, compression=compression, use_dictionary=False)
            writer.write_table(table)
        rows, group = [], 0

    for sample in samples_of(job.flat):
        rows.append(sample)
        group, shard = group + len(sample.payload), shard + len(sample.payload)
        if group >= GROUP_BYTES or shard >= SHARD_BYTES:
            flush()
        if shard >= SHARD_BYTES:
            writer.close()
            writer, shard, number = None, 0, number + 1
    flush()
    if writer is not None:
        writer.close()


def dataset(job: Job) -> Any:
    datasets.disable_progress_bars()
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0  # 5 s at the end of an epoch otherwise
    names = sorted(path.name for path in job.folder("parquet").glob("*.parquet"))
    root = job.url("parquet") if job.far else str(job.folder("parquet"))
    files = [f"{root}/{name}" for name in names]
    made = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return made.shuffle(seed=job.seed, buffer_size=job.window_samples)


def value(job: Job, row: dict[str, Any]) -> Any:
    if job.kind == "text":
        return row["text"]
    return pixels(row["x"]) if job.kind == "jpeg" else np.frombuffer(row["x"], np.uint16)


def samples(job: Job) -> tuple[Iterable[Any], str]:
    made = dataset(job)
    if job.kind in ("text", "blob"):
        return made, "class"
    return ({"class": row["class"], "x": value(job, row)} for row in made), "class"


class Decoded:
    """Images of a batch."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch of rows."""
        return {"class": [row["class"] for row in rows], "x": np.stack([value(self.job, row) for row in rows])}


def batches(job: Job) -> tuple[Iterable[Any], str]:
    if job.kind == "jpeg":
        from torch.utils.data import DataLoader  # noqa: PLC0415  # for processes alone

        return DataLoader(dataset(job), batch_size=BATCH, num_workers=job.workers, collate_fn=Decoded(job)), "class"
    if job.workers:
        from torch.utils.data import DataLoader  # noqa: PLC0415  # as above

        return DataLoader(dataset(job), batch_size=BATCH, num_workers=job.workers, collate_fn=list), "class"
    return rows_in_batches(job), "class"


def rows_in_batches(job: Job) -> Iterator[dict[str, Any]]:
    for batch in dataset(job).iter(batch_size=BATCH):
        if job.kind == "tokens":
            batch["x"] = np.stack([np.frombuffer(each, np.uint16) for each in batch["x"]])
        yield batch
