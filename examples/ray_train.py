"""Ray Train with a shoal loader: ranks come from Ray, and its checkpoints hold the position, for any number of workers.

    python examples/ray_train.py DATA OUT 2
    python examples/ray_train.py DATA OUT 3   # goes on with three workers, where the last run stopped

DATA is a directory of tar shards, which every worker can read under this name; OUT gets the checkpoints. The last
argument is the number of workers. A run stops after its sixth step, so that there is something to go on with.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import shoal
import shoal.torch

GLOBAL_BATCH = 12  # over all workers: another number of them sees the same batches
NUM_EPOCHS = 2
SAVE_EVERY = 3


def train(options: dict[str, Any]) -> None:
    """What each worker does."""
    ds = shoal.open(options["data"]).shuffle(seed=0).with_ids().columns("__id__").batch(global_batch_size=GLOBAL_BATCH)
    loader = shoal.torch.DataLoader(ds)
    shoal.torch.compare_ranks(loader)  # stops here if a worker was started with something else
    net = torch.nn.Linear(1, 1)
    model = prepare_model(net)
    step = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = json.loads(Path(folder, "shoal.json").read_text())
            net.load_state_dict(torch.load(Path(folder, "model.pt")))
        loader.load_state_dict(saved["loader"])  # the same on every worker
        step = saved["step"]
    stop = step + options["num_steps"]
    while ds.epoch < NUM_EPOCHS:
        before = loader.state_dict()
        for batch in loader:
            note(options, before, batch)
            model(batch["__id__"][:, None].float() / 1000).mean().backward()
            before = loader.state_dict()
            step += 1
            if step % SAVE_EVERY == 0:
                save(loader, net, step)
            if step == stop:
                return


def save(loader: shoal.torch.DataLoader, net: Any, step: int) -> None:
    """A checkpoint of Ray's; one worker writes it, and all of them report."""
    metrics = {"step": step, "epoch": loader.dataset.epoch}
    if ray.train.get_context().get_world_rank():
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "shoal.json").write_text(json.dumps({"loader": loader.state_dict(), "step": step}))
        torch.save(net.state_dict(), Path(folder, "model.pt"))
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def note(options: dict[str, Any], state: dict[str, Any], batch: dict[str, Any]) -> None:
    """What this worker is about to train on: only to show that every sample comes once."""
    rank = ray.train.get_context().get_world_rank()
    ids = batch["__id__"] if "__pad__" not in batch else batch["__id__"][~batch["__pad__"]]
    with Path(options["out"], f"seen-{rank}.jsonl").open("a") as notes:
        notes.write(json.dumps({"epoch": state["epoch"], "position": state["position"], "ids": ids.tolist()}) + "\n")


def main() -> None:
    """Train some steps with as many workers as were asked for."""
    data, out, num_workers = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute(), int(sys.argv[3])
    num_steps = int(sys.argv[4]) if len(sys.argv) > 4 else 6
    out.mkdir(parents=True, exist_ok=True)
    ray.init(num_cpus=num_workers, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"data": str(data), "out": str(out), "num_steps": num_steps},
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(name="run", storage_path=str(out / "checkpoints")),
    )
    result = trainer.fit()
    print(f"{num_workers} workers came to step {result.metrics['step']} of epoch {result.metrics['epoch']}")
    ray.shutdown()


if __name__ == "__main__":
    main()
