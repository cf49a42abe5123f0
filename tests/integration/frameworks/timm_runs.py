"""timm: the loop of its ``train.py``, with its transforms, prefetcher, schedules and checkpoints."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from PIL import Image
from tests.integration.frameworks.runs import BATCH, NUM_SAMPLES, RANK, Run, dataset
from timm.data import create_loader, create_transform
from timm.data.loader import PrefetchLoader
from timm.models import resume_checkpoint
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, CheckpointSaver, init_distributed_device

import shoal.torch

NUM_EPOCHS = 3
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
SIZE = (3, 4, 4)
CPU = torch.device("cpu")


def picture(number: int) -> Image.Image:
    """A picture of one colour."""
    return Image.fromarray(np.full((4, 4, 3), number, dtype=np.uint8))


class Pictures(torch.utils.data.Dataset):
    """As a dataset of timm: pictures under the transform that `create_loader` sets, and their class."""

    transform: Any = None

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(picture(index)), index


def as_trained(sample: dict[str, Any], transform: Any) -> dict[str, Any]:
    """The same from a sample of shoal's."""
    return {"image": transform(picture(sample["ids"])), "target": sample["ids"]}


def loader_of(run: Run, **options: Any) -> Any:
    """Batches of timm's loader, or of shoal's in timm's prefetcher."""
    if run.kind == "torch":
        return create_loader(
            Pictures(),
            SIZE,
            BATCH,
            is_training=True,
            distributed=WORLD_SIZE > 1,
            device=CPU,
            num_workers=run.num_workers,
            **options,
        )
    training = partial(as_trained, transform=create_transform(SIZE, is_training=True, use_prefetcher=True))
    ds = dataset(run.data).map(training).to_tuple("image", "target").batch(BATCH, remainder="drop")
    told = {"persistent_workers": run.num_workers > 0, **options}
    return PrefetchLoader(shoal.torch.DataLoader(ds, num_workers=run.num_workers, **told), device=CPU)


class Job:
    """A model, its optimizer, its loader and its saver, as ``main`` of ``train.py`` makes them."""

    def __init__(self, run: Run, *, accumulate: int = 1, resume: str = "", kill_at: int = 1000, **options: Any) -> None:
        arguments = argparse.Namespace(device="cpu", dist_backend=None, dist_url=None)
        if not torch.distributed.is_initialized():
            init_distributed_device(arguments)
        self.run, self.accumulate, self.kill_at = run, accumulate, kill_at
        self.model: Any = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 1))
        self.optimizer = run.optimizer(self.model.parameters())
        # As `train.py` does it: what the checkpoint holds is read before the model becomes one of all ranks.
        self.begin = (resume_checkpoint(self.model, resume, self.optimizer) or 0) if resume else 0
        if WORLD_SIZE > 1:
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.loader = loader_of(run, **options)
        self.updates_per_epoch = (len(self.loader) + accumulate - 1) // accumulate
        self.scheduler, _ = create_scheduler_v2(
            self.optimizer,
            num_epochs=NUM_EPOCHS,
            warmup_epochs=1,
            step_on_epochs=accumulate == 1,
            updates_per_epoch=self.updates_per_epoch,
        )
        if self.begin:
            if accumulate == 1:
                self.scheduler.step(self.begin)
            else:
                self.scheduler.step_update(self.begin * self.updates_per_epoch)
        folder = str(run.out)
        self.saver = CheckpointSaver(self.model, self.optimizer, checkpoint_dir=folder, recovery_dir=folder)

    def train(self, until: int = NUM_EPOCHS) -> None:
        """All epochs, as ``main`` names them."""
        self.run.fact("len(loader_train)", len(self.loader))
        self.run.fact("updates_per_epoch", self.updates_per_epoch)
        for epoch in range(self.begin, until):
            if hasattr(self.loader.dataset, "set_epoch"):
                self.loader.dataset.set_epoch(epoch)
            elif WORLD_SIZE > 1 and hasattr(self.loader.sampler, "set_epoch"):
                self.loader.sampler.set_epoch(epoch)
            self.train_one_epoch(epoch)
            if RANK == 0:
                self.saver.save_checkpoint(epoch)
            if WORLD_SIZE > 1:
                torch.distributed.barrier()
            self.run.saved(f"checkpoint-{epoch}.pth.tar")
            self.scheduler.step(epoch + 1)

    def train_one_epoch(self, epoch: int) -> None:
        """As the function of this name: the last batch of an epoch steps in any case."""
        losses = AverageMeter()
        last, num_updates = len(self.loader) - 1, epoch * self.updates_per_epoch
        for batch_idx, (picture_of, target) in enumerate(self.loader):
            self.run.ids(epoch, target.tolist())
            self.run.kill_at(self.kill_at)
            value = self.model(picture_of).pow(2).mean() / self.accumulate
            value.backward()
            losses.update(value.item(), picture_of.size(0))
            if batch_idx != last and (batch_idx + 1) % self.accumulate:
                continue
            self.optimizer.step()
            self.optimizer.zero_grad()
            num_updates += 1
            self.scheduler.step_update(num_updates=num_updates, metric=losses.avg)


def newest(run: Run) -> Path:
    """The checkpoint of the latest epoch."""
    return run.out / "last.pth.tar"


def train(run: Run, **options: Any) -> None:
    """All epochs, with one loader."""
    run.leg()
    Job(run, **options).train()


def whole(run: Run) -> None:
    train(run)


def fresh_workers(run: Run) -> None:
    """`create_loader` keeps workers unless it is told not to."""
    train(run, persistent_workers=False)


def accumulation(run: Run) -> None:
    """Accumulation that does not divide an epoch, and a schedule of updates."""
    train(run, accumulate=4)


def resumed(run: Run, accumulate: int = 1) -> None:
    """``--resume``: the next run begins at the epoch after that of the checkpoint."""
    run.leg()
    Job(run, accumulate=accumulate).train(1)
    run.leg("checkpoint-0.pth.tar")
    Job(run, accumulate=accumulate, resume=str(newest(run))).train()


def resumed_accumulation(run: Run) -> None:
    resumed(run, accumulate=4)


def killed(run: Run) -> None:
    """One job that is killed in the second epoch, and started again by the same script."""
    checkpoint = newest(run)
    run.leg("checkpoint-0.pth.tar" if checkpoint.exists() else None)
    Job(run, resume=str(checkpoint) if checkpoint.exists() else "", kill_at=14).train()
