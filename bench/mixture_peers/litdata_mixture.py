"""LitData: optimized chunks, `CombinedStreamingDataset(weights=, iterate_over_all=False)`, `StreamingDataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from job import SEED, SHARDS, Job, Pair, main, payload
from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter


class Reader:
    """An epoch ends where the first source does: with weights there is no other way."""

    def __init__(self, job: Job, states: list[Any]) -> None:
        self.epoch = 0
        sources = [
            StreamingDataset(job.source(number), shuffle=True, drop_last=False, seed=SEED + number)
            for number in range(len(job.weights))
        ]
        mixed = CombinedStreamingDataset(sources, seed=SEED, weights=job.weights, iterate_over_all=False)
        self.loader = StreamingDataLoader(mixed, batch_size=job.batch_size)
        if states:
            self.loader.load_state_dict(states[job.rank % len(states)])

    def batches(self) -> Iterator[list[Pair]]:
        """What this rank gets."""
        while True:
            for batch in self.loader:
                yield list(zip(batch["source"].tolist(), batch["number"].tolist(), strict=True))
            self.epoch += 1

    def state(self) -> Any:
        """A checkpoint."""
        return self.loader.state_dict()


def write(directory: str, source: int, size: int) -> None:
    writer = BinaryWriter(directory, chunk_size=size // SHARDS)
    for number in range(size):
        writer[number] = {"source": source, "number": number, "payload": payload(source, number)}
    writer.done()
    writer.merge()


if __name__ == "__main__":
    main(Reader, write)
