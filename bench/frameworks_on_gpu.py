"""Batches on the GPU, and their order, in Accelerate, Lightning, Fabric and the Trainer of transformers.

``python bench/frameworks_on_gpu.py`` trains a linear model for two epochs of 19 batches in each, with and without
workers and pinned memory, resumes Lightning in the middle of an epoch, and compares every batch with
`Dataset.batch_ids`. Without a GPU it does the same on the CPU. Frameworks that are not installed are left out, and
named.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shoal
import shoal.torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, NUM_SHARDS, SAMPLES_PER_SHARD = 8, 3, 50


def write(directory: str) -> str:
    """Write JSON Lines."""
    for shard in range(NUM_SHARDS):
        numbers = range(shard * SAMPLES_PER_SHARD, (shard + 1) * SAMPLES_PER_SHARD)
        lines = [json.dumps({"id": number, "x": [float(number), 1.0]}) + "\n" for number in numbers]
        Path(directory, f"{shard}.jsonl").write_text("".join(lines), encoding="utf-8")
    return directory


def as_arrays(sample: dict[str, Any]) -> dict[str, Any]:
    """Make an array of ``x``."""
    return {"id": sample["id"], "x": np.array(sample["x"], dtype=np.float32)}


class Check:
    """What was trained on, and what the order says."""

    def __init__(self, directory: str) -> None:
        self._open = lambda: shoal.open(directory).shuffle(seed=3).map(as_arrays).batch(BATCH)
        self.dataset = self._open()
        self.model, self.seen, self.devices = torch.nn.Linear(2, 1), list[Any](), set[str]()

    def loader(self, num_workers: int = 0, *, pin_memory: bool = True) -> Any:
        """Return a new loader of a new dataset, as in a script of its own."""
        self.seen, self.devices = [], set()
        return shoal.torch.DataLoader(self._open(), num_workers=num_workers, pin_memory=pin_memory)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        """Note a batch, and return the loss of a model."""
        self.seen.append(batch["id"].tolist())
        self.devices |= {batch["id"].device.type, batch["x"].device.type}
        return model(batch["x"]).mean()

    def compare(self, name: str, first: int, stop: int) -> None:
        """Print whether the batches were those from step ``first`` of the run on, on the device."""
        steps = len(self.dataset)
        due = [self.dataset.batch_ids(step % steps, epoch=step // steps).tolist() for step in range(first, stop)]
        is_right = self.seen == due and self.devices == {DEVICE}
        print(f"{name:44} {'as due' if is_right else f'DIFFERS: {self.devices}, {self.seen[:2]}, due {due[:2]}'}")


def accelerate(check: Check) -> None:
    """Prepare the loader, and seek in it."""
    from accelerate import Accelerator  # noqa: PLC0415

    for num_workers, pin_memory in ((0, False), (0, True), (2, True)):
        accelerator = Accelerator()
        optimizer = torch.optim.SGD(check.model.parameters(), 0.01)
        loader = check.loader(num_workers, pin_memory=pin_memory)
        model, optimizer, loader = accelerator.prepare(check.model, optimizer, loader)
        for _ in range(2):
            for batch in loader:
                accelerator.backward(check.loss(model, batch))
                optimizer.step()
                optimizer.zero_grad()
        check.compare(f"accelerate, {num_workers} workers, pin_memory={pin_memory}", 0, 38)
        check.seen = []
        for batch in accelerator.skip_first_batches(loader, 5):
            check.loss(model, batch)
        check.compare(f"skip_first_batches, {num_workers} workers", 43, 57)


def lightning(check: Check) -> None:
    """Fit, and resume in the middle of the second epoch."""
    try:
        import lightning.pytorch as pl  # noqa: PLC0415
    except ImportError:
        import pytorch_lightning as pl  # noqa: PLC0415

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: dict[str, Any], _: int) -> Any:
            return check.loss(self.layer, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    with tempfile.TemporaryDirectory() as out:
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        options = {"devices": 1, "enable_checkpointing": False, "default_root_dir": out, **quiet}
        for num_workers in (0, 2):
            for first, stop in ((0, 25), (25, 45)):
                trainer = pl.Trainer(max_steps=stop, **options)
                trainer.fit(Model(), check.loader(num_workers), ckpt_path=f"{out}/state" if first else None)
                trainer.save_checkpoint(f"{out}/state")
                check.compare(f"lightning, {num_workers} workers, steps {first} to {stop}", first, stop)


def fabric(check: Check) -> None:
    """Set the loader up."""
    try:
        from lightning.fabric import Fabric  # noqa: PLC0415
    except ImportError:
        from lightning_fabric import Fabric  # noqa: PLC0415
    loader = Fabric(devices=1).setup_dataloaders(check.loader(2))
    model = check.model.to(DEVICE)
    for _ in range(2):
        for batch in loader:
            check.loss(model, batch)
    check.compare("fabric, 2 workers", 0, 38)


def transformers(check: Check) -> None:
    """Train by the Trainer."""
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, id: Any, x: Any) -> dict[str, Any]:  # noqa: A002  # names of the batch's fields
            return {"loss": check.loss(self.layer, {"id": id, "x": x})}

    class OurTrainer(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(check.loader(2))

    with tempfile.TemporaryDirectory() as out:
        options = {"num_train_epochs": 2, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
        arguments = TrainingArguments(output_dir=out, remove_unused_columns=False, **options)
        OurTrainer(model=Model(), args=arguments, train_dataset=[0]).train()
    check.compare("transformers, 2 workers", 0, 38)


def main() -> None:
    warnings.simplefilter("ignore")
    print(torch.cuda.get_device_name(0) if DEVICE == "cuda" else "no GPU: on the CPU", f"torch {torch.__version__}")
    runs: tuple[Callable[[Check], None], ...] = (accelerate, lightning, fabric, transformers)
    for run in runs:
        with tempfile.TemporaryDirectory() as directory:
            try:
                run(Check(write(directory)))
            except ImportError as error:
                print(f"{run.__name__:44} left out: {error}")


if __name__ == "__main__":
    main()
