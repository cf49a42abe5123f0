"""What every training script of the laws does alike: its data, its settings, and what it writes down for the test.

Usage: SCRIPT DATA OUT NUM_WORKERS FORM, with ``SHOAL_LEG`` naming the run. Each rank writes where it began, and before
each step which samples it has.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import shoal
from shoal.errors import ShuffleWarning

GLOBAL_BATCH = 12
NUM_EPOCHS = 2
SAVE_EVERY = 3


def dataset(data: str, *, remainder: str = "keep") -> shoal.Dataset:
    """477 samples in shuffled order, in batches that are the same at any number of ranks."""
    warnings.simplefilter("ignore", ShuffleWarning)
    ds = shoal.open(data).shuffle(seed=11, window=400_000, num_canonical_nodes=2)
    ds = ds.with_ids().columns("__id__").rename(ids="__id__")
    return ds.batch(global_batch_size=GLOBAL_BATCH, remainder=remainder)


def arguments() -> tuple[str, Path, int, str]:
    """The command line."""
    data, out, num_workers, form = sys.argv[1:]
    return data, Path(out), int(num_workers), form


@dataclass
class Notes:
    """The notes of one rank.

    ``steps`` are those that the checkpoint counts, by the framework's own count and not by the loader's.
    """

    out: Path
    rank: int
    steps: int = 0
    began: bool = False
    _file: TextIO = field(init=False)

    def __post_init__(self) -> None:
        leg = os.environ["SHOAL_LEG"]
        (self.out / f"pid-{leg}-{self.rank}").write_text(str(os.getpid()))
        self._file = (self.out / f"notes-{leg}-{self.rank}.jsonl").open("a")

    def step(self, state: Mapping[str, Any], batch: Mapping[str, Any], seconds: float = 0.01) -> None:
        """Before a step: the state that was in force before its batch came, and the batch."""
        if not self.began:
            self._write({"begin": [state["epoch"], state["position"]], "steps": self.steps})
            self.began = True
        ids, repeats = np.asarray(batch["ids"]), batch.get("__pad__")
        kept = ids if repeats is None else ids[~np.asarray(repeats)]
        self._write({"at": [state["epoch"], state["position"]], "ids": kept.tolist()})
        time.sleep(seconds)

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def saved(out: Path, name: str) -> None:
    """A checkpoint is complete: called by one rank."""
    (out / "latest.part").write_text(name)
    (out / "latest.part").rename(out / "latest")
    with (out / "saves").open("a") as saves:
        saves.write(f"{name}\n")


def latest(out: Path) -> str | None:
    """The name of the newest complete checkpoint."""
    return (out / "latest").read_text() if (out / "latest").exists() else None
