"""Lightning resumes in the middle of an epoch through its own checkpoint: it saves every loader that has a state.

    python examples/lightning_resume.py DATA OUT

DATA is a directory of tar shards; OUT gets the checkpoints.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import shoal
import shoal.torch


class Model(lightning.LightningModule):
    """A model that notes what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: dict[str, Any], _: int) -> Any:
        """One step."""
        self.seen.append(batch["__id__"].tolist())
        return self.layer(batch["__id__"][:, None].float() / 1000).pow(2).mean()

    def configure_optimizers(self) -> Any:
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fit(data: str, out: Path, *, num_workers: int, resume: str | None = None) -> list[list[int]]:
    """Train two epochs, or what is left of them; the batches that were seen."""
    ds = shoal.open(data).shuffle(seed=0).with_ids().columns("__id__").batch(8)
    loader = shoal.torch.DataLoader(ds, num_workers=num_workers)
    save = ModelCheckpoint(out, every_n_train_steps=33, save_top_k=-1, filename="{step}")
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[save],
    )
    model = Model()
    trainer.fit(model, loader, ckpt_path=resume, weights_only=False if resume else None)
    return model.seen


def main() -> None:
    """Train, then go on from the middle of the second epoch with other workers."""
    data, out = sys.argv[1], Path(sys.argv[2])
    whole = fit(data, out, num_workers=1)
    rest = fit(data, out, num_workers=0, resume=str(out / "step=33.ckpt"))
    assert rest == whole[33:]
    print(f"{len(whole)} steps; resumed at step 33, and saw the same {len(rest)} batches")


if __name__ == "__main__":
    main()
