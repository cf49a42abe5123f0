"""Pass over samples that finds duplicates: digests of contents or keys, in one or several processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.pack.inputs.duplicates import Dedup, distinct_digests, sample_digest
from shoal.pack.inputs.input_table import InputTable
from shoal.pack.jobs.process_jobs import JobProgress, PackProgress, Progress, run_jobs, useful_workers
from shoal.pack.shards.shard_writer import Named, Unreadable

_JOB_BYTES, _JOB_SAMPLES = 64 << 20, 1 << 16
# Rough cost of reading and digesting (bench/packing_choices.py).
_SAMPLE_SECONDS, _BYTE_SECONDS = 10e-6, 0.6e-9


@dataclass(frozen=True, slots=True, eq=False)
class DigestsJob:
    """Samples to digest, one job of several."""

    number: int
    inputs: Iterable[Sample | Named | Unreadable]
    num_inputs: int
    by: Dedup
    skips: bool

    def __str__(self) -> str:
        return f"digests of {self.num_inputs} samples"

    def run(self, _: Any, __: JobProgress) -> NDArray[np.uint64]:
        """Return the digests, shape (num_inputs, 2); 0 for an unreadable sample that may be skipped."""
        digests = bytearray(16 * self.num_inputs)
        for position, entry in enumerate(self.inputs):
            if isinstance(entry, Unreadable):
                if not self.skips:
                    raise entry.error
                continue
            sample, name = (entry.sample, entry.name) if isinstance(entry, Named) else (entry, "")
            try:
                digests[16 * position : 16 * position + 16] = sample_digest(sample, self.by)
            except UsageError as error:
                msg = f"{name or sample.get('__key__', f'sample {position}')}: {error.message}"
                raise UsageError(msg, hint=error.hint) from None
        return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)


def without_equal_contents(
    inputs: InputTable, *, skips: bool, num_workers: int | None, progress: Progress | None = None
) -> InputTable:
    """Leave out inputs with the content of an earlier input; inputs of a unique size are not read. 80 bytes a read."""
    sizes, among = inputs.content_bytes(), np.arange(len(inputs))
    if sizes is not None:
        _, codes, counts = np.unique(sizes, return_inverse=True, return_counts=True)
        among = np.flatnonzero(counts[codes] > 1)
    job_bytes = np.maximum(inputs.record_bytes() if sizes is None else sizes, 0)[among]
    cuts = cuts_of(job_bytes)
    workers = num_workers or useful_workers(seconds_of(len(among), int(job_bytes.sum())))

    def jobs() -> Iterator[DigestsJob]:
        for number, (first, stop) in enumerate(pairwise(cuts)):
            chosen = among[first:stop]
            samples = inputs.samples(chosen, np.zeros(len(chosen), dtype=np.int64))
            yield DigestsJob(number, samples, len(chosen), "content", skips)

    digests = digests_of(jobs(), cuts, job_bytes, num_workers=workers, progress=progress)
    return inputs.without(distinct_digests(digests, among, len(inputs)), "content")


def digests_of(
    jobs: Iterator[DigestsJob],
    cuts: list[int],
    sample_bytes: NDArray[np.int64],
    *,
    num_workers: int,
    progress: Progress | None,
) -> NDArray[np.uint64]:
    """Run jobs with the borders ``cuts``, and return the digests of all samples, shape (cuts[-1], 2)."""
    totals = np.concatenate([[0], np.cumsum(sample_bytes)])[cuts]
    tally = PackProgress(np.diff(totals).tolist(), progress)
    results, _ = run_jobs(jobs, None, num_workers=min(num_workers, len(cuts) - 1), report=tally.report)
    return np.concatenate([np.zeros((0, 2), dtype=np.uint64), *results])


def seconds_of(num_samples: int, num_bytes: int) -> float:
    """Return the approximate processor time for reading and digesting samples."""
    return num_samples * _SAMPLE_SECONDS + num_bytes * _BYTE_SECONDS


def cuts_of(sample_bytes: NDArray[np.int64]) -> list[int]:
    """Return the borders of jobs of about 64 MiB, or 2^16 samples."""
    shares = np.cumsum(sample_bytes / _JOB_BYTES + 1 / _JOB_SAMPLES)
    begins = np.flatnonzero(np.diff(np.floor(shares), prepend=0.0))
    return sorted({0, *begins.tolist(), len(sample_bytes)})
