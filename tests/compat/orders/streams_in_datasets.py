"""Runs in the environment of Hugging Face datasets: the ids of shuffled streams, batch by batch.

``python streams_in_datasets.py RUNS.json FOUND.json``
"""

import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import torch.utils.data
from datasets.distributed import split_dataset_by_node

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None

datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
logging.disable(logging.WARNING)


def samples(shards: list[tuple[int, int]]) -> Iterator[dict[str, int]]:
    for start, stop in shards:
        for number in range(start, stop):
            yield {"id": number}


def source(kind: str, sizes: tuple[int, ...]) -> Any:
    """A dataset whose shards have these sizes, and the row groups of Parquet three rows."""
    bounds, first = [], 0
    for size in sizes:
        bounds.append((first, first + size))
        first += size
    if kind == "examples":
        return datasets.IterableDataset.from_generator(samples, gen_kwargs={"shards": bounds})
    directory = tempfile.mkdtemp(dir=TEMPORARY)
    paths = []
    for number, (start, stop) in enumerate(bounds):
        path = f"{directory}/{number:03}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table({"id": pa.array(range(start, stop), pa.int64())}), path, row_group_size=3)
        else:
            Path(path).write_text("".join(f'{{"id": {each}}}\n' for each in range(start, stop)))
        paths.append(path)
    features = datasets.Features({"id": datasets.Value("int64")})
    return datasets.load_dataset(kind, data_files=paths, split="train", streaming=True, features=features)


def ids(stream: Any) -> list[int]:
    return [int(sample["id"]) for sample in stream]


def in_worker(stream: Any, worker: int, workers: int) -> list[int]:
    """The ids of one worker of a loader, in this process."""
    info = torch.utils.data._utils.worker.WorkerInfo(id=worker, num_workers=workers, seed=0, dataset=stream)
    torch.utils.data._utils.worker._worker_info = info
    try:
        return ids(stream)
    finally:
        torch.utils.data._utils.worker._worker_info = None


def batches_in_turn(streams: list[list[int]], size: int) -> Iterator[list[int]]:
    """The batches of workers with these ids, as a loader gives them."""
    waiting = [[stream[at : at + size] for at in range(0, len(stream), size)] for stream in streams]
    while waiting := [batches for batches in waiting if batches]:
        for batches in waiting:
            yield batches.pop(0)


def batches(stream: Any, wanted: dict[str, Any]) -> list[list[int]]:
    """The batches of one rank."""
    size, workers = wanted["batch_size"], wanted["num_workers"]
    if wanted["loader"]:
        loader = torch.utils.data.DataLoader(stream, batch_size=size, num_workers=workers)
        return [batch["id"].tolist() for batch in loader]
    streams = [in_worker(stream, worker, workers) for worker in range(workers)] if workers else [ids(stream)]
    return list(batches_in_turn(streams, size))


def shuffled(wanted: dict[str, Any]) -> Iterator[Any]:
    """The stream of each rank."""
    key = wanted["source"], tuple(wanted["shards"])
    if key not in SOURCES:
        SOURCES[key] = source(*key)
    arguments = {"seed": wanted["seed"], "buffer_size": wanted["buffer_size"]}
    if wanted["release"] >= "5.0":
        arguments["max_buffer_input_shards"] = wanted["max_buffer_input_shards"]
    for rank in range(wanted["world_size"]):
        stream = SOURCES[key].shuffle(**arguments)
        if wanted["world_size"] > 1:
            strategy = {"strategy": wanted["strategy"]} if wanted["release"] >= "5.1" else {}
            stream = split_dataset_by_node(stream, rank, wanted["world_size"], **strategy)
        stream.set_epoch(wanted["epoch"])
        yield stream


def state(wanted: dict[str, Any]) -> Any:
    """What rank 0, or its loader, saves after some batches; None if it does not get so far or cannot save."""
    stream, size, count = next(shuffled(wanted)), wanted["batch_size"], wanted["saved_after"]
    if wanted["loader"] and StatefulDataLoader is not None:
        loader = StatefulDataLoader(stream, batch_size=size, num_workers=wanted["num_workers"])
        return loader.state_dict() if len(list(islice(loader, count))) == count else None
    if wanted["num_workers"]:
        return None
    return stream.state_dict() if len(list(islice(stream, count * size))) == count * size else None


def found(wanted: dict[str, Any]) -> dict[str, Any]:
    """All ids: step by step, in a step the batches of all ranks; a state, and how many ids were before it."""
    ranks = [batches(stream, wanted) for stream in shuffled(wanted)]
    steps = max(len(each) for each in ranks)
    before = sum(len(batch) for rank in ranks for batch in rank[: wanted["saved_after"]])
    ids = [sample for step in range(steps) for rank in ranks if step < len(rank) for sample in rank[step]]
    return {"ids": ids, "before": before, "state": state(wanted) if wanted["saved_after"] else None}


SOURCES: dict[tuple[str, tuple[int, ...]], Any] = {}

if __name__ == "__main__":
    runs = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as TEMPORARY:
        datasets.config.HF_DATASETS_CACHE = Path(TEMPORARY)
        answers = [found(each) for each in runs]
    Path(sys.argv[2]).write_text(json.dumps(answers))
