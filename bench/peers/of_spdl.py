"""SPDL: files at random, decoded by FFmpeg to batches in threads, as its guide to images does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from job import Job
from workloads import BATCH, NUM_CLASSES


def batches(job: Job) -> tuple[Iterable[Any], int]:
    return stream(job), 0


def stream(job: Job) -> Iterator[tuple[list[int], Any]]:
    import spdl.io  # noqa: PLC0415  # it loads FFmpeg
    from spdl.pipeline import PipelineBuilder  # noqa: PLC0415

    count, folder = job.num_samples, str(job.folder("files"))

    def decoded(numbers: list[int]) -> tuple[list[int], Any]:
        paths = [f"{folder}/{number:09d}" for number in numbers]
        images = spdl.io.load_image_batch(paths, width=None, height=None, pix_fmt="rgb24")
        return [number * NUM_CLASSES // count for number in numbers], spdl.io.to_numpy(images)

    num_threads = len(os.sched_getaffinity(0))
    order = np.random.default_rng(job.seed).permutation(count).tolist()
    steps = PipelineBuilder().add_source(order).aggregate(BATCH).pipe(decoded, concurrency=num_threads).add_sink(2)
    pipeline = steps.build(num_threads=num_threads)
    with pipeline.auto_stop():
        yield from pipeline
