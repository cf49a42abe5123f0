"""Grain: ArrayRecord files, each source shuffled and repeated, `MapDataset.mix`, `ElasticIterator`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
from array_record.python.array_record_module import ArrayRecordWriter
from job import SEED, Job, Pair, main, payload, shards_of


def decoded(record: bytes) -> dict[str, Any]:
    return {"source": int(record[:3]), "number": int(record[4:12]), "payload": record}


class Reader:
    """`repeat` shuffles each round anew, and a mixture of endless sources has no end."""

    def __init__(self, job: Job, states: list[Any]) -> None:
        self.epoch = 0
        sources = [
            grain.MapDataset.source(
                grain.sources.ArrayRecordDataSource(sorted(map(str, Path(job.source(number)).iterdir())))
            )
            .shuffle(seed=SEED + number)
            .repeat()
            .map(decoded)
            for number in range(len(job.weights))
        ]
        mixed = grain.MapDataset.mix(sources, weights=job.weights)
        shard = grain.sharding.ShardOptions(shard_index=job.rank, shard_count=job.world_size)
        self.loader = iter(grain.experimental.ElasticIterator(mixed, job.batch_size * job.world_size, shard))
        if states:
            self.loader.set_state(states[0])

    def batches(self) -> Iterator[list[Pair]]:
        """What this rank gets."""
        for batch in self.loader:
            yield list(zip(batch["source"].tolist(), batch["number"].tolist(), strict=True))

    def state(self) -> Any:
        """A checkpoint."""
        return self.loader.get_state()


def write(directory: str, source: int, size: int) -> None:
    for shard, numbers in enumerate(shards_of(size)):
        writer = ArrayRecordWriter(f"{directory}/{shard:05d}.array_record", "group_size:1")
        for number in numbers:
            writer.write(payload(source, number))
        writer.close()


if __name__ == "__main__":
    main(Reader, write)
