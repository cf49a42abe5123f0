"""torchtitan: its loop over steps, its dataloader, and its `CheckpointManager`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
import torch.utils.data
from tests.integration.frameworks.runs import NUM_SAMPLES, RANK, Run, dataset, loss, model
from tests.integration.frameworks.torch_runs import loader_of
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import DataloaderExhaustedError, ParallelAwareDataloader
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

import shoal
import shoal.torch

NUM_EPOCHS = 3
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
ENDLESS_BATCH = 15  # divides an epoch


class Endless(torch.utils.data.IterableDataset):
    """Samples of a rank in all epochs, with a state, as the datasets of torchtitan."""

    def __init__(self) -> None:
        self.num_given = 0

    def __iter__(self) -> Iterator[dict[str, int]]:
        per_epoch = NUM_SAMPLES // WORLD_SIZE
        while True:
            epoch, at = divmod(self.num_given, per_epoch)
            order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()
            for number in order[RANK::WORLD_SIZE][at:]:
                self.num_given += 1
                yield {"ids": number}

    def state_dict(self) -> dict[str, int]:
        return {"num_given": self.num_given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_given = state["num_given"]


def endless(run: Run) -> shoal.Dataset:
    """As the guide on torchdata has it for loops of one pass."""
    return shoal.mix({"all": dataset(run.data)}, ends="forever").batch(ENDLESS_BATCH)


def wrapped(run: Run) -> Any:
    """torchtitan's dataloader, without an end."""
    told = {"dp_rank": RANK, "dp_world_size": WORLD_SIZE, "num_workers": run.num_workers}
    if run.kind == "torch":
        return ParallelAwareDataloader(Endless(), **told, batch_size=ENDLESS_BATCH)
    batches = shoal.torch.IterableDataset(endless(run).partition(rank=RANK, world_size=WORLD_SIZE))
    return ParallelAwareDataloader(batches, **told, batch_size=None)


def direct(run: Run) -> Any:
    """shoal's loader in its place."""
    return wrapped(run) if run.kind == "torch" else shoal.torch.DataLoader(endless(run), num_workers=run.num_workers)


class Job:
    """What the Trainer of torchtitan keeps, and its loop."""

    def __init__(
        self, run: Run, loader: Any, *, stream: str = "samples", async_mode: str = "disabled", kill_at: int = 1000
    ) -> None:
        if not torch.distributed.is_initialized():
            alone = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}
            told: dict[str, Any] = alone if WORLD_SIZE == 1 else {}
            torch.distributed.init_process_group("gloo", **told)
        self.run, self.loader, self.stream, self.kill_at = run, loader, stream, kill_at
        self.step = 0
        self.model = model()
        group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.1})
        settings = OptimizersContainer.Config(param_groups=[group], implementation="for-loop")
        self.optimizers = settings.build(model_parts=[self.model])
        schedule = LRSchedulersContainer.Config(warmup_steps=5)
        self.schedulers = schedule.build(optimizers=self.optimizers, training_steps=100)
        saving = CheckpointManager.Config(enable=True, interval=7, async_mode=async_mode)
        self.checkpointer = saving.build(
            dataloader=loader,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=self.schedulers,
            states={"train_state": self},
            sd_adapter=None,
            base_folder=str(run.out),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]

    def batches(self) -> Iterator[Any]:
        """As the Trainer's ``batch_generator``."""
        batches = iter(self.loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration as error:
                raise DataloaderExhaustedError from error
            yield batch

    def train(self, until: int, *, steps_per_epoch: int) -> None:
        """As the Trainer's ``train``, which begins from the newest checkpoint of its folder."""
        self.checkpointer.load()
        self.run.leg(f"step-{self.step}" if self.step else None)
        batches = self.batches()
        while self.step < until:
            self.step += 1
            try:
                batch = next(batches)
            except DataloaderExhaustedError:
                self.step -= 1
                break
            self.run.batch((self.step - 1) // steps_per_epoch, batch, self.stream)
            self.optimizers.zero_grad()
            loss(self.model, batch).backward()
            self.checkpointer.maybe_wait_for_staging()
            self.optimizers.step()
            self.run.updated(self.schedulers.schedulers[0].get_last_lr()[0])
            self.schedulers.step()
            if self.checkpointer.save(self.step):
                self.run.saved(f"step-{self.step}")
            self.run.kill_at(self.kill_at)
        self.checkpointer.maybe_wait_for_saving()
        self.checkpointer.close()


def train(run: Run, loader: Any, **options: Any) -> None:
    """Three epochs without an end, resumed in the middle of the second from a checkpoint three steps before."""
    steps_per_epoch = NUM_SAMPLES // ENDLESS_BATCH // WORLD_SIZE
    Job(run, loader(run), **options).train(17 // WORLD_SIZE, steps_per_epoch=steps_per_epoch)
    Job(run, loader(run), **options).train(NUM_EPOCHS * steps_per_epoch, steps_per_epoch=steps_per_epoch)


def resumed(run: Run) -> None:
    train(run, direct)


def resumed_wrapped(run: Run) -> None:
    train(run, wrapped)


def resumed_async(run: Run) -> None:
    """The checkpoint is written while training goes on."""
    train(run, direct, async_mode="async")


def exhausted(run: Run) -> None:
    """A loader with an end: torchtitan takes one pass."""
    for until in (12, 40):
        job = Job(run, loader_of(run, stateful=True), stream="train")
        job.train(until, steps_per_epoch=len(job.loader))


def killed(run: Run) -> None:
    """One job that is killed in the second epoch, and started again by the same script."""
    job = Job(run, direct(run), kill_at=9)
    steps_per_epoch = NUM_SAMPLES // ENDLESS_BATCH // WORLD_SIZE
    job.train(NUM_EPOCHS * steps_per_epoch, steps_per_epoch=steps_per_epoch)
