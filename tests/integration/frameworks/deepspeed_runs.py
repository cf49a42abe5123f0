"""DeepSpeed: an engine's steps, its `RepeatingLoader`, and a loader's state in the ``client_state`` of checkpoints."""

from __future__ import annotations

import os
from typing import Any

import deepspeed
from deepspeed.runtime.dataloader import RepeatingLoader
from tests.integration.frameworks.runs import BATCH, Run, loss, model
from tests.integration.frameworks.torch_runs import loader_of

NUM_EPOCHS = 3
# DeepSpeed takes these from its launcher, and asks MPI for them without one.
for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0"}.items():
    os.environ.setdefault(name, value)
os.environ.setdefault("WORLD_SIZE", "1")
# DeepSpeed would compile this for ranks of one machine, for minutes; without it, ranks have gloo alone.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class Job:
    """An engine, and its loader."""

    def __init__(self, run: Run, *, accumulate: int = 1, **options: Any) -> None:
        self.run = run
        layer = model()
        optimizer = run.optimizer(layer.parameters())
        self.engine, *_ = deepspeed.initialize(
            model=layer,
            optimizer=optimizer,
            lr_scheduler=run.scheduler(optimizer),
            config={"train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": accumulate},
        )
        self.loader = loader_of(run, stateful=True, **options)
        self.steps_per_epoch = len(self.loader)

    def step(self, epoch: int, batch: Any) -> None:
        """Train on a batch, as the documentation of DeepSpeed does."""
        self.run.batch(epoch, batch)
        self.engine.backward(loss(self.engine, batch))
        self.engine.step()

    def epoch(self, epoch: int, *, limit: int | None = None, until: int | None = None) -> None:
        """Train for an epoch; save after a number of batches of it, and end after one more."""
        if hasattr(self.loader.sampler, "set_epoch"):
            self.loader.sampler.set_epoch(epoch)
        for step, batch in enumerate(self.loader, start=1):
            self.step(epoch, batch)
            if step == until:
                self.save(epoch)
            if step in {limit, (until or -2) + 1}:
                break

    def save(self, epoch: int) -> None:
        """Write a checkpoint, in which an epoch is due."""
        tag = f"step-{self.engine.global_steps}"
        client_state = {"epoch": epoch, "loader": self.loader.state_dict()}
        self.engine.save_checkpoint(str(self.run.out), tag=tag, client_state=client_state)
        self.run.saved(tag)

    def load(self) -> int:
        """Begin from the newest checkpoint; return the epoch that is due."""
        path, client_state = self.engine.load_checkpoint(str(self.run.out))
        self.run.leg(path.split("/")[-2])
        self.loader.load_state_dict(client_state["loader"])
        return int(client_state["epoch"])


def train(run: Run, *, limit: int | None = None, **options: Any) -> None:
    """All epochs, with one loader."""
    run.leg()
    job = Job(run, **options)
    run.fact("len(loader)", job.steps_per_epoch)
    for epoch in range(NUM_EPOCHS):
        job.epoch(epoch, limit=limit)


def whole(run: Run) -> None:
    train(run)


def persistent(run: Run) -> None:
    train(run, persistent_workers=True)


def accumulation(run: Run) -> None:
    """The engine counts over epochs, and does not step at their ends."""
    train(run, accumulate=4)


def resume_middle(run: Run) -> None:
    """The state of the loader is in ``client_state``; torch's is torchdata's."""
    run.leg()
    job = Job(run)
    job.epoch(0)
    job.epoch(1, until=7)
    job = Job(run)
    for epoch in range(job.load(), NUM_EPOCHS):
        job.epoch(epoch)


def resume_end(run: Run) -> None:
    """The checkpoint of an epoch's end."""
    run.leg()
    job = Job(run)
    job.epoch(0)
    job.save(1)
    job = Job(run)
    for epoch in range(job.load(), NUM_EPOCHS):
        job.epoch(epoch)


def repeating(run: Run) -> None:
    """Steps over `RepeatingLoader`, which takes its next pass by itself."""
    run.leg()
    job = Job(run)
    _steps(job, RepeatingLoader(job.loader), 0, NUM_EPOCHS * job.steps_per_epoch)


def repeating_resumed(run: Run) -> None:
    """A state that is loaded after `RepeatingLoader` has made its iterator."""
    run.leg()
    job = Job(run)
    _steps(job, RepeatingLoader(job.loader), 0, job.steps_per_epoch + 7)
    job.save(1)
    job = Job(run)
    loader: Any = None
    if run.kind == "shoal":
        loader = RepeatingLoader(job.loader)
    job.load()
    # torchdata's loader heeds no state after its iterator was made.
    _steps(job, loader or RepeatingLoader(job.loader), job.engine.global_steps, NUM_EPOCHS * job.steps_per_epoch)


def _steps(job: Job, loader: Any, begin: int, end: int) -> None:
    for step in range(begin, end):
        job.step(step // job.steps_per_epoch, next(loader))


def killed(run: Run) -> None:
    """One job that is killed in the second epoch, and started again by the same script."""
    job = Job(run)
    begin = 0
    if run.is_restarted:
        begin = job.load()
    else:
        run.leg()
    for epoch in range(begin, NUM_EPOCHS):
        if epoch == 1 and not begin:
            job.epoch(1, until=7)
            run.kill_at(1)
        job.epoch(epoch)
