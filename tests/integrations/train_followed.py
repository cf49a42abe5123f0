"""A rank of a toy run whose source changes, which saves its place and what it delivered after each step.

It follows a directory of shards, or stays with the version of a table that it began with.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import shoal
import shoal.torch
from shoal.errors import ShuffleWarning

SAVED_AT = 2  # steps before the end: what comes after the last checkpoint is lost, and done again


def dataset(data: Path) -> shoal.Dataset:
    follows = not (data / "_delta_log").exists()
    return shoal.open(str(data), follow=follows).shuffle(seed=11, window="32KiB").batch(4)


def run(out: Path, number: int, num_workers: int, steps: int) -> None:
    """Run leg ``number`` from what the leg before saved; after some steps this rank is killed."""
    warnings.simplefilter("ignore", ShuffleWarning)
    rank = int(os.environ["RANK"])
    loader = shoal.torch.DataLoader(dataset(out / "data"), num_workers=num_workers, persistent_workers=num_workers > 0)
    if number:
        before = json.loads((out / f"saved-{number - 1}-0.json").read_text())
        loader.load_state_dict(before["state"])
    steps_left, delivered = steps, []
    while steps_left:
        epoch = loader.dataset.epoch
        for batch in loader:
            again = batch["__pad__"].tolist() if "__pad__" in batch else [False] * len(batch["id"])
            ids = [i for i, is_repeat in zip(batch["id"].tolist(), again, strict=True) if not is_repeat]
            delivered.append((epoch, ids))
            steps_left -= 1
            if steps_left >= SAVED_AT:
                saved = {"state": loader.state_dict(), "delivered": delivered}
                path = out / f"saved-{number}-{rank}.json"
                path.with_suffix(".tmp").write_text(json.dumps(saved))
                path.with_suffix(".tmp").replace(path)
            if not steps_left:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:]))
