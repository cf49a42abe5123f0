"""Hugging Face datasets: Arrow files, each source shuffled, `interleave_datasets`, `split_dataset_by_node`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from job import SEED, Job, Pair, main, payload, shards_of


def files_of(directory: str) -> list[str]:
    return sorted(map(str, Path(directory).iterdir()))


class Reader:
    """``all_exhausted`` is the strategy with replacement: a source that ends begins anew, until all have ended."""

    def __init__(self, job: Job, states: list[Any]) -> None:
        self.epoch = 0
        self.batch_size = job.batch_size
        # A buffer of 1,000 samples is the default. That of ten input shards costs eight times the CPU time here, as the
        # cursors of all shards of all sources are copied for each row.
        sources = [
            load_dataset("arrow", data_files=files_of(job.source(number)), split="train", streaming=True).shuffle(
                seed=SEED + number, max_buffer_input_shards=1
            )
            for number in range(len(job.weights))
        ]
        mixed = interleave_datasets(sources, probabilities=job.weights, seed=SEED, stopping_strategy="all_exhausted")
        self.mixed = split_dataset_by_node(mixed, rank=job.rank, world_size=job.world_size)
        if states:
            state = states[job.rank % len(states)]
            self.epoch = state["epoch"]
            self.mixed.set_epoch(self.epoch)
            self.mixed.load_state_dict(state["state"])

    def batches(self) -> Iterator[list[Pair]]:
        """What this rank gets."""
        while True:
            rows = iter(self.mixed)
            while batch := [(row["source"], row["number"]) for row in islice(rows, self.batch_size)]:
                yield batch
            self.epoch += 1
            self.mixed.set_epoch(self.epoch)

    def state(self) -> Any:
        """A checkpoint."""
        return {"epoch": self.epoch, "state": self.mixed.state_dict()}


def write(directory: str, source: int, size: int) -> None:
    for shard, numbers in enumerate(shards_of(size)):
        rows = [{"source": source, "number": number, "payload": payload(source, number)} for number in numbers]
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(f"{directory}/{shard:05d}.arrow", "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table)


if __name__ == "__main__":
    main(Reader, write)
