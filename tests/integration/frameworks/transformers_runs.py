"""The Trainer of transformers, as its documentation uses it."""

from __future__ import annotations

from typing import Any

import torch
from tests.integration.frameworks.runs import Ids, Run, loss, model
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

NEWEST = "the newest checkpoint by its path"


class Model(torch.nn.Module):
    """Writes down each batch that it is given."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.layer, self.run, self.epoch, self.step = model(), run, 0, 0

    def forward(self, ids: Any, return_loss: bool = True, **more: Any) -> dict[str, Any]:
        batch = {**more, "ids": ids}
        at = (self.epoch, batch) if self.training else (self.step, batch, "validation")
        self.run.batch(*at)
        return {"loss": loss(self.layer, batch)}


class Notes(TrainerCallback):  # type: ignore[misc]  # untyped, where it is not installed
    """Writes down epochs and checkpoints, and may end the job after a step."""

    def __init__(self, run: Run, model: Model, at: int | None, *, is_kill: bool) -> None:
        self.run, self.model, self.at, self.is_kill = run, model, at, is_kill

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.run.fact("max_steps", state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.model.epoch = int(state.epoch + 1e-6)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.run.saved(f"checkpoint-{state.global_step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.model.step = state.global_step
        if self.is_kill:
            self.run.kill_at(27)
        if state.global_step == self.at:
            raise InterruptedError


class ShoalTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose loaders are shoal's."""

    run: Run

    def get_train_dataloader(self) -> Any:
        return self.run.loader()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return self.run.loader(shuffle=False)


def train(
    run: Run,
    *,
    resume: str | bool | None = None,
    until: int | None = None,
    callbacks: Any = (),
    is_kill: bool = False,
    **settings: Any,
) -> None:
    """Train from a checkpoint, or from the beginning; fail after a step."""
    checkpoint = get_last_checkpoint(str(run.out)) if resume else None
    run.leg(checkpoint.rpartition("/")[2] if checkpoint else None)
    arguments = TrainingArguments(
        output_dir=str(run.out),
        **{"num_train_epochs": 3, "save_strategy": "no", **settings},
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        dataloader_num_workers=run.num_workers,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    layer = Model(run)
    optimizer = run.optimizer(layer.parameters())
    cls = ShoalTrainer if run.kind == "shoal" else Trainer
    trainer = cls(
        model=layer,
        args=arguments,
        train_dataset=Ids(input_ids=[0]),
        eval_dataset=Ids(),
        optimizers=(optimizer, run.scheduler(optimizer)),
        callbacks=[Notes(run, layer, until, is_kill=is_kill), *callbacks],
    )
    trainer.run = run
    try:
        trainer.train(resume_from_checkpoint=checkpoint if resume == NEWEST else resume)
    except InterruptedError:
        return
    assert until is None


def whole(run: Run) -> None:
    train(run)


def persistent(run: Run) -> None:
    train(run, dataloader_persistent_workers=True)


def accumulation(run: Run) -> None:
    train(run, gradient_accumulation_steps=4)


def max_steps(run: Run) -> None:
    train(run, max_steps=25)


def validation(run: Run) -> None:
    train(run, eval_strategy="steps", eval_steps=7, prediction_loss_only=True)


def early_stop(run: Run) -> None:
    """After two evaluations that were no better."""
    train(
        run,
        eval_strategy="steps",
        eval_steps=7,
        save_strategy="steps",
        save_steps=7,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=True,
        prediction_loss_only=True,
        callbacks=[EarlyStoppingCallback(1)],
    )


def resume_default(run: Run) -> None:
    """The checkpoint of an epoch's end."""
    train(run, save_strategy="epoch", until=22)
    train(run, resume=NEWEST)


def resume_middle(run: Run) -> None:
    train(run, save_strategy="steps", save_steps=7, until=26)
    train(run, resume=NEWEST)


def resume_last_batch(run: Run) -> None:
    """A checkpoint of steps that falls on the last batch of an epoch."""
    train(run, save_strategy="steps", save_steps=19, until=26)
    train(run, resume=NEWEST)


def resume_last(run: Run) -> None:
    """`resume_from_checkpoint=True` takes the last checkpoint."""
    train(run, save_strategy="steps", save_steps=6, until=26)
    train(run, resume=True)


def resume_ignore_data_skip(run: Run) -> None:
    train(run, save_strategy="steps", save_steps=7, until=26, ignore_data_skip=True)
    train(run, resume=NEWEST, ignore_data_skip=True)


def resume_accumulation(run: Run) -> None:
    train(run, save_strategy="steps", save_steps=6, until=8, gradient_accumulation_steps=4)
    train(run, resume=NEWEST, gradient_accumulation_steps=4)


def max_steps_resumed(run: Run) -> None:
    train(run, max_steps=25, save_strategy="steps", save_steps=25)
    train(run, max_steps=45, resume=NEWEST)


def group_by_length(run: Run) -> None:
    train(run, train_sampling_strategy="group_by_length")


def killed(run: Run) -> None:
    """One job that is killed in step 27, and started again by the same script."""
    train(run, save_strategy="steps", save_steps=6, resume=True if run.is_restarted else None, is_kill=True)
