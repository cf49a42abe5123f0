"""shoal: MDS shards, `shoal.mix`, the default order of each source, `partition`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from job import SEED, SHARDS, Job, Pair, main, payload

import shoal


class Reader:
    """With ``ends="forever"`` a mixture has no epochs."""

    def __init__(self, job: Job, states: list[Any]) -> None:
        self.epoch = 0
        names = [f"source-{number:02d}" for number in range(len(job.weights))]
        sources = {name: shoal.open(job.source(number)) for number, name in enumerate(names)}
        weights = dict(zip(names, job.weights, strict=True))
        mixed = shoal.mix(sources, weights=weights, seed=SEED, ends="forever").shuffle(seed=SEED)
        self.mixed = mixed.batch(job.batch_size).partition(rank=job.rank, world_size=job.world_size)
        if states:
            self.mixed.load_state_dict(states[0])

    def batches(self) -> Iterator[list[Pair]]:
        """What this rank gets."""
        for batch in self.mixed:
            yield list(zip(batch["source"].tolist(), batch["number"].tolist(), strict=True))

    def state(self) -> Any:
        """A checkpoint."""
        return self.mixed.state_dict()


def write(directory: str, source: int, size: int) -> None:
    with shoal.pack.Writer(directory, format="mds", shard_bytes=size // SHARDS * 1060) as writer:
        for number in range(size):
            writer.write({"source": source, "number": number, "payload": payload(source, number)})


if __name__ == "__main__":
    main(Reader, write)
