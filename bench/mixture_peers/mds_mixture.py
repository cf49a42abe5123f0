"""MosaicML Streaming: MDS shards, `Stream(proportion=)`, the default batching method and shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from job import SHARDS, Job, Pair, main, payload
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset


class Reader:
    """``batching_method`` is "random" unless ``METHOD`` says otherwise; the size of an epoch is left to Streaming."""

    method = "random"

    def __init__(self, job: Job, states: list[Any]) -> None:
        self.epoch = 0
        streams = [Stream(local=job.source(number), proportion=weight) for number, weight in enumerate(job.weights)]
        dataset = StreamingDataset(
            streams=streams, shuffle=True, batch_size=job.batch_size, batching_method=self.method, num_canonical_nodes=1
        )
        self.loader = StreamingDataLoader(dataset, batch_size=job.batch_size)
        if states:
            self.loader.load_state_dict(states[0])

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
    columns = {"source": "int", "number": "int", "payload": "bytes"}
    limit = (size // SHARDS) * 1060  # a shard's samples, each with its sizes
    with MDSWriter(out=directory, columns=columns, size_limit=limit, exist_ok=True) as writer:
        for number in range(size):
            writer.write({"source": source, "number": number, "payload": payload(source, number)})


if __name__ == "__main__":
    main(Reader, write)
