"""Plain torch: a dataset that finds a sample by its number, in a file of tokens or a file of its own, all permuted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from job import Job
from torch.utils.data import DataLoader, Dataset, RandomSampler
from workloads import BATCH, NUM_CLASSES, document, pixels, samples_of


def write(job: Job) -> None:
    folder = job.folder("files")
    folder.mkdir(parents=True)
    for sample in samples_of(job.flat) if job.kind != "tokens" else ():
        data = document(sample) if job.kind == "text" else sample.payload
        (folder / f"{sample.number:09d}").write_bytes(data)


class Tokens(Dataset[Any]):
    """Rows of a mapped file."""

    def __init__(self, job: Job) -> None:
        self.count = job.num_samples
        self.rows = np.memmap(job.flat / "data.bin", np.uint16, "r").reshape(self.count, -1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return number * NUM_CLASSES // self.count, np.array(self.rows[number])


class Files(Dataset[Any]):
    """A file a sample."""

    def __init__(self, job: Job) -> None:
        self.count, self.folder, self.kind = job.num_samples, str(job.folder("files")), job.kind

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[int, Any]:
        with open(f"{self.folder}/{number:09d}", "rb") as file:  # noqa: PTH123  # half the time of a Path
            data = file.read()
        value = pixels(data) if self.kind == "jpeg" else json.loads(data) if self.kind == "text" else data
        return number * NUM_CLASSES // self.count, value


def loader(job: Job, batch: int | None) -> Any:
    made: Any = (Tokens if job.kind == "tokens" else Files)(job)
    order = RandomSampler(made, generator=torch.Generator().manual_seed(job.seed))
    return DataLoader(made, batch_size=batch, sampler=order, num_workers=job.workers)


def samples(job: Job) -> tuple[Iterable[Any], int]:
    return loader(job, None), 0


def batches(job: Job) -> tuple[Iterable[Any], int]:
    return loader(job, BATCH), 0
