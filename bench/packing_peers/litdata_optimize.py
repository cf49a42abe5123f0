"""LitData: `optimize` with two workers, and checkpoints, by which a run goes on after a kill."""

from __future__ import annotations

from collections.abc import Iterator

from litdata import StreamingDataset, optimize
from packing_job import PROCESSES, PackingJob, begun, main, sample_of


def write(job: PackingJob) -> None:
    begun()
    optimize(
        fn=sample_of, inputs=job.files, output_dir=job.out, num_workers=PROCESSES, chunk_bytes=job.shard_bytes,
        use_checkpoint=True, verbose=False,
    )  # fmt: skip


def read(out: str) -> Iterator[str]:
    for sample in StreamingDataset(out):
        yield sample["key"]


if __name__ == "__main__":
    main(write, read)
