"""A toy training run under torchrun, which notes what it consumed before each step, and saves its place now and then.

Usage: torchrun ... train_elastic.py DATA INDEX OUT NUM_WORKERS FORM SAVE_EVERY EPOCHS
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint

import shoal
import shoal.torch
from shoal.errors import ShuffleWarning

dcp: Any = torch.distributed.checkpoint

GLOBAL_BATCH = 24
SEED = 11


def dataset(data: str, index: str) -> shoal.Dataset:
    ds = shoal.open(data, index=index)
    if os.environ.get("SHOAL_TEST_BALANCED"):
        ds = ds.split({"train": 0.7, "val": 0.3})["train"].sample(by="shard", balanced=True)
    if os.environ.get("SHOAL_TEST_MIXED"):
        halves = ds.split({"even": 0.5, "odd": 0.5})
        ds = shoal.mix(dict(halves), weights={"even": 2, "odd": 1}, epoch_size=ds.num_samples)
        ds = ds.reweight(at=200, weights={"even": 1, "odd": 3}, ramp=100).reweight(
            at=600, weights={"even": 1, "odd": 1}
        )
    if order := os.environ.get("SHOAL_TEST_ORDER"):
        ds = ds.shuffle(order, seed=SEED)
    else:
        ds = ds.shuffle(seed=SEED, window=100_000, num_canonical_nodes=2)
    return ds.with_ids().batch(global_batch_size=GLOBAL_BATCH)


def note_worker(_: int) -> None:
    Path(os.environ["SHOAL_TEST_PIDS"], str(os.getpid())).touch()


def save(out: Path, loader: shoal.torch.DataLoader, model: Any, number: int, form: str) -> None:
    """A checkpoint in a form; what `latest` names is complete."""
    name = f"{number:06d}.{form}"
    if form == "dcp":
        dcp.save({"loader": loader, "model": model.state_dict()}, checkpoint_id=out / name)
    elif dist.get_rank() == 0:
        (out / name).write_text(json.dumps(loader.state_dict()))
    if dist.get_rank() == 0:
        (out / "latest.part").write_text(name)
        (out / "latest.part").rename(out / "latest")


def restore(out: Path, loader: shoal.torch.DataLoader, model: Any) -> int:
    """The number of the checkpoint that was loaded, 0 for none."""
    if not (out / "latest").exists():
        return 0
    name = (out / "latest").read_text()
    if name.endswith(".dcp"):
        state = {"loader": loader, "model": model.state_dict()}
        dcp.load(state, checkpoint_id=out / name)
        model.load_state_dict(state["model"])
    else:
        loader.load_state_dict(json.loads((out / name).read_text()))
    return int(name[:6])


def main() -> None:
    data, index, out_name, num_workers, form, save_every, num_epochs = sys.argv[1:]
    out = Path(out_name)
    warnings.simplefilter("ignore", ShuffleWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (out / "pids" / str(os.getpid())).touch()
    (out / f"rank-{rank}.pid").write_text(str(os.getpid()))
    options: dict[str, Any] = {"worker_init_fn": note_worker} if int(num_workers) else {}
    loader = shoal.torch.DataLoader(dataset(data, index), num_workers=int(num_workers), **options)
    shoal.torch.compare_ranks(loader)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    number = restore(out, loader, model)
    run = f"{number:06d}-{os.environ['TORCHELASTIC_RUN_ID']}"
    with (out / f"log-{run}-{rank}.jsonl").open("a") as log:
        while loader.dataset.epoch < int(num_epochs):
            before = loader.state_dict()
            for batch in loader:
                real = ~batch["__pad__"] if "__pad__" in batch else torch.ones(len(batch["__id__"]), dtype=torch.bool)
                entry = {"at": [before["epoch"], before["position"]], "ids": batch["__id__"][real].tolist()}
                log.write(json.dumps(entry) + "\n")
                log.flush()
                # Gradients meet here: a rank that comes out knows that all have noted their batch.
                time.sleep(0.005)
                model(batch["__id__"][:, None].float() / 1000).mean().backward()
                before = loader.state_dict()
                number += 1
                if number % int(save_every) == 0:
                    save(out, loader, model, number, form)
    if rank == 0:
        (out / "done").touch()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
