"""Machines of a job that have no directory in common share the work through the store of torch.distributed."""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from pathlib import Path

import pytest
from tests.storage.servers import torch_server
from tests.stream.growing.growing_data import WINDOW, keys_of_all, write_shards

import shoal
from shoal.indexing.jobs import index_from_parts, shared_indexing


def _index(rank: int, home: Path, job: dict[str, str]) -> None:
    """Read an epoch as the only process of a machine, and write its keys and the shards that were indexed here."""
    os.environ.update(job, RANK=str(rank), SHOAL_CACHE_DIR=str(home / f"machine-{rank}"))
    shared_indexing._LEAST_WAIT_SECONDS = shared_indexing._UNKNOWN_WAIT_SECONDS = 60.0  # nobody takes over
    shared_indexing._LONGEST_PAUSE_SECONDS = 0.05
    indexed, keep = list[int](), index_from_parts.IndexTask.keep

    def kept(task: index_from_parts.IndexTask, part: object) -> object:
        indexed.append(task.number)
        return keep(task, part)  # type: ignore[arg-type]

    index_from_parts.IndexTask.keep = kept  # type: ignore[assignment, method-assign]
    dataset = shoal.open(home / "data", index="grow").shuffle(seed=5, window=WINDOW)
    keys = [sample["key"] for sample in dataset]
    num_samples = shoal.open(home / "data").num_samples
    (home / f"{rank}.json").write_text(json.dumps([keys, indexed, num_samples]))


@pytest.mark.drill
def test_each_shard_is_indexed_by_one_machine(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    write_shards(tmp_path / "data")
    server = torch_server()
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": server.host, "MASTER_PORT": str(server.port)}
    context = multiprocessing.get_context("fork")  # with torch, which takes seconds to import
    machines = [context.Process(target=_index, args=(rank, tmp_path, job)) for rank in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        for machine in machines:
            machine.start()
    for machine in machines:
        machine.join(100)
        assert machine.exitcode == 0
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert sorted(reports[0][0] + reports[1][0]) == keys_of_all()
    (one, other) = (set(indexed) for _, indexed, _ in reports)
    assert one
    assert other
    assert not one & other
    assert [num_samples for _, _, num_samples in reports] == [len(keys_of_all())] * 2
    for rank in range(2):
        assert len(list(Path(tmp_path, f"machine-{rank}", "indexes").glob("*.index"))) == 1
