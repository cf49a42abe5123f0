"""Two machines that share no directory index each shard once, through the store of their torchrun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.stream.growing.growing_data import COUNTS, WINDOW, keys_of_all, write_shards

from shoal.testing import RangeServer

_RUN = """
import json, os, sys
import torch.distributed
import shoal, shoal.torch

if __name__ == "__main__":
    url, window, num_workers, out = sys.argv[1:]
    torch.distributed.init_process_group("gloo")
    dataset = shoal.open(url, index="grow").shuffle(seed=3, window=window).batch(5)
    loader = shoal.torch.DataLoader(dataset, num_workers=int(num_workers))
    keys = [key for batch in loader for key in batch["key"]]
    told = [keys, loader.stats()]
    loader.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    with open(os.path.join(out, os.environ["RANK"]), "w") as file:
        json.dump(told, file)
"""


@pytest.mark.parametrize("num_workers", [0, 1])
def test_machines_share_the_indexing(tmp_path: Path, num_workers: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(_RUN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shards = write_shards(tmp_path / "data")
    num_bytes = sum(path.stat().st_size for path in shards.iterdir())
    with RangeServer(shards) as server:
        url = f"{server.url}/{{000..{len(COUNTS) - 1:03d}}}.jsonl"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        launcher += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        machines = [
            subprocess.Popen(
                [*launcher, "--node-rank", str(node), script, url, WINDOW, str(num_workers), tmp_path],
                env=os.environ | {"SHOAL_CACHE_DIR": str(tmp_path / f"machine-{node}"), "OMP_NUM_THREADS": "1"},
            )
            for node in range(2)
        ]
        assert [machine.wait(200) for machine in machines] == [0, 0]
    found = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert sorted(key for keys, _ in found for key in keys) == keys_of_all()
    scanned = [stats["scanned_bytes"] for _, stats in found]
    assert min(scanned) > 0
    assert sum(scanned) < 1.3 * num_bytes  # a slow machine's share may be taken over
