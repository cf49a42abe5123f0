"""Lightning's Trainer, as its documentation uses it."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from tests.integration.frameworks.runs import Run, loss, model

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


class Model(lightning.LightningModule):  # type: ignore[misc]  # untyped, where it is not installed
    """Writes down each batch that it is given."""

    def __init__(self, run: Run, *, is_estimated: bool = False) -> None:
        super().__init__()
        self.layer, self.run, self.is_estimated = model(), run, is_estimated

    def training_step(self, batch: Any, _: int) -> Any:
        streams = batch if "ids" not in batch else {"train": batch}
        for name, part in streams.items():
            self.run.batch(self.current_epoch, part, name)
        return loss(self.layer, next(iter(streams.values())))

    def validation_step(self, batch: Any, _: int) -> None:
        if not self.trainer.sanity_checking:
            self.run.batch(self.global_step, batch, "validation")
        self.log("never_better", torch.tensor(1.0))

    def predict_step(self, batch: Any, _: int) -> Any:
        self.run.batch(0, batch, "prediction")

    def configure_optimizers(self) -> Any:
        optimizer = self.run.optimizer(self.parameters())
        if not self.is_estimated:
            return [optimizer], [{"scheduler": self.run.scheduler(optimizer), "interval": "step"}]
        num_steps = int(self.trainer.estimated_stepping_batches)
        self.run.fact("estimated_stepping_batches", num_steps)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=num_steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_train_epoch_start(self) -> None:
        self.run.fact("num_training_batches", self.trainer.num_training_batches)


class Saves(ModelCheckpoint):  # type: ignore[misc]
    """Writes down each checkpoint that is complete."""

    def __init__(self, run: Run, **options: Any) -> None:
        super().__init__(run.out, **options)
        self.run = run

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        super()._save_checkpoint(trainer, filepath)
        self.run.saved(Path(filepath).name)


class Ends(Callback):  # type: ignore[misc]
    """An error in a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.at:
            raise InterruptedError


class Kills(Callback):  # type: ignore[misc]
    """The end of the process in a step."""

    def __init__(self, run: Run, at: int) -> None:
        self.run, self.at = run, at

    def on_train_batch_end(self, *_: Any) -> None:
        self.run.kill_at(self.at)


def trainer(run: Run, *, callbacks: Any = (), **options: Any) -> Any:
    """A Trainer that prints nothing."""
    has_saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    return lightning.Trainer(
        **{"max_epochs": 3, **options},
        accelerator="cpu",
        devices=WORLD_SIZE,
        strategy="ddp" if WORLD_SIZE > 1 else "auto",
        default_root_dir=run.out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=has_saves,
        callbacks=list(callbacks),
    )


def fit(run: Run, *, checkpoint: Path | None = None, loaders: Any = None, **options: Any) -> None:
    """Train from a checkpoint, or from the beginning."""
    run.leg(checkpoint.name if checkpoint else None)
    given = Model(run, is_estimated=options.pop("is_estimated", False))
    loaders = (run.loader(),) if loaders is None else loaders
    told: dict[str, Any] = {"ckpt_path": str(checkpoint), "weights_only": False} if checkpoint else {}
    trainer(run, **options).fit(given, *loaders, **told)


def fit_until(run: Run, at: int, *, callbacks: Any = (), **options: Any) -> None:
    """Train, and fail in a step."""
    try:
        fit(run, callbacks=[*callbacks, Ends(at)], **options)
    except InterruptedError:
        return
    raise AssertionError


def newest(run: Run) -> Path:
    """The checkpoint of the most steps."""
    return max(run.out.glob("epoch=*.ckpt"), key=lambda path: int(path.stem.split("=")[-1].partition("-")[0]))


def whole(run: Run) -> None:
    fit(run)


def persistent(run: Run) -> None:
    fit(run, loaders=(run.loader(persistent_workers=True),))


def validation(run: Run) -> None:
    fit(run, loaders=(run.loader(), run.loader(shuffle=False)), num_sanity_val_steps=2, val_check_interval=7)


def limit_batches(run: Run) -> None:
    fit(run, limit_train_batches=5)


def limit_fraction(run: Run) -> None:
    fit(run, limit_train_batches=0.25)


def limit_resumed(run: Run) -> None:
    fit_until(run, 8, limit_train_batches=5, callbacks=[Saves(run, every_n_train_steps=7)])
    fit(run, limit_train_batches=5, checkpoint=newest(run))


def accumulation(run: Run) -> None:
    fit(run, accumulate_grad_batches=4)


def max_steps(run: Run) -> None:
    fit(run, max_epochs=-1, max_steps=25)


def max_steps_resumed(run: Run) -> None:
    fit(run, max_epochs=-1, max_steps=25, callbacks=[Saves(run, save_last=True)])
    fit(run, max_epochs=-1, max_steps=45, checkpoint=run.out / "last.ckpt")


def early_stop(run: Run) -> None:
    stop = EarlyStopping("never_better", patience=1, check_on_train_epoch_end=False)
    fit(run, loaders=(run.loader(), run.loader(shuffle=False)), val_check_interval=7, callbacks=[stop])


def resume_default(run: Run) -> None:
    """The checkpoint that Lightning writes at an epoch's end."""
    fit(run, max_epochs=1, callbacks=[Saves(run)])
    fit(run, checkpoint=newest(run))


def resume_middle(run: Run) -> None:
    fit_until(run, 26, callbacks=[Saves(run, every_n_train_steps=7, save_top_k=-1)])
    fit(run, checkpoint=newest(run))


def resume_last_batch(run: Run) -> None:
    """A checkpoint of steps that falls on the last batch of an epoch."""
    fit_until(run, 26, callbacks=[Saves(run, every_n_train_steps=19)])
    fit(run, checkpoint=newest(run))


def resume_last(run: Run) -> None:
    fit_until(run, 26, callbacks=[Saves(run, every_n_train_steps=6, save_last=True)])
    fit(run, checkpoint=run.out / "last.ckpt")


def resume_accumulation(run: Run) -> None:
    fit_until(run, 8, accumulate_grad_batches=4, callbacks=[Saves(run, every_n_train_steps=6)])
    fit(run, accumulate_grad_batches=4, checkpoint=newest(run))


def resume_validation(run: Run) -> None:
    """The checkpoint that is written after a validation in the middle of an epoch."""
    loaders = (run.loader(), run.loader(shuffle=False))
    fit_until(run, 26, loaders=loaders, val_check_interval=7, callbacks=[Saves(run, save_top_k=-1)])
    loaders = (run.loader(), run.loader(shuffle=False))
    fit(run, loaders=loaders, val_check_interval=7, checkpoint=newest(run))


def estimated(run: Run) -> None:
    fit(run, is_estimated=True)


def estimated_resumed(run: Run) -> None:
    fit_until(run, 26, is_estimated=True, callbacks=[Saves(run, every_n_train_steps=7)])
    fit(run, is_estimated=True, checkpoint=newest(run))


class Data(lightning.LightningDataModule):  # type: ignore[misc]
    """Makes a loader whenever it is asked."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def train_dataloader(self) -> Any:
        return self.run.loader()


def reload(run: Run) -> None:
    fit(run, loaders=(Data(run),), reload_dataloaders_every_n_epochs=1)


def data_module(run: Run) -> None:
    fit(run, loaders=(Data(run),))


def reload_resumed(run: Run) -> None:
    told = {"reload_dataloaders_every_n_epochs": 1}
    fit_until(run, 26, loaders=(Data(run),), callbacks=[Saves(run, every_n_train_steps=7)], **told)
    fit(run, loaders=(Data(run),), checkpoint=newest(run), **told)


def _two(run: Run, mode: str) -> Any:
    return (CombinedLoader({"a": run.loader(), "b": run.loader(batch=16)}, mode),)


def combined_shortest(run: Run) -> None:
    fit(run, loaders=_two(run, "min_size"))


def combined_cycle(run: Run) -> None:
    fit(run, loaders=_two(run, "max_size_cycle"))


def combined_resumed(run: Run) -> None:
    fit_until(run, 13, loaders=_two(run, "min_size"), callbacks=[Saves(run, every_n_train_steps=12)])
    fit(run, loaders=_two(run, "min_size"), checkpoint=newest(run))


def two_fits(run: Run) -> None:
    """Two calls of `fit` with one loader."""
    loader = run.loader()
    run.leg()
    one = trainer(run, max_epochs=1)
    one.fit(Model(run), loader)
    one.fit_loop.max_epochs = 3
    one.fit(Model(run), loader)


def overfit(run: Run) -> None:
    fit(run, overfit_batches=3)


def predict(run: Run) -> None:
    run.leg()
    trainer(run).predict(Model(run), run.loader(shuffle=False))


def killed(run: Run) -> None:
    """One job that is killed in step 27, and started again by the same script."""
    last = run.out / "last.ckpt"
    saves = Saves(run, every_n_train_steps=6, save_last=True)
    fit(run, callbacks=[saves, Kills(run, 27)], checkpoint=last if last.exists() else None)


warnings.filterwarnings("ignore")
for logger in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(logger).setLevel(logging.ERROR)
