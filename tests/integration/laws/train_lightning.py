"""Lightning with its DDP strategy: its checkpoints hold the loader's state, and resume from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.integration.laws.notes import GLOBAL_BATCH, NUM_EPOCHS, SAVE_EVERY, Notes, arguments, dataset, latest, saved

import shoal.torch


class Model(lightning.LightningModule):  # type: ignore[misc]  # untyped, where it is not installed
    """A model that notes what it is given."""

    def __init__(self, notes: Notes, loader: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.notes, self.loader = notes, loader

    def training_step(self, batch: dict[str, Any], _: int) -> Any:
        if not self.notes.began:
            self.notes.steps = self.trainer.global_step
        self.notes.step(before(self.loader.state_dict(), self.loader.dataset.num_samples), batch)
        return self.layer(batch["ids"][:, None].float() / 1000).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def before(state: dict[str, int], num_samples: int) -> dict[str, int]:
    """The state before the batch that was received last: whole batches lie before every batch of this job."""
    if state["position"]:
        return {"epoch": state["epoch"], "position": (state["position"] - 1) // GLOBAL_BATCH * GLOBAL_BATCH}
    return {"epoch": state["epoch"] - 1, "position": (num_samples - 1) // GLOBAL_BATCH * GLOBAL_BATCH}


class Saves(ModelCheckpoint):  # type: ignore[misc]
    """Tells the test of every checkpoint that is complete."""

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        super()._save_checkpoint(trainer, filepath)
        if trainer.is_global_zero:
            saved(Path(filepath).parent, Path(filepath).name)


def main() -> None:
    data, out, num_workers, _ = arguments()
    loader = shoal.torch.DataLoader(dataset(data), num_workers=num_workers)
    save = Saves(out, every_n_train_steps=SAVE_EVERY, save_top_k=-1, filename="{step}")
    trainer = lightning.Trainer(
        max_epochs=NUM_EPOCHS,
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["WORLD_SIZE"]),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[save],
    )
    name = latest(out)
    model = Model(Notes(out, int(os.environ["RANK"])), loader)
    trainer.fit(model, loader, ckpt_path=str(out / name) if name else None, weights_only=False if name else None)


if __name__ == "__main__":
    main()
