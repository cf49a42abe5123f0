"""Machines of a job that have no directory in common share the work through the store of torch.distributed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.storage.servers import torch_server
from tests.stream.growing.growing_data import WINDOW, keys_of_all, write_shards

_RUN = f"""
import json, sys
import torch.distributed
import shoal
from shoal.indexing.jobs import shared_indexing
from shoal.indexing.jobs import index_from_parts
shared_indexing._LEAST_WAIT_SECONDS = shared_indexing._UNKNOWN_WAIT_SECONDS = 60.0  # nobody takes over
ran, kept = [], index_from_parts.IndexTask.keep
def keep(task, part):
    ran.append(task.number)
    return kept(task, part)
index_from_parts.IndexTask.keep = keep
dataset = shoal.open(sys.argv[1], index="grow").shuffle(seed=5, window="{WINDOW}")
keys = [sample["key"] for sample in dataset]
again = shoal.open(sys.argv[1])
print(json.dumps([keys, ran, again.num_samples]))
"""


def test_each_shard_is_indexed_by_one_machine(tmp_path: Path) -> None:
    shards, server = write_shards(tmp_path / "data"), torch_server()
    machines = []
    for rank in range(2):
        job = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
        place = {"MASTER_ADDR": server.host, "MASTER_PORT": str(server.port)}
        own = {"SHOAL_CACHE_DIR": str(tmp_path / f"machine-{rank}")}
        machines.append(
            subprocess.Popen(
                [sys.executable, "-c", _RUN, str(shards)],
                stdout=subprocess.PIPE, text=True, env=os.environ | job | place | own,
            )
        )  # fmt: skip
    found = [json.loads(machine.communicate(timeout=100)[0]) for machine in machines]
    assert sorted(found[0][0] + found[1][0]) == keys_of_all()
    (one, other) = (set(ran) for _, ran, _ in found)
    assert one
    assert other
    assert not one & other
    assert [num_samples for _, _, num_samples in found] == [len(keys_of_all())] * 2
    for rank in range(2):
        assert len(list(Path(tmp_path, f"machine-{rank}", "indexes").glob("*.index"))) == 1
