"""The Trainer of transformers on a shoal loader: given by `get_train_dataloader`, saved by a callback, resumed exactly.

    python examples/hf_trainer.py DATA OUT

DATA is a directory of tar shards; OUT gets the checkpoints.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import shoal
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
        super().__init__(callbacks=[SaveLoader(loader)], **options)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        """The loader as it is: it knows rank and world size."""
        return self.loader


class SaveLoader(TrainerCallback):
    """Writes the state of the loader into each checkpoint."""

    def __init__(self, loader: shoal.torch.DataLoader) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the Trainer's signature
        """Beside the model."""
        path = Path(args.output_dir, f"checkpoint-{state.global_step}", "shoal.json")
        path.write_text(json.dumps(self.loader.state_dict()))


def fit(data: str, out: Path, *, num_workers: int, resume: Path | None = None) -> list[list[int]]:
    """Train two epochs, or what is left of them; the batches that were seen."""
    ds = shoal.open(data).shuffle(seed=0).with_ids().columns("__id__").rename(ids="__id__").batch(8)
    loader = shoal.torch.DataLoader(ds, num_workers=num_workers)
    if resume is not None:
        loader.load_state_dict(json.loads((resume / "shoal.json").read_text()))
    arguments = TrainingArguments(
        output_dir=str(out),
        num_train_epochs=2,
        per_device_train_batch_size=8,
        save_steps=33,
        ignore_data_skip=True,  # the loader knows where it is
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
