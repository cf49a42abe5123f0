"""The Trainer of transformers on a shoal loader: given by `get_train_dataloader`, and resumed exactly.

    python examples/hf_trainer.py DATA OUT

DATA is a directory of tar shards; OUT gets the checkpoints.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

import shoal
import shoal.huggingface
import shoal.torch


class Model(torch.nn.Module):
    """A model that notes what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, ids: Any, **_: Any) -> dict[str, Any]:
        """The loss."""
        self.seen.append(ids.tolist())
        return {"loss": self.layer(ids[:, None].float() / 1000).pow(2).mean()}


class ShoalTrainer(Trainer):
    """A Trainer that takes its batches from a loader, and shares nothing out."""

    def __init__(self, loader: shoal.torch.DataLoader, **options: Any) -> None:
        super().__init__(callbacks=[shoal.huggingface.position_saver(loader)], **options)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        """The loader as it is: it knows rank and world size."""
        return self.loader


def fit(data: str, out: Path, *, num_workers: int, resume: Path | None = None) -> list[list[int]]:
    """Train two epochs, or what is left of them; the batches that were seen."""
    ds = shoal.open(data).shuffle(seed=0).with_ids().columns("__id__").rename(ids="__id__").batch(8)
    loader = shoal.torch.DataLoader(ds, num_workers=num_workers)
    arguments = TrainingArguments(
        output_dir=str(out),
        num_train_epochs=2,
        per_device_train_batch_size=8,
        save_steps=33,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    model = Model()
    ShoalTrainer(loader, model=model, args=arguments).train(resume_from_checkpoint=str(resume) if resume else None)
    return model.seen


def main() -> None:
    """Train, then go on from the middle of the second epoch with other workers."""
    data, out = sys.argv[1], Path(sys.argv[2])
    whole = fit(data, out, num_workers=1)
    rest = fit(data, out, num_workers=0, resume=out / "checkpoint-33")
    assert rest == whole[33:]
    print(f"{len(whole)} steps; resumed at step 33, and saw the same {len(rest)} batches")


if __name__ == "__main__":
    main()
