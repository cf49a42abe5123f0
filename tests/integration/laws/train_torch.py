"""Plain torch: a loop with DistributedDataParallel; checkpoints of torch.distributed.checkpoint, or plain JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from tests.integration.laws.notes import NUM_EPOCHS, SAVE_EVERY, Notes, arguments, dataset, latest, saved

import shoal.torch

dcp: Any = torch.distributed.checkpoint


def save(out: Path, loader: Any, model: Any, step: int, form: str) -> None:
    name = f"{step:06d}.{form}"
    if form == "dcp":
        dcp.save({"loader": loader, "model": model.state_dict()}, checkpoint_id=out / name)
    elif dist.get_rank() == 0:
        (out / name).write_text(json.dumps(loader.state_dict()))
    if dist.get_rank() == 0:
        saved(out, name)


def restore(out: Path, loader: Any, model: Any) -> int:
    name = latest(out)
    if name is None:
        return 0
    if name.endswith("dcp"):
        state = {"loader": loader, "model": model.state_dict()}
        dcp.load(state, checkpoint_id=out / name)
        model.load_state_dict(state["model"])
    else:
        loader.load_state_dict(json.loads((out / name).read_text()))
    return int(name[:6])


def main() -> None:
    data, out, num_workers, form = arguments()
    dist.init_process_group("gloo")
    notes = Notes(out, dist.get_rank())
    loader = shoal.torch.DataLoader(dataset(data), num_workers=num_workers)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    step = notes.steps = restore(out, loader, model)
    shoal.torch.compare_ranks(loader)
    while loader.dataset.epoch < NUM_EPOCHS:
        before = loader.state_dict()
        for batch in loader:
            notes.step(before, batch)
            model(batch["ids"][:, None].float() / 1000).mean().backward()  # here ranks meet
            before = loader.state_dict()
            step += 1
            if step % SAVE_EVERY == 0:
                save(out, loader, model, step, form)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
