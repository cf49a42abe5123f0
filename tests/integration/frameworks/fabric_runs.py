"""Lightning's Fabric, in the loop of its documentation."""

from __future__ import annotations

import os
from typing import Any

from lightning.fabric import Fabric
from tests.integration.frameworks.runs import Run, loss, model

NUM_EPOCHS = 3
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


class Job:
    """A model, its optimizer and its loader, set up."""

    def __init__(self, run: Run, *, stateful: bool = False, **options: Any) -> None:
        self.run = run
        strategy = "ddp" if WORLD_SIZE > 1 else "auto"
        self.fabric = Fabric(accelerator="cpu", devices=WORLD_SIZE, strategy=strategy)
        self.fabric.launch()
        layer = model()
        optimizer = run.optimizer(layer.parameters())
        self.scheduler = run.scheduler(optimizer)
        self.model, self.optimizer = self.fabric.setup(layer, optimizer)
        self.loader = self.fabric.setup_dataloaders(run.loader(stateful=stateful, **options))

    def epoch(
        self, epoch: int, *, limit: int | None = None, until: int | None = None, accumulate: int = 1, skip: int = 0
    ) -> None:
        """Train for an epoch; save after a number of batches of it, and end after one more."""
        for step, batch in enumerate(self.loader, start=1):
            if step <= skip:
                continue
            self.run.batch(epoch, batch)
            is_accumulating = bool(step % accumulate)
            with self.fabric.no_backward_sync(self.model, enabled=is_accumulating):
                self.fabric.backward(loss(self.model, batch))
            if not is_accumulating:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
            if step == until:
                self.save()
            if step in {limit, (until or -2) + 1}:
                break

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "loader": self.loader}

    def save(self) -> None:
        """Write a checkpoint."""
        self.fabric.save(self.run.out / "state", self.state())
        self.run.saved("state")

    def load(self) -> None:
        """Begin from the checkpoint."""
        self.run.leg("state")
        self.fabric.load(self.run.out / "state", self.state())


def train(run: Run, *, limit: int | None = None, accumulate: int = 1, **options: Any) -> None:
    """All epochs, with one loader."""
    run.leg()
    job = Job(run, **options)
    run.fact("len(loader)", len(job.loader))
    for epoch in range(NUM_EPOCHS):
        job.epoch(epoch, limit=limit, accumulate=accumulate)


def whole(run: Run) -> None:
    train(run)


def persistent(run: Run) -> None:
    train(run, persistent_workers=True)


def limit_break(run: Run) -> None:
    train(run, limit=5)


def accumulation(run: Run) -> None:
    train(run, accumulate=4)


def validation(run: Run) -> None:
    """A second loader, run whole after each epoch."""
    run.leg()
    job = Job(run)
    evaluation = job.fabric.setup_dataloaders(run.loader(shuffle=False))
    for epoch in range(NUM_EPOCHS):
        job.epoch(epoch)
        for batch in evaluation:
            run.batch(epoch, batch, "validation")


def resume_middle(run: Run) -> None:
    """The state of the loader is in the checkpoint; torch's is torchdata's."""
    run.leg()
    job = Job(run, stateful=True)
    job.epoch(0)
    job.epoch(1, until=7)
    job = Job(run, stateful=True)
    job.load()
    for epoch in (1, 2):
        job.epoch(epoch)


def resume_end(run: Run) -> None:
    """The checkpoint of an epoch's end."""
    run.leg()
    job = Job(run, stateful=True)
    job.epoch(0)
    job.save()
    job = Job(run, stateful=True)
    job.load()
    for epoch in (1, 2):
        job.epoch(epoch)


def resume_last_batch(run: Run) -> None:
    """The checkpoint is written after the last batch of an epoch, within its loop: the next epoch is due."""
    run.leg()
    job = Job(run, stateful=True)
    job.epoch(0, until=len(job.loader))
    job = Job(run, stateful=True)
    job.load()
    for epoch in (1, 2):
        job.epoch(epoch)


def killed(run: Run) -> None:
    """One job that is killed in the second epoch, and started again by the same script."""
    job = Job(run, stateful=True)
    is_restart = (run.out / "state").exists()
    if is_restart:
        job.load()
    else:
        run.leg()
    for epoch in range(int(is_restart), NUM_EPOCHS):
        if epoch == 1 and not is_restart:
            job.epoch(1, until=7)
            run.kill_at(1)
        job.epoch(epoch)
