"""What the training script of every framework does alike: its loaders, and what it writes down.

A cell is a function of a framework's module, started by ``start.py``. Each cell trains on 150 samples with one kind of
loader, "torch" or "shoal". It writes what happened as JSON lines, one file a cell
and rank: the batches, the updates of the optimizer with their learning rate, the checkpoints, the beginning of each leg
(a run of the job; the first, and one for each resume), and what the framework says about lengths.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
import torch.utils.data

import shoal
import shoal.torch

NUM_SAMPLES, BATCH = 150, 8
RANK = int(os.environ.get("RANK", "0"))


class Ids(torch.utils.data.Dataset):
    """Samples in memory, each its own number."""

    def __init__(self, num_samples: int = NUM_SAMPLES, **more: Any) -> None:
        self.num_samples, self.more = num_samples, more

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.num_samples:
            raise IndexError(index)
        return {"ids": index, **self.more}


def dataset(data: str, *, shuffle: bool = True, num_samples: int = NUM_SAMPLES) -> shoal.Dataset:
    """The same samples from shards."""
    ds = shoal.open(data)
    ds = ds if num_samples == NUM_SAMPLES else ds.take(num_samples)
    ds = ds.shuffle(seed=0) if shuffle else ds
    return ds.with_ids().columns("__id__").rename(ids="__id__")


def class_of(stateful: bool) -> Any:
    """torch's loader, or that of torchdata."""
    if not stateful:
        return torch.utils.data.DataLoader
    from torchdata.stateful_dataloader import StatefulDataLoader  # few scripts need it

    return StatefulDataLoader


class Run:
    """One cell: gives its loaders, and writes down what happens."""

    def __init__(self, kind: str, data: str, out: Path, num_workers: int, cell: str) -> None:
        self.kind, self.data, self.out, self.num_workers, self.cell = kind, data, out / cell, num_workers, cell
        self.out.mkdir(parents=True, exist_ok=True)
        self.path = out / f"{cell}-{RANK}.jsonl"
        self.is_restarted = self.path.exists()
        self._file = self.path.open("a")

    def loader(
        self,
        *,
        shuffle: bool = True,
        batch: int = BATCH,
        stateful: bool = False,
        num_samples: int = NUM_SAMPLES,
        **options: Any,
    ) -> Any:
        """A loader of this kind; ``stateful`` takes torchdata's for that of torch."""
        options = {"num_workers": self.num_workers, **options}
        if self.kind == "shoal":
            return shoal.torch.DataLoader(
                dataset(self.data, shuffle=shuffle, num_samples=num_samples).batch(batch), **options
            )
        return class_of(stateful)(Ids(num_samples), batch_size=batch, shuffle=shuffle, **options)

    def leg(self, checkpoint: str | None = None) -> None:
        """A run of the job begins, perhaps from a checkpoint."""
        self._write(leg=checkpoint)

    def batch(self, epoch: int, batch: Any, stream: str = "train") -> None:
        """A batch has come, in an epoch as the framework counts it."""
        ids, repeats = batch["ids"], batch.get("__pad__")
        self._write(batch=(ids if repeats is None else ids[~repeats]).tolist(), epoch=epoch, stream=stream)

    def ids(self, epoch: int, ids: list[int], stream: str = "train") -> None:
        """The same for ids that are no batch of a loader."""
        self._write(batch=ids, epoch=epoch, stream=stream)

    def saved(self, checkpoint: str) -> None:
        """A checkpoint is complete."""
        self._write(saved=checkpoint)

    def fact(self, name: str, value: Any) -> None:
        """What the framework says of a length."""
        self._write(fact=name, value=value)

    def updated(self, rate: float) -> None:
        """The optimizer has stepped, with this learning rate."""
        self._write(update=round(rate, 12))

    def kill_at(self, num_batches: int) -> None:
        """End this process as `kill -9` does, if it has written down so many batches and was not started again."""
        if not self.is_restarted and self.path.read_text().count('"batch"') >= num_batches:
            os.kill(os.getpid(), 9)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """An optimizer that writes down its updates."""
        updated = self.updated

        class Noting(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                loss = super().step(closure)
                updated(self.param_groups[0]["lr"])
                return loss

        return Noting(parameters, lr=0.1)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """A learning rate that tells the number of steps."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    def warned(self, text: str) -> None:
        """Something of shoal's was logged."""
        self._write(warned=text)

    def failed(self, error: BaseException) -> None:
        """The cell ended with an error."""
        self._write(error=f"{type(error).__name__}: {error}"[:400])

    def _write(self, **entry: Any) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


class Warnings(logging.Handler):
    """Writes down what shoal logs."""

    def __init__(self, run: Run) -> None:
        super().__init__(logging.WARNING)
        self.run = run

    def emit(self, record: logging.LogRecord) -> None:
        self.run.warned(record.getMessage())


def model() -> torch.nn.Module:
    """One number."""
    return torch.nn.Linear(1, 1)


def loss(layer: Any, batch: Any) -> Any:
    """A loss of every sample of a batch."""
    return layer(batch["ids"][:, None].float() / 1000).pow(2).mean()
