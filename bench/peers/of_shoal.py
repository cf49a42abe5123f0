"""shoal, in the shards that the others have written; the variant is the format, its chunk, and its window."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from job import Job
from rows import FROM_99
from workloads import BATCH

import shoal

LOADER = "shoal.torch"
"""The module of the loader with workers; a script imports it before it makes a dataset, like those of other loaders."""

warnings.simplefilter("ignore", shoal.errors.ShuffleWarning)


def dataset(job: Job) -> Any:
    name, chunk, window, *_ = [*job.variant.split(), None, None]
    options: dict[str, Any] | None = None
    root = str(job.folder(name))
    if job.far:
        root = job.s3(name)
        options = {"endpoint": job.far, "anonymous": True, "region": "us-east-1"}
    files = [f"{root}/{path.name}" for path in sorted(job.folder(name).glob(f"*.{name}"))]
    made = shoal.open(files, storage_options=options)
    made = made.shuffle(seed=job.seed, window=window or job.window_bytes, chunk=chunk)
    if job.kind == "jpeg":
        return made.decode("rgb8")
    return made.decode() if name == "tar" else made


def key(job: Job) -> Any:
    if not job.variant.startswith("tar"):
        return "class"
    return "cls"


class Labelled:
    """A document of a tar with the class that is inside of its JSON."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The same sample, with its class beside the document."""
        return {"cls": sample["json"]["class"], **sample}


def samples(job: Job) -> tuple[Iterable[Any], Any]:
    made = dataset(job)
    if job.kind == "text" and job.variant == "tar":
        made = made.map(Labelled())
    # Of MDS and decoded tars, single samples are arrays and numbers as they are; of Parquet, lists.
    return made.format("numpy") if job.variant == "parquet" else made, key(job)


def first(job: Job) -> Iterable[Any]:
    """Batches from the start, or from 99 %, by torch's loader if there are workers."""
    made = dataset(replace(job, variant="mds")).batch(BATCH).format("numpy")
    state = made.state_at(made.num_samples * 99 // 100) if job.variant == FROM_99 else None
    if job.workers:
        import shoal.torch  # noqa: PLC0415  # torch is needed for workers alone; see `LOADER`

        made = shoal.torch.DataLoader(made, num_workers=job.workers)
    if state is not None:
        made.load_state_dict(state)
    return made


def batches(job: Job) -> tuple[Iterable[Any], Any]:
    made = dataset(job)
    if job.kind == "text" and job.variant == "tar":
        made = made.map(Labelled())
    made = made.batch(BATCH).format("numpy")
    if job.kind == "jpeg":
        import shoal.torch  # noqa: PLC0415  # where threads or processes decode

        return shoal.torch.DataLoader(made.format("torch"), num_workers=job.workers), key(job)
    return made, key(job)
