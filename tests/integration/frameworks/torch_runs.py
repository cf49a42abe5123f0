"""torch alone: its loaders over shoal's datasets, and its checkpoints."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed
import torch.utils.data
from tests.integration.frameworks.runs import BATCH, Ids, Run, class_of, dataset, loss, model
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

import shoal.torch

NUM_EPOCHS = 3
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


class Job:
    """A model, its optimizer and its loader."""

    def __init__(self, run: Run, loader: Any) -> None:
        self.run, self.loader, self.model = run, loader, model()
        self.optimizer = run.optimizer(self.model.parameters())
        self.scheduler = run.scheduler(self.optimizer)

    def epoch(self, epoch: int, *, accumulate: int = 1, limit: int | None = None) -> None:
        """Train for an epoch; the optimizer steps after the last batch in any case."""
        last = len(self.loader) - 1 if accumulate > 1 else None
        for step, batch in enumerate(self.loader):
            self.run.batch(epoch, batch)
            loss(self.model, batch).backward()
            if (step + 1) % accumulate == 0 or step == last:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
            if step + 1 == limit:
                break

    def train(self, begin: int = 0, end: int = NUM_EPOCHS, **options: Any) -> None:
        """All epochs, each named to the sampler, or to a dataset that has no sampler."""
        for epoch in range(begin, end):
            for target in (self.loader.sampler, self.loader.dataset):
                if hasattr(target, "set_epoch"):
                    target.set_epoch(epoch)
                    break
            self.epoch(epoch, **options)


def loader_of(run: Run, *, batch: int = BATCH, stateful: bool = False, **options: Any) -> Any:
    """As `Run.loader`; torch's has a sampler of ranks."""
    if WORLD_SIZE > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    if run.kind == "shoal" or WORLD_SIZE == 1:
        return run.loader(batch=batch, stateful=stateful, **options)
    sampler: Any = torch.utils.data.distributed.DistributedSampler(Ids())
    return class_of(stateful)(Ids(), batch, sampler=sampler, num_workers=run.num_workers, **options)


def whole(run: Run) -> None:
    run.leg()
    job = Job(run, loader_of(run))
    run.fact("len(loader)", len(job.loader))
    job.train()


def persistent(run: Run) -> None:
    run.leg()
    Job(run, loader_of(run, persistent_workers=True)).train()


def unnamed(run: Run) -> None:
    """Nobody names the epochs."""
    run.leg()
    job = Job(run, run.loader())
    for epoch in range(NUM_EPOCHS):
        job.epoch(epoch)


def limit_break(run: Run) -> None:
    """Each epoch is left early, and nobody names the epochs."""
    run.leg()
    job = Job(run, run.loader())
    for epoch in range(NUM_EPOCHS):
        job.epoch(epoch, limit=5)


def limit_named(run: Run) -> None:
    run.leg()
    Job(run, loader_of(run)).train(limit=5)


def quickstart(run: Run) -> None:
    """The loop of torch's quickstart, whose accuracy is divided by the length of the dataset."""
    run.leg()
    job = Job(run, loader_of(run))
    run.fact("size = len(dataloader.dataset)", len(job.loader.dataset))
    run.fact("num_batches = len(dataloader)", len(job.loader))
    for epoch in range(NUM_EPOCHS):
        job.epoch(epoch)


def accumulation(run: Run) -> None:
    """Accumulation that does not divide an epoch."""
    run.leg()
    job = Job(run, loader_of(run))
    run.fact("updates_per_epoch", (len(job.loader) + 4 - 1) // 4)
    job.train(accumulate=4)


def resumed(run: Run) -> None:
    """The next run begins at an epoch, with another loader."""
    run.leg()
    job = Job(run, loader_of(run))
    job.train(end=1)
    run.saved("epoch")
    again = Job(run, loader_of(run))
    again.scheduler.load_state_dict(job.scheduler.state_dict())
    again.optimizer.load_state_dict(job.optimizer.state_dict())
    run.leg("epoch")
    again.train(1)


def checkpoint(run: Run) -> None:
    """`torch.distributed.checkpoint` of a dict with the loader, in the middle of an epoch."""

    def states(job: Job) -> dict[str, Any]:
        return {"model": job.model, "optimizer": job.optimizer, "loader": job.loader}

    run.leg()
    job = Job(run, run.loader(stateful=True))
    job.epoch(0)
    job.epoch(1, limit=7)
    state_dict_saver.save(states(job), checkpoint_id=run.out / "step-26", no_dist=True)
    run.saved("step-26")
    again = Job(run, run.loader(stateful=True))
    state_dict_loader.load(states(again), checkpoint_id=run.out / "step-26", no_dist=True)
    again.scheduler.load_state_dict(job.scheduler.state_dict())
    run.leg("step-26")
    for epoch in (1, 2):
        again.epoch(epoch)


def iterable(run: Run, **options: Any) -> None:
    """torch's loader over `shoal.torch.IterableDataset`, whose items are batches."""
    run.leg()
    if run.kind == "shoal":
        batches: Any = shoal.torch.IterableDataset(dataset(run.data).batch(BATCH))
        Job(run, torch.utils.data.DataLoader(batches, batch_size=None, num_workers=run.num_workers, **options)).train()
    else:
        Job(run, loader_of(run, **options)).train()


def iterable_persistent(run: Run) -> None:
    iterable(run, persistent_workers=True)


def iterable_samples(run: Run) -> None:
    """torch's loader makes batches of single samples; which, depends on its workers."""
    run.leg()
    samples: Any = shoal.torch.IterableDataset(dataset(run.data))
    if run.kind == "shoal":
        loader: Any = torch.utils.data.DataLoader(samples, batch_size=15, num_workers=run.num_workers)
    else:
        loader = loader_of(run, batch=15)
    for epoch in range(NUM_EPOCHS):
        target = samples if run.kind == "shoal" else loader.sampler
        if hasattr(target, "set_epoch"):
            target.set_epoch(epoch)
        for batch in loader:
            run.batch(epoch, batch, "samples")


def listed(run: Run, **options: Any) -> None:
    """torch's loader over `Dataset.as_map`, with a sampler of ours."""
    run.leg()
    if run.kind == "shoal":
        ds = dataset(run.data).batch(BATCH)
        view: Any = ds.as_map()
        sampler: Any = shoal.torch.BatchSampler(ds)
        loader: Any = torch.utils.data.DataLoader(view, batch_sampler=sampler, num_workers=run.num_workers, **options)
        job = Job(run, loader)
        for epoch in range(NUM_EPOCHS):
            sampler.set_epoch(epoch)
            job.epoch(epoch)
    else:
        Job(run, loader_of(run, **options)).train()


def listed_persistent(run: Run) -> None:
    listed(run, persistent_workers=True)
