"""Train a small classifier on tar shards with torch, on any number of processes, and go on after any stop.

    torchrun --nproc-per-node 2 examples/torch_ddp.py DATA CHECKPOINT
    torchrun --nproc-per-node 3 examples/torch_ddp.py DATA CHECKPOINT   # goes on, at another size

DATA is a directory of tar shards with the fields txt and cls. The checkpoint is written every few steps; stop the job
when you like. Without torchrun it runs in one process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import shoal
import shoal.torch

GLOBAL_BATCH = 24  # over all ranks: another number of them sees the same batches
NUM_EPOCHS = 2
SAVE_EVERY = 5


def features(sample: dict[str, bytes]) -> dict[str, object]:
    """A text as counts of its letters, and its class."""
    text = torch.frombuffer(bytearray(sample["txt"]), dtype=torch.uint8)
    return {"x": torch.bincount(text, minlength=128)[:128].float().numpy(), "y": int(sample["cls"])}


def main() -> None:
    """Train, and save where we are."""
    data, checkpoint = sys.argv[1], Path(sys.argv[2])
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0

    ds = shoal.open(data).shuffle(seed=0, window="1GiB").map(features).batch(global_batch_size=GLOBAL_BATCH)
    loader = shoal.torch.DataLoader(ds, num_workers=1)
    shoal.torch.compare_ranks(loader)  # stops here if a rank was started with something else

    model = torch.nn.Linear(128, 10)
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # the same file on every rank
        step = saved["step"]

    while ds.epoch < NUM_EPOCHS:
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(wrapped(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0 and rank == 0:
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                part = checkpoint.with_suffix(".part")
                torch.save({**saved, "loader": loader.state_dict(), "step": step}, part)
                part.rename(checkpoint)  # a stop in the middle leaves the old one
                print(f"epoch {ds.epoch}, step {step}: loss {loss.item():.3f}")

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
