"""A program: streams from a store in processes started in each way, and prints what became of each, as JSON.

It is a process of its own, because what a process has done before decides what its forked children can do. Called with
one JSON object: what to open, how to start processes, and whether this one uses the store before it starts them.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import Any

from shoal.errors import ShoalError
from shoal.storage.memory_store import MemoryStore
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset


def opened(task: dict[str, Any]) -> Dataset:
    """The dataset of a task."""
    return open_dataset(task["source"], storage_options=task["options"]).shuffle("full", seed=1)


def stream(task: dict[str, Any], ds: Dataset | None, results: Any) -> None:
    """In the child: all ids, as the samples say them, or the name of the error."""
    try:
        results.put([int(sample["id"]) for sample in (opened(task) if ds is None else ds)])
    except ShoalError as error:
        results.put([type(error).__name__, str(error)])


def run(task: dict[str, Any], method: str, ds: Dataset | None) -> Any:
    """What a child started by ``method`` says."""
    context: Any = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    child = context.Process(target=stream, args=(task, ds, results))
    child.start()
    said = results.get()
    child.join()
    return [child.exitcode, said]


def main() -> None:
    """Carry out the task on the command line."""
    task = json.loads(sys.argv[1])
    if task["lines"] is not None:
        MemoryStore().put(task["source"], task["lines"].encode())
    ds = None
    if task["used"]:
        ds = opened(task)
        next(iter(ds))
    print(json.dumps({method: run(task, method, ds) for method in task["methods"]}))


if __name__ == "__main__":
    main()
