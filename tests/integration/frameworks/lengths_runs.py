"""Train on every kind of dataset with one framework: ``python lengths_runs.py FRAMEWORK FOLDER [KIND...]``.

Each rank writes a line of JSON for each kind: what the framework says before training, and what it did.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.integration.frameworks.lengths import ACCUMULATED, ENDLESS, KINDS, NUM_EPOCHS, WITHOUT_LENGTH, Kind

import shoal.torch
from shoal.errors import ShuffleWarning
from shoal.index.table import Index
from shoal.indexing.growing.segments_ahead import SegmentJob

RANK, WORLD_SIZE = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
STRATEGY = "ddp" if WORLD_SIZE > 1 else "auto"
BEGUN = threading.Event()


@dataclass
class Record:
    """What a rank writes down of a kind."""

    said: dict[str, Any] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    updates: int = 0
    scheduler: int = 0
    error: str = ""
    warned: list[str] = field(default_factory=list)

    def begin_epoch(self) -> None:
        self.batches.append(0)

    def batch(self) -> None:
        self.batches[-1] += 1
        BEGUN.set()


class Noting(torch.optim.SGD):
    """An optimizer that counts its updates."""

    def __init__(self, parameters: Any, record: Record) -> None:
        super().__init__(parameters, lr=0.1)
        self.record = record

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.record.updates += 1
        return loss


def made(record: Record) -> tuple[torch.nn.Module, Noting, Any]:
    """A model, its optimizer and a schedule that counts its steps."""
    layer = torch.nn.Linear(1, 1)
    optimizer = Noting(layer.parameters(), record)
    return layer, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


def length(sized: Any) -> int | str:
    try:
        return len(sized)
    except TypeError:
        return WITHOUT_LENGTH


def loss_of(layer: Any) -> Any:
    return layer(torch.ones(1, 1)).sum()


def passes(loader: Any, kind: Kind, record: Record) -> Iterable[Any]:
    """The batches of all epochs, or of a pass of as many as a run over an endless dataset takes."""
    for _ in range(1 if kind.is_endless else NUM_EPOCHS):
        record.begin_epoch()
        for batch in itertools.islice(loader, ENDLESS) if kind.is_endless else loader:
            record.batch()
            yield batch


def in_torch(loader: Any, kind: Kind, record: Record) -> None:
    if WORLD_SIZE > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    layer, optimizer, scheduler = made(record)
    layer = torch.nn.parallel.DistributedDataParallel(layer) if WORLD_SIZE > 1 else layer
    record.said = {"len(loader)": length(loader), "len(loader.dataset)": length(loader.dataset)}
    for _ in passes(loader, kind, record):
        loss_of(layer).backward()
        optimizer.step()
        scheduler.step()
    record.scheduler = scheduler.last_epoch


def in_fabric(loader: Any, kind: Kind, record: Record) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=WORLD_SIZE, strategy=STRATEGY)
    fabric.launch()
    layer, optimizer, scheduler = made(record)
    layer, optimizer = fabric.setup(layer, optimizer)
    loader = fabric.setup_dataloaders(loader)
    record.said = {"len(loader)": length(loader)}
    for _ in passes(loader, kind, record):
        fabric.backward(loss_of(layer))
        optimizer.step()
        scheduler.step()
    record.scheduler = scheduler.last_epoch


def in_accelerate(loader: Any, kind: Kind, record: Record) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED if kind.is_known else 1)
    layer, optimizer, scheduler = made(record)
    layer, prepared, loader, steps = accelerator.prepare(layer, optimizer, loader, scheduler)
    record.said = {"len(loader)": length(loader)}
    for _ in passes(loader, kind, record):
        with accelerator.accumulate(layer):
            accelerator.backward(loss_of(layer))
            prepared.step()
            steps.step()
            prepared.zero_grad()
    record.scheduler = scheduler.last_epoch


def in_lightning(loader: Any, kind: Kind, record: Record) -> None:
    import lightning

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.optimizer, self.scheduler = made(record)

        def training_step(self, batch: Any, _: int) -> Any:
            record.batch()
            return loss_of(self.layer)

        def on_train_epoch_start(self) -> None:
            record.begin_epoch()
            record.said.setdefault("num_training_batches", self.trainer.num_training_batches)

        def configure_optimizers(self) -> Any:
            record.said["estimated_stepping_batches"] = self.trainer.estimated_stepping_batches
            return [self.optimizer], [{"scheduler": self.scheduler, "interval": "step"}]

    until: dict[str, Any] = {"max_epochs": NUM_EPOCHS}
    if kind.is_endless:
        until = {"max_epochs": -1, "max_steps": ENDLESS}
    model = Model()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    lightning.Trainer(
        **until,
        **quiet,
        accelerator="cpu",
        devices=WORLD_SIZE,
        strategy=STRATEGY,
        enable_checkpointing=False,
        accumulate_grad_batches=ACCUMULATED if kind.is_known else 1,
        reload_dataloaders_every_n_epochs=int(kind.is_reloaded),
    ).fit(model, loader)
    record.scheduler = model.scheduler.last_epoch


def in_transformers(loader: Any, kind: Kind, record: Record) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.optimizer, self.scheduler = made(record)

        def forward(self, **_: Any) -> dict[str, Any]:
            record.batch()
            return {"loss": loss_of(self.layer)}

    class Notes(TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            record.begin_epoch()

    class ShoalTrainer(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return loader

        def set_initial_training_values(self, *given: Any) -> Any:
            values = super().set_initial_training_values(*given)
            record.said["num_update_steps_per_epoch"] = values[1]
            return values

    model = Model()

    def trainer(**until: Any) -> Any:
        settings = {"save_strategy": "no", "logging_strategy": "no", "report_to": [], "disable_tqdm": True}
        accumulate = ACCUMULATED if kind.is_known else 1
        arguments = TrainingArguments(
            "trained", use_cpu=True, gradient_accumulation_steps=accumulate, **settings, **until
        )
        optimizers = (model.optimizer, model.scheduler)
        return ShoalTrainer(model=model, args=arguments, optimizers=optimizers, callbacks=[Notes()])

    if not kind.is_known:
        said = "nothing"
        try:
            trainer(num_train_epochs=NUM_EPOCHS).train()
        except ValueError as error:
            said = str(error)
        assert "max_steps" in said, said
    until = {"num_train_epochs": NUM_EPOCHS} if kind.is_known else {"max_steps": sum(kind.batches.get(WORLD_SIZE, [1]))}
    one = trainer(**until)
    one.train()
    record.said["max_steps"] = one.state.max_steps
    record.said["num_train_epochs"] = one.state.num_train_epochs if kind.is_known else None
    record.scheduler = model.scheduler.last_epoch


class Warned(logging.Handler):
    """Writes down what shoal logs."""

    def __init__(self, record: Record) -> None:
        super().__init__(logging.WARNING)
        self.record = record

    def emit(self, record: logging.LogRecord) -> None:
        self.record.warned.append(record.getMessage())


def index_while_training() -> None:
    """Let the first rank index what is behind the first segment of a dataset after its first batch only.

    So ranks know of different numbers of samples.
    """
    made = SegmentJob.segment

    def waiting(self: SegmentJob, segment: int) -> Index:
        assert RANK or not segment or BEGUN.wait(60)
        return made(self, segment)

    SegmentJob.segment = waiting  # type: ignore[method-assign]


def main() -> None:
    """Run the kinds that the command line names, or all."""
    framework, folder, *names = sys.argv[1:]
    run: Callable[[Any, Kind, Record], None] = globals()[f"in_{framework}"]
    warnings.simplefilter("ignore", ShuffleWarning)
    index_while_training()
    with Path(folder, f"{framework}-{WORLD_SIZE}-{RANK}.jsonl").open("w") as file:
        for name in names or KINDS:
            kind, record = KINDS[name], Record()
            handler = Warned(record)
            BEGUN.clear()
            logging.getLogger("shoal").addHandler(handler)
            try:
                run(shoal.torch.DataLoader(kind.make(Path(folder))), kind, record)
            except Exception:  # noqa: BLE001  # the other kinds are to be seen as well
                record.error = traceback.format_exc()  # Lightning raises another error when it ends by one
            logging.getLogger("shoal").removeHandler(handler)
            file.write(json.dumps({"kind": name, **vars(record)}) + "\n")
            file.flush()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
