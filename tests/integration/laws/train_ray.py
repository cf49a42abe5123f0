"""Ray Train: its checkpoints hold the state, and a run of the same name goes on with another number of workers."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from tests.integration.laws.notes import NUM_EPOCHS, SAVE_EVERY, Notes, arguments, dataset, saved

import shoal.torch


def train(options: dict[str, Any]) -> None:
    out = Path(options["out"])
    rank = ray.train.get_context().get_world_rank()
    notes = Notes(out, rank)
    loader = shoal.torch.DataLoader(dataset(options["data"]), num_workers=options["num_workers"])
    model = prepare_model(torch.nn.Linear(1, 1))
    step = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            told = json.loads(Path(folder, "shoal.json").read_text())
        loader.load_state_dict(told["loader"])
        step = notes.steps = told["step"]
    shoal.torch.compare_ranks(loader)
    while loader.dataset.epoch < NUM_EPOCHS:
        before = loader.state_dict()
        for batch in loader:
            notes.step(before, batch)
            model(batch["ids"][:, None].float() / 1000).mean().backward()
            before = loader.state_dict()
            step += 1
            if step % SAVE_EVERY == 0:
                save(loader, step, rank, out)


def save(loader: Any, step: int, rank: int, out: Path) -> None:
    if rank:
        ray.train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "shoal.json").write_text(json.dumps({"loader": loader.state_dict(), "step": step}))
        ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder))
    saved(out, str(step))  # for the test to count: what is complete, Ray knows


def main() -> None:
    data, out, num_workers, _ = arguments()
    size = int(os.environ["NUM_PROCESSES"])
    ray.init(num_cpus=size, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"data": data, "out": str(out), "num_workers": num_workers},
        scaling_config=ScalingConfig(num_workers=size),
        run_config=RunConfig(name="run", storage_path=str(out / "checkpoints")),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
