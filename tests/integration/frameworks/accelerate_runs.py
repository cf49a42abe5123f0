"""accelerate, in the loop of its documentation."""

from __future__ import annotations

import itertools
from typing import Any

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from tests.integration.frameworks.runs import Run, loss, model

NUM_EPOCHS = 3


class Job:
    """A model, its optimizer and its loader, prepared."""

    def __init__(self, run: Run, *, accumulate: int = 1, loader: Any = None, **configuration: Any) -> None:
        AcceleratorState._reset_state()
        GradientState._reset_state()
        self.run = run
        told = DataLoaderConfiguration(**configuration)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, dataloader_config=told)
        layer = model()
        optimizer = run.optimizer(layer.parameters())
        given = (layer, optimizer, run.loader() if loader is None else loader, run.scheduler(optimizer))
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(*given)

    def epoch(self, epoch: int, loader: Any = None, *, limit: int | None = None, until: int | None = None) -> None:
        """Train for an epoch; save after a number of batches of it, and end after one more."""
        for step, batch in enumerate(self.loader if loader is None else loader, start=1):
            self.run.batch(epoch, batch)
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(loss(self.model, batch))
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            if step == until:
                self.save()
            if step in {limit, (until or -2) + 1}:
                break

    def save(self) -> None:
        """Write a checkpoint."""
        self.accelerator.save_state(str(self.run.out / "state"))
        self.accelerator.wait_for_everyone()
        self.run.saved("state")

    def load(self) -> None:
        """Begin from the checkpoint."""
        self.run.leg("state")
        self.accelerator.load_state(str(self.run.out / "state"))


def train(run: Run, *, limit: int | None = None, sets_epoch: bool = False, **options: Any) -> None:
    """All epochs, with one loader."""
    run.leg()
    job = Job(run, **options)
    run.fact("len(loader)", len(job.loader))
    for epoch in range(NUM_EPOCHS):
        if sets_epoch:
            job.loader.set_epoch(epoch)
        job.epoch(epoch, limit=limit)


def whole(run: Run) -> None:
    train(run)


def persistent(run: Run) -> None:
    train(run, loader=run.loader(persistent_workers=True))


def limit_break(run: Run) -> None:
    train(run, limit=5)


def limit_set_epoch(run: Run) -> None:
    train(run, limit=5, sets_epoch=True)


def limit_islice(run: Run) -> None:
    run.leg()
    job = Job(run)
    for epoch in range(NUM_EPOCHS):
        job.epoch(epoch, itertools.islice(job.loader, 5))


def accumulation(run: Run) -> None:
    train(run, accumulate=4)


def split_batches(run: Run) -> None:
    """One batch of the loader is divided among all ranks."""
    train(run, split_batches=True)


def dispatch_batches(run: Run) -> None:
    """Rank 0 reads for all ranks."""
    train(run, dispatch_batches=True)


def stateful(run: Run) -> None:
    train(run, use_stateful_dataloader=True)


def metrics(run: Run) -> None:
    """An evaluation of 145 samples after each epoch; the last batch is not whole on all ranks."""
    run.leg()
    job = Job(run)
    evaluation = job.accelerator.prepare(run.loader(shuffle=False, num_samples=145))
    for epoch in range(NUM_EPOCHS):
        job.epoch(epoch)
        for batch in evaluation:
            ids = job.accelerator.gather_for_metrics(batch["ids"])
            run.ids(epoch, ids.tolist(), "gathered")


def resume_skip(run: Run) -> None:
    """As the documentation resumes without stateful loaders: the epoch is named, and its first batches are skipped."""
    run.leg()
    job = Job(run)
    for epoch, until in ((0, None), (1, 7)):
        job.loader.set_epoch(epoch)
        job.epoch(epoch, until=until)
    job = Job(run)
    job.load()
    job.loader.set_epoch(1)
    job.epoch(1, job.accelerator.skip_first_batches(job.loader, 7))
    job.loader.set_epoch(2)
    job.epoch(2)


def resume_skip_unnamed(run: Run) -> None:
    """The same, and nobody names the epoch."""
    run.leg()
    job = Job(run)
    job.epoch(0)
    job.epoch(1, until=7)
    job = Job(run)
    job.load()
    job.epoch(1, job.accelerator.skip_first_batches(job.loader, 7))
    job.epoch(2)


def resume_stateful(run: Run) -> None:
    """The state of the loader is in the checkpoint."""
    run.leg()
    job = Job(run, use_stateful_dataloader=True)
    job.epoch(0)
    job.epoch(1, until=7)
    job = Job(run, use_stateful_dataloader=True)
    job.load()
    job.epoch(1)
    job.epoch(2)


def resume_end(run: Run) -> None:
    """The checkpoint of an epoch's end."""
    run.leg()
    job = Job(run, use_stateful_dataloader=True)
    job.epoch(0)
    job.save()
    job = Job(run, use_stateful_dataloader=True)
    job.load()
    job.epoch(1)
    job.epoch(2)


def resume_last_batch(run: Run) -> None:
    """The checkpoint is written after the last batch of an epoch, within its loop: the next epoch is due."""
    run.leg()
    job = Job(run, use_stateful_dataloader=True)
    job.epoch(0, until=len(job.loader))
    job = Job(run, use_stateful_dataloader=True)
    job.load()
    for epoch in (1, 2):
        job.epoch(epoch)


def killed(run: Run) -> None:
    """One job that is killed in the second epoch, and started again by the same script."""
    job = Job(run, use_stateful_dataloader=True)
    begin = 0
    if (run.out / "state").exists():
        job.load()
        begin = 1
    else:
        run.leg()
    for epoch in range(begin, NUM_EPOCHS):
        if epoch == 1 and not begin:
            job.epoch(1, until=7)
            run.kill_at(1)
        job.epoch(epoch)
