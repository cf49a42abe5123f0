"""The cells of the suite: which runs of which framework, at which sizes, and why shoal may differ from torch in one."""

from __future__ import annotations

from dataclasses import dataclass

# By framework, each function of its script, and how a table names it.
CELLS = {
    "lightning": {
        "whole": "whole epochs",
        "persistent": "`persistent_workers=True`",
        "validation": "validation every 7 batches, after a sanity check of 2",
        "limit_batches": "`limit_train_batches=5`",
        "limit_fraction": "`limit_train_batches=0.25`",
        "limit_resumed": "`limit_train_batches=5`, resumed in the middle of an epoch",
        "accumulation": "`accumulate_grad_batches=4`, 19 batches an epoch",
        "max_steps": "`max_steps=25`",
        "max_steps_resumed": "`max_steps=25`, resumed with `max_steps=45`",
        "early_stop": "`EarlyStopping` in the middle of an epoch",
        "resume_default": "resumed from the default checkpoint, of an epoch's end",
        "resume_middle": "resumed from a checkpoint in the middle of an epoch",
        "resume_last_batch": "resumed from a checkpoint of steps, at the last batch of an epoch",
        "resume_last": "resumed from `last.ckpt`",
        "resume_accumulation": "resumed in the middle, with `accumulate_grad_batches=4`",
        "resume_validation": "resumed from a checkpoint written after a validation within the epoch",
        "estimated": "a schedule of `estimated_stepping_batches`",
        "estimated_resumed": "a schedule of `estimated_stepping_batches`, resumed in the middle",
        "data_module": "a `LightningDataModule`",
        "reload": "`reload_dataloaders_every_n_epochs=1`",
        "reload_resumed": "`reload_dataloaders_every_n_epochs=1`, resumed in the middle",
        "combined_shortest": '`CombinedLoader` of two, "min_size"',
        "combined_cycle": '`CombinedLoader` of two, "max_size_cycle"',
        "combined_resumed": "`CombinedLoader` of two, resumed in the middle",
        "two_fits": "two calls of `fit` with one loader",
        "overfit": "`overfit_batches=3`",
        "predict": "`predict`",
        "killed": "killed with `kill -9` in the second epoch, and started again",
    },
    "accelerate": {
        "whole": "whole epochs",
        "persistent": "`persistent_workers=True`",
        "stateful": "`use_stateful_dataloader=True`",
        "limit_break": "`break` after 5 batches",
        "limit_islice": "`islice(loader, 5)`",
        "limit_set_epoch": "`loader.set_epoch(epoch)`, and `break` after 5 batches",
        "accumulation": "`accelerator.accumulate`, 4 batches, 19 an epoch",
        "split_batches": "`split_batches=True`",
        "dispatch_batches": "`dispatch_batches=True`",
        "metrics": "`gather_for_metrics` over 145 samples",
        "resume_skip": "resumed by `set_epoch` and `skip_first_batches`",
        "resume_skip_unnamed": "resumed by `skip_first_batches` alone",
        "resume_stateful": "resumed by `load_state`, with `use_stateful_dataloader=True`",
        "resume_end": "the same from the end of an epoch",
        "resume_last_batch": "the same from the last batch of an epoch, within its loop",
        "killed": "killed with `kill -9` in the second epoch, and started again",
    },
    "transformers": {
        "whole": "whole epochs",
        "persistent": "`dataloader_persistent_workers=True`",
        "accumulation": "`gradient_accumulation_steps=4`, 19 batches an epoch",
        "max_steps": "`max_steps=25`",
        "max_steps_resumed": "`max_steps=25`, resumed with `max_steps=45`",
        "validation": "evaluation every 7 steps",
        "early_stop": "`EarlyStoppingCallback` in the middle of an epoch",
        "resume_default": "resumed from the checkpoint of an epoch's end",
        "resume_middle": "resumed from a checkpoint in the middle of an epoch",
        "resume_last_batch": "resumed from a checkpoint of steps, at the last batch of an epoch",
        "resume_last": "`resume_from_checkpoint=True`",
        "resume_ignore_data_skip": "resumed with `ignore_data_skip=True`, and no state of the loader",
        "resume_accumulation": "resumed in the middle, with `gradient_accumulation_steps=4`",
        "group_by_length": '`train_sampling_strategy="group_by_length"`',
        "killed": "killed with `kill -9` in the second epoch, and started again",
    },
    "trl": {
        "whole": "`SFTTrainer`, whole epochs",
        "accumulation": "`gradient_accumulation_steps=4`, 19 batches an epoch",
        "resume_middle": "resumed from a checkpoint in the middle of an epoch",
    },
    "fabric": {
        "whole": "whole epochs",
        "persistent": "`persistent_workers=True`",
        "limit_break": "`break` after 5 batches",
        "accumulation": "`no_backward_sync`, 4 batches, 19 an epoch",
        "validation": "a second loader after each epoch",
        "resume_middle": "`fabric.save` and `load` in the middle of an epoch, the loader in the state",
        "resume_end": "the same at the end of an epoch",
        "resume_last_batch": "the same at the last batch of an epoch, within its loop",
        "killed": "killed with `kill -9` in the second epoch, and started again",
    },
    "torchdata": {
        "states": "states after each batch, and after the epoch; `shoal.torch.DataLoader`",
        "states_wrapped": "the same; `StatefulDataLoader` over `shoal.torch.IterableDataset`",
        "last_batch": "the state after the last batch, within the loop; `shoal.torch.DataLoader`",
        "last_batch_wrapped": "the same; `StatefulDataLoader` over `shoal.torch.IterableDataset`",
    },
    "torch": {
        "whole": "whole epochs, named by `sampler.set_epoch`",
        "persistent": "`persistent_workers=True`",
        "unnamed": "whole epochs that nobody names",
        "limit_break": "`break` after 5 batches, epochs that nobody names",
        "limit_named": "`sampler.set_epoch`, and `break` after 5 batches",
        "iterable": "torch's loader over `shoal.torch.IterableDataset` of batches",
        "iterable_persistent": "the same with `persistent_workers=True`",
        "iterable_samples": "torch's loader over `shoal.torch.IterableDataset` of samples",
        "listed": "torch's loader over `ds.as_map()` with `shoal.torch.BatchSampler`",
        "listed_persistent": "the same with `persistent_workers=True`",
        "quickstart": "the loop of torch's quickstart, with `len(dataloader.dataset)`",
        "accumulation": "4 batches an update and the rest of an epoch one more",
        "resumed": "begun at an epoch by another loader",
        "checkpoint": "`torch.distributed.checkpoint` in the middle of an epoch",
    },
    "timm": {
        "whole": "whole epochs",
        "fresh_workers": "`persistent_workers=False`",
        "accumulation": "`grad_accum_steps=4`, and a schedule of updates",
        "resumed": "resumed from the checkpoint of an epoch's end",
        "resumed_accumulation": "the same with `grad_accum_steps=4`",
        "killed": "killed with `kill -9` in the second epoch, and started again",
    },
    "torchtitan": {
        "resumed": "resumed by `CheckpointManager` in the middle of an epoch; `shoal.torch.DataLoader`",
        "resumed_wrapped": "the same; `ParallelAwareDataloader` over `shoal.torch.IterableDataset`",
        "resumed_async": '`async_mode="async"`; `shoal.torch.DataLoader`',
        "exhausted": "one epoch, resumed in its middle",
        "killed": "killed with `kill -9` in the second epoch, and started again",
    },
    "deepspeed": {
        "whole": "whole epochs",
        "persistent": "`persistent_workers=True`",
        "accumulation": "`gradient_accumulation_steps=4`, 19 batches an epoch",
        "resume_middle": "`client_state` of a checkpoint in the middle of an epoch, the loader's state in it",
        "resume_end": "the same at the end of an epoch",
        "repeating": "`RepeatingLoader`",
        "repeating_resumed": "`RepeatingLoader`, made before the loader's state is loaded",
        "killed": "killed with `kill -9` in the second epoch, and started again",
    },
}
# For workers, ranks or two processes.
_KEPT = {
    *("persistent", "iterable_persistent", "listed_persistent", "fresh_workers", "split_batches", "metrics", "killed"),
}
_ALONE = {"timm", "torchtitan", "deepspeed"}


@dataclass(frozen=True)
class Launch:
    """One job for each kind of loader, in which cells run one after the other."""

    framework: str
    cells: tuple[str, ...]
    world_size: int = 1
    num_workers: int = 0
    is_killed: bool = False

    def __str__(self) -> str:
        """As a test is named."""
        return f"{self.framework}-{self.size.replace(', ', '-').replace(' ', '_')}{'-killed' * self.is_killed}"

    @property
    def environment(self) -> str:
        """The name of the packages that it needs: those of one framework, where a machine may lack them."""
        return self.framework if self.framework in _ALONE else "frameworks"

    @property
    def size(self) -> str:
        """Ranks and workers."""
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return f"{ranks}, {self.num_workers} workers"


def _all(framework: str) -> Launch:
    return Launch(framework, tuple(cell for cell in CELLS[framework] if cell not in _KEPT))


_RESUMES = ("whole", "resume_middle", "resume_default")
LAUNCHES = (
    *map(_all, CELLS),
    Launch("lightning", (*_RESUMES, "persistent", "limit_batches", "estimated_resumed", "combined_shortest"), 1, 2),
    Launch(
        "lightning",
        ("whole", "resume_middle", "validation", "accumulation", "max_steps", "reload", "predict"),
        2,
    ),
    Launch(
        "lightning",
        (*_RESUMES, "persistent", "limit_batches", "limit_resumed", "resume_last", "estimated_resumed"),
        2,
        2,
    ),
    Launch("lightning", ("killed",), 2, 2, is_killed=True),
    Launch(
        "accelerate", ("whole", "persistent", "limit_set_epoch", "accumulation", "resume_stateful", "resume_end"), 1, 2
    ),
    Launch(
        "accelerate",
        ("whole", "accumulation", "split_batches", "dispatch_batches", "metrics", "resume_stateful"),
        2,
    ),
    Launch(
        "accelerate",
        ("whole", "persistent", "limit_set_epoch", "resume_skip", "resume_stateful", "resume_end"),
        2,
        2,
    ),
    Launch("accelerate", ("killed",), 2, is_killed=True),
    Launch("transformers", ("whole", "persistent", "resume_middle", "validation"), 1, 2),
    Launch("transformers", ("whole", "resume_middle", "accumulation", "validation"), 2),
    Launch("transformers", (*_RESUMES, "persistent", "max_steps", "resume_last"), 2, 2),
    Launch("transformers", ("killed",), 2, is_killed=True),
    Launch("fabric", ("whole", "persistent", "limit_break", "resume_middle", "resume_end"), 1, 2),
    Launch(
        "fabric",
        ("whole", "persistent", "limit_break", "accumulation", "resume_middle", "resume_end", "resume_last_batch"),
        2,
        2,
    ),
    Launch("fabric", ("killed",), 2, is_killed=True),
    Launch("torchdata", ("states", "states_wrapped", "last_batch"), 1, 2),
    Launch(
        "torch",
        ("persistent", "limit_named", "iterable", "iterable_persistent", "iterable_samples", "listed_persistent"),
        1,
        2,
    ),
    Launch(
        "torch",
        (
            *("whole", "persistent", "limit_named", "accumulation", "resumed"),
            *("iterable", "iterable_persistent", "listed_persistent"),
        ),
        2,
        2,
    ),
    Launch("torch", ("limit_named", "iterable_samples"), 2),
    Launch("timm", ("whole", "fresh_workers", "accumulation", "resumed"), 2, 2),
    Launch("timm", ("killed",), 2, is_killed=True),
    Launch("torchtitan", ("resumed", "resumed_wrapped", "resumed_async"), 2, 2),
    Launch("torchtitan", ("killed",), 2, is_killed=True),
    Launch("deepspeed", ("whole", "persistent", "resume_middle", "resume_end", "repeating_resumed"), 2, 2),
    Launch("deepspeed", ("killed",), 2, is_killed=True),
)

# Why a cell may differ: by framework and cell, what differs (a name of `compare`), and the law.
_AGAIN = "A pass that was left early begins again, and a warning says so. Name the epochs by `set_epoch`."
_SPLIT = "Each rank reads its own part, and a warning says so: `batch(global_batch_size=n)` is over all ranks."
_EMPTY = "The state after the last batch begins the next epoch. torchdata's begins with an empty rest of the epoch."
_REPEAT = "Where fewer samples are left than ranks, a rank gets a repeat: leave it out by its mark in `__pad__`."
EXPLAINED: dict[tuple[str, str], dict[str, str]] = {
    ("accelerate", "limit_break"): {"order": _AGAIN, "warned": _AGAIN},
    ("accelerate", "limit_islice"): {"order": _AGAIN, "warned": _AGAIN},
    ("accelerate", "split_batches"): dict.fromkeys(("steps", "updates", "lengths", "warned"), _SPLIT),
    ("accelerate", "dispatch_batches"): {"warned": "Each rank reads its own part, and a warning says so."},
    ("accelerate", "metrics"): {"order": _REPEAT},
    ("fabric", "resume_last_batch"): {"steps": _EMPTY, "updates": _EMPTY},
    ("torchdata", "last_batch"): {"steps": _EMPTY},
    ("torch", "limit_break"): {"order": _AGAIN, "warned": _AGAIN},
}

# What a table says beside a cell that does not differ.
NOTES: dict[tuple[str, str], tuple[str, ...]] = {
    ("lightning", "combined_cycle"): ("The shorter loader goes on with its next epoch, in both.",),
    ("transformers", "group_by_length"): ("Has no effect: the order is the dataset's.",),
    ("transformers", "resume_ignore_data_skip"): (
        "The Trainer begins the epoch again, in both: `PositionSaver` keeps the position.",
    ),
}
