"""torch alone: its loaders over shoal's datasets, its checkpoints, and the loops of libraries that need not be here.

The loop of timm is that of its ``train.py``; torchtitan's checkpoint is a dict of `Stateful` things that
`torch.distributed.checkpoint` saves; DeepSpeed's is a ``client_state`` beside the engine's own.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed
import torch.utils.data
from tests.integration.frameworks.runs import BATCH, RANK, Ids, Run, dataset, loss, model
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
        """Train for an epoch; as timm does, step the optimizer after the last batch in any case."""
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

    def train(self, begin: int = 0, **options: Any) -> None:
        """All epochs, each named to the sampler, or to a dataset that has no sampler."""
        for epoch in range(begin, NUM_EPOCHS):
            for target in (self.loader.sampler, self.loader.dataset):
                if hasattr(target, "set_epoch"):
                    target.set_epoch(epoch)
                    break
            self.epoch(epoch, **options)


def loader_of(run: Run, *, batch: int = BATCH, **options: Any) -> Any:
    """As `Run.loader`; torch's has a sampler of ranks."""
    if WORLD_SIZE > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    if run.kind == "shoal" or WORLD_SIZE == 1:
        return run.loader(batch=batch, **options)
    sampler: Any = torch.utils.data.distributed.DistributedSampler(Ids())
    return torch.utils.data.DataLoader(Ids(), batch, sampler=sampler, num_workers=run.num_workers, **options)


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


def timm(run: Run) -> None:
    """Accumulation that does not divide an epoch."""
    run.leg()
    job = Job(run, loader_of(run))
    run.fact("updates_per_epoch", (len(job.loader) + 4 - 1) // 4)
    job.train(accumulate=4)


def timm_resumed(run: Run) -> None:
    """The next run begins at an epoch, with another loader."""
    run.leg()
    job = Job(run, loader_of(run))
    for target in (job.loader.sampler, job.loader.dataset):
        if hasattr(target, "set_epoch"):
            target.set_epoch(0)
            break
    job.epoch(0)
    run.saved("epoch")
    again = Job(run, loader_of(run))
    again.scheduler.load_state_dict(job.scheduler.state_dict())
    again.optimizer.load_state_dict(job.optimizer.state_dict())
    run.leg("epoch")
    again.train(1)


class TrainState:
    """The steps of a run, as torchtitan keeps them."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


def torchtitan(run: Run) -> None:
    """A loop over steps, whose checkpoint is a dict of `Stateful` things."""

    def states(job: Job, steps: TrainState) -> dict[str, Any]:
        return {"model": job.model, "optimizer": job.optimizer, "dataloader": job.loader, "train_state": steps}

    def forever(job: Job, begin: int) -> Any:
        for epoch in range(begin, NUM_EPOCHS):
            for batch in job.loader:
                yield epoch, batch

    def steps_of(job: Job, steps: TrainState, begin: int, end: int) -> None:
        batches = forever(job, begin)
        while steps.step < end:
            epoch, batch = next(batches)
            run.batch(epoch, batch)
            loss(job.model, batch).backward()
            job.optimizer.step()
            job.optimizer.zero_grad()
            job.scheduler.step()
            steps.step += 1

    run.leg()
    job, steps = Job(run, run.loader(stateful=True)), TrainState()
    steps_of(job, steps, 0, 26)
    state_dict_saver.save(states(job, steps), checkpoint_id=run.out / "step-26", no_dist=True)
    run.saved("step-26")
    again, found = Job(run, run.loader(stateful=True)), TrainState()
    state_dict_loader.load(states(again, found), checkpoint_id=run.out / "step-26", no_dist=True)
    again.scheduler.load_state_dict(job.scheduler.state_dict())
    run.leg("step-26")
    steps_of(again, found, 1, 57)


def deepspeed(run: Run) -> None:
    """The state of the loader in ``client_state``, of an epoch's end and of its middle."""
    run.leg()
    job = Job(run, run.loader(stateful=True))
    for epoch, limit in ((0, None), (1, 7)):
        job.epoch(epoch, limit=limit)
        client_state = {"epoch": epoch + (limit is None), "loader": job.loader.state_dict()}
        path = run.out / f"client_state-{epoch}-{RANK}.pt"
        torch.save(client_state, path)
        run.saved(path.name)
        client_state = torch.load(path, weights_only=True)
        again = Job(run, run.loader(stateful=True))
        again.loader.load_state_dict(client_state["loader"])
        again.scheduler.load_state_dict(job.scheduler.state_dict())
        again.optimizer.load_state_dict(job.optimizer.state_dict())
        run.leg(path.name)
        job = again
    for epoch in range(client_state["epoch"], NUM_EPOCHS):
        job.epoch(epoch)


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
