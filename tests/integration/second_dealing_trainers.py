"""What the Trainer of transformers and Lightning make of `shoal.torch.IterableDataset` on two ranks.

Usage: torchrun --nproc-per-node 2 second_dealing_trainers.py WAY DATA OUT; rank 0 prints what became of it.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch.distributed
import torch.utils.data

import shoal
import shoal.torch
from shoal.errors import UsageError


class Noting(torch.nn.Module):
    """A model that notes what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[int] = []

    def forward(self, ids: Any, **_: Any) -> dict[str, Any]:
        """The loss."""
        self.seen += ids.tolist()
        return {"loss": self.layer(ids[:, None].float() / 1000).pow(2).mean()}


def by_transformers(ds: shoal.Dataset, out: str) -> list[int]:
    """The Trainer makes the loader, and has Accelerate share it out."""
    from transformers import Trainer, TrainingArguments  # one library is enough for one way

    arguments = TrainingArguments(
        output_dir=out, max_steps=10, per_device_train_batch_size=8, use_cpu=True, report_to=[], save_strategy="no"
    )
    model = Noting()
    dataset: Any = shoal.torch.IterableDataset(ds)
    Trainer(model=model, args=arguments, train_dataset=dataset).train()
    return model.seen


def by_lightning(loader: Any) -> list[int]:
    """Lightning deals to ranks by putting a sampler of its own into a loader, where it can."""
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]  # untyped, where it is not installed
        def __init__(self) -> None:
            super().__init__()
            self.noting = Noting()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.noting(batch["ids"])["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader)
    return module.noting.seen


def main() -> None:
    way, data, out = sys.argv[1:]
    warnings.simplefilter("ignore")
    ds = shoal.open(data).shuffle(seed=0).with_ids().columns("__id__").rename(ids="__id__")
    said, seen = "", []
    try:
        if way == "transformers":
            seen = by_transformers(ds, out)
        elif way == "lightning":
            batches = shoal.torch.IterableDataset(ds.batch(8))
            seen = by_lightning(torch.utils.data.DataLoader(batches, batch_size=None))
        else:
            view: Any = ds.batch(8).as_map()
            sampler: Any = shoal.torch.BatchSampler(ds.batch(8))
            seen = by_lightning(torch.utils.data.DataLoader(view, batch_sampler=sampler))
    except (UsageError, TypeError) as error:
        said = f"{type(error).__name__}: {error}"
    everybody: list[Any] = [None, None]
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    torch.distributed.all_gather_object(everybody, (said, seen))
    if os.environ["RANK"] == "0":
        errors = sorted({text for text, _ in everybody if text})
        ids = sorted(i for _, part in everybody for i in part)
        print("refused: " + errors[0] if errors else f"right: {ids == list(range(ds.num_samples))}", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # a group that is left to the end of Python may abort it


if __name__ == "__main__":
    main()
