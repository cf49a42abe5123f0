"""A toy run of fine-tuning that may be killed at any moment: ``train_on_chats.py HOME WORLD_SIZE NUM_WORKERS``.

Ranks take turns in this process, each with its own worker processes. Each global batch is noted with its position, and
the state is saved after each; a file ``done`` ends the run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import shoal
import shoal.torch

LENGTH, GLOBAL_BATCH = 64, 6
WEIGHTS = {"help": 2.0, "share": 1.0, "calls": 1.0}


def dataset(home: Path) -> shoal.Dataset:
    """Three sets of conversations, mixed, turned into tokens by a template, and packed with their masks."""
    mixed = shoal.mix({name: shoal.open(home / name) for name in WEIGHTS}, weights=WEIGHTS, epoch_size=220)
    shuffled: shoal.Dataset = mixed.shuffle(seed=3, window="1MiB")
    tuned = shuffled.chat_tokens(home / "model", train_on="assistant")
    return tuned.pack_sequences(LENGTH, strategy="best_fit", fields=["loss_mask"]).batch(global_batch_size=GLOBAL_BATCH)


def learned(batches: Iterable[dict[str, Any]]) -> list[list[int]]:
    """The learned tokens of each sequence, repeats of other ranks left out."""
    rows = []
    for batch in batches:
        tokens, mask = np.asarray(batch["tokens"]), np.asarray(batch["loss_mask"])
        is_repeat = np.asarray(batch.get("__pad__", np.zeros(len(tokens), dtype=bool)))
        rows += [tokens[row][mask[row]].tolist() for row in np.flatnonzero(~is_repeat)]
    return rows


def train(home: Path, world_size: int, num_workers: int) -> None:
    """Run to the end of an epoch, from the saved state if there is one."""
    parts = [dataset(home).partition(rank=rank, world_size=world_size) for rank in range(world_size)]
    loaders = [shoal.torch.DataLoader(part, num_workers=num_workers) for part in parts]
    saved = home / "state.json"
    if saved.exists():
        for loader in loaders:
            loader.load_state_dict(json.loads(saved.read_text()))
    position = loaders[0].state_dict()["position"]
    with (home / "log.jsonl").open("a") as log:
        for batches in zip(*loaders, strict=True):
            log.write(json.dumps([position, learned(batches)]) + "\n")
            log.flush()
            state = loaders[0].state_dict()
            (home / "state.new").write_text(json.dumps(state))
            os.replace(home / "state.new", saved)  # noqa: PTH105
            position = state["position"]
    (home / "done").touch()


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
