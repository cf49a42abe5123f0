"""Accelerate: its save_state and load_state keep the position of a prepared loader."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from tests.integration.laws.notes import NUM_EPOCHS, SAVE_EVERY, Notes, arguments, dataset, latest, saved

import shoal.torch


def main() -> None:
    data, out, num_workers, _ = arguments()
    accelerator = Accelerator(cpu=True)
    notes = Notes(out, accelerator.process_index)
    loader = shoal.torch.DataLoader(dataset(data), num_workers=num_workers)
    model, loader = accelerator.prepare(torch.nn.Linear(1, 1), loader)
    name = latest(out)
    if name is not None:
        accelerator.load_state(out / name)
    step = notes.steps = 0 if name is None else int(name)
    while loader.dataset.epoch < NUM_EPOCHS:
        before = loader.state_dict()
        for batch in loader:
            notes.step(before, batch)
            accelerator.backward(model(batch["ids"][:, None].float() / 1000).mean())
            before = loader.state_dict()
            step += 1
            if step % SAVE_EVERY == 0:
                accelerator.save_state(out / f"{step:06d}")
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    saved(out, f"{step:06d}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
