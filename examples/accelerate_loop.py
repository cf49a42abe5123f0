"""Accelerate leaves a shoal loader as it is: each rank gets its part from shoal, and checkpoints hold the position.

    torchrun --nproc-per-node 2 examples/accelerate_loop.py DATA OUT

DATA is a directory of tar shards; OUT gets a checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

import shoal
import shoal.torch


def main() -> None:
    """Train an epoch, stopping in the middle; every sample comes once."""
    data, out = sys.argv[1], Path(sys.argv[2])
    accelerator = Accelerator(cpu=True)
    ds = shoal.open(data).shuffle(seed=0).with_ids().columns("__id__").batch(8)
    net = torch.nn.Linear(1, 1)
    # Nothing is dealt again, and accelerator.save_state holds the position of the loader.
    model, loader = accelerator.prepare(net, shoal.torch.DataLoader(ds, num_workers=1))

    seen: list[int] = []
    for step, batch in enumerate(loader):
        loss = model(batch["__id__"][:, None].float() / 1000).mean()
        accelerator.backward(loss)
        seen += batch["__id__"].tolist()
        if step == 4:
            accelerator.save_state(out)
            accelerator.wait_for_everyone()
            break

    accelerator.load_state(out)
    for batch in loader:  # from there on
        seen += batch["__id__"].tolist()
    everything = sorted(gather_object(seen))
    assert everything == list(range(ds.num_samples))
    if accelerator.is_main_process:
        print(f"{accelerator.num_processes} ranks saw each of {len(everything)} samples once")
    accelerator.end_training()


if __name__ == "__main__":
    main()
