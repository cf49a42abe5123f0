"""The Trainer of transformers: a callback of shoal keeps the loader's position in its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from tests.integration.laws.notes import NUM_EPOCHS, SAVE_EVERY, Notes, arguments, dataset, latest, saved
from transformers import Trainer, TrainerCallback, TrainingArguments

import shoal.huggingface
import shoal.torch


class Model(torch.nn.Module):
    """A model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, ids: Any, **_: Any) -> dict[str, Any]:
        return {"loss": self.layer(ids[:, None].float() / 1000).mean()}


class Noting:
    """The loader, with a note of every batch as the Trainer takes it."""

    def __init__(self, loader: Any, notes: Notes, trainer: Any) -> None:
        self.loader, self.notes, self.trainer = loader, notes, trainer

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        # The Trainer takes the batches of a step together, then trains on them: so none is ahead of its step.
        before = self.loader.state_dict()
        for batch in self.loader:
            if not self.notes.began:
                self.notes.steps = self.trainer.state.global_step
            self.notes.step(before, batch)
            before = self.loader.state_dict()
            yield batch


class ShoalTrainer(Trainer):  # type: ignore[misc]  # untyped, where it is not installed
    """A Trainer that takes its batches from a loader."""

    source: Any = None

    def get_train_dataloader(self) -> Any:
        return self.source


class Told(TrainerCallback):  # type: ignore[misc]
    """Tells the test of every checkpoint that is complete."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            saved(self.out, f"checkpoint-{state.global_step}")


def main() -> None:
    data, out, num_workers, _ = arguments()
    settings = TrainingArguments(
        output_dir=str(out),
        num_train_epochs=NUM_EPOCHS,
        save_steps=SAVE_EVERY,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_only_model=False,
    )
    loader = shoal.torch.DataLoader(dataset(data), num_workers=num_workers)
    name = latest(out)
    callbacks = [shoal.huggingface.position_saver(loader), Told(out)]
    trainer = ShoalTrainer(model=Model(), args=settings, callbacks=callbacks)
    trainer.source = Noting(loader, Notes(out, int(os.environ.get("RANK", "0"))), trainer)
    trainer.train(resume_from_checkpoint=str(out / name) if name else None)


if __name__ == "__main__":
    main()
