"""How long an epoch is, by kind of dataset: what a framework may say of it before training, and what comes.

The numbers are those of the laws in ``docs/semantics.md``, counted by hand, for batches of 8 a rank.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.stream.made import write_tars

import shoal

NUM_EPOCHS, ACCUMULATED, BATCH = 2, 4, 8
WITHOUT_LENGTH = "no length"
COUNTS = (70, 1, 0, 49, 30)  # 150 samples
ENDLESS = 25  # steps of a run over a dataset without end


@dataclass(frozen=True)
class Kind:
    """A kind of dataset, and its batches on a rank in each epoch, by world size.

    The batches of the first epoch are said at its start if their number ``is_known``. ``num_samples`` are those of an
    epoch over all ranks, None if they are not said. Lightning asks for a loader in each epoch if it ``is_reloaded``.
    ``refused`` is in the error of several ranks, and ``warns`` in a warning.
    """

    make: Callable[[Path], shoal.Dataset]
    batches: dict[int, list[int]]
    is_known: bool = True
    is_endless: bool = False
    is_reloaded: bool = False
    num_samples: int | None = 150
    refused: str = ""
    warns: str = ""

    def said(self, world_size: int) -> int | None:
        """The batches of an epoch that are known at its start."""
        return self.batches[world_size][0] if self.is_known else None


def twice(one: int, two: int) -> dict[int, list[int]]:
    """The same batches in both epochs, at 1 and at 2 ranks."""
    return {1: [one] * NUM_EPOCHS, 2: [two] * NUM_EPOCHS}


def write_data(folder: Path) -> None:
    """150 samples in tars, 150 lines to be opened without an index, and 150 documents of 4 tokens."""
    write_tars(folder / "data", COUNTS)
    (folder / "growing").mkdir()
    for shard, num_letters in enumerate((10, 4000, 10, 1000, 100)):  # the first of them tell little of the others
        lines = "".join(json.dumps({"text": "x" * num_letters}) + "\n" for _ in range(30))
        (folder / "growing" / f"{shard}.jsonl").write_text(lines)
    documents = ({"tokens": np.arange(4, dtype=np.int32), "num_tokens": 4} for _ in range(150))
    shoal.pack.pack(documents, folder / "documents", format="mds", columns=["num_tokens"])


def samples(folder: Path, num_samples: int = 150) -> shoal.Dataset:
    """The samples, shuffled, each its number."""
    return numbered(shoal.open(folder / "data").take(num_samples).shuffle(seed=0))


def growing(folder: Path) -> shoal.Dataset:
    """The lines before they are indexed, in several segments."""
    return numbered(shoal.open(folder / "growing", index="grow").shuffle(seed=0, window="16KiB"))


def numbered(ds: shoal.Dataset) -> shoal.Dataset:
    """Samples that are their number."""
    return ds.with_ids().columns("__id__").rename(ids="__id__")


def kept(folder: Path) -> shoal.Dataset:
    """The 100 of them whose number does not divide by 3, in batches that are filled up."""
    return samples(folder).filter(does_not_divide_by_3, refill=True)


def does_not_divide_by_3(sample: dict[str, Any]) -> bool:
    """What a filter keeps."""
    return bool(sample["ids"] % 3)


def sequences(folder: Path, **how: Any) -> shoal.Dataset:
    """75 sequences, of two documents of 4 tokens each."""
    return shoal.open(folder / "documents").shuffle(seed=0).pack_sequences(10, strategy="best_fit", **how)


def mixture(folder: Path, **ends: Any) -> shoal.Dataset:
    """The 150 samples under two names."""
    return shoal.mix({"a": samples(folder), "b": samples(folder)}, **ends)


LEFT_OUT = Kind(
    lambda folder: samples(folder).batch(BATCH).without(positions=[(0, 16)]),
    {1: [17, 19], 2: [9, 10]},
    warns="batches on each rank",
)
KINDS = {
    "uneven": Kind(lambda folder: samples(folder).batch(BATCH), twice(19, 10)),
    "padded": Kind(lambda folder: samples(folder).batch(BATCH, remainder="pad"), twice(19, 10)),
    "dropped": Kind(lambda folder: samples(folder).batch(BATCH, remainder="drop"), twice(18, 9)),
    # 145 = 9 * 16 + 1: one rank gets the sample, the other a repeat.
    "fewer left than ranks": Kind(
        lambda folder: samples(folder, num_samples=145).batch(BATCH), twice(19, 10), num_samples=145
    ),
    "filter": Kind(lambda folder: samples(folder).filter(does_not_divide_by_3).batch(BATCH), twice(19, 10)),
    "refill, in passes": Kind(lambda folder: kept(folder).batch(BATCH, remainder="drop", steps=7), twice(7, 7)),
    "refill": Kind(
        lambda folder: kept(folder).batch(BATCH),
        {1: [13, 13]},
        is_known=False,
        refused="batch(..., steps=1000)",
    ),
    "packed": Kind(lambda folder: sequences(folder).batch(BATCH), twice(10, 5), num_samples=75),
    "packed as they come, in passes": Kind(
        lambda folder: sequences(folder, lengths=None).batch(BATCH, remainder="drop", steps=6), twice(6, 6)
    ),
    "packed as they come": Kind(
        lambda folder: sequences(folder, lengths=None).batch(BATCH),
        {1: [10, 10]},
        is_known=False,
        refused="batch(..., steps=1000)",
    ),
    # Batches of 16 documents, one a rank at each step.
    "by length": Kind(
        lambda folder: shoal.open(folder / "documents").shuffle(seed=0).batch_by_length(16),
        twice(10, 5),
    ),
    "mixture": Kind(lambda folder: mixture(folder).batch(BATCH), twice(38, 19), num_samples=300),
    "mixture of a size": Kind(
        lambda folder: mixture(folder, epoch_size=100).batch(BATCH), twice(13, 7), num_samples=100
    ),
    "mixture in rounds": Kind(
        lambda folder: mixture(folder, repeat={"a": 1, "b": 0.5}).batch(BATCH), twice(29, 15), num_samples=225
    ),
    "mixture without end": Kind(
        lambda folder: mixture(folder, ends="forever").batch(BATCH),
        {1: [ENDLESS], 2: [ENDLESS]},
        is_known=False,
        is_endless=True,
        num_samples=None,
    ),
    "growing": Kind(
        lambda folder: growing(folder).batch(BATCH),
        twice(19, 10),
        is_known=False,
        num_samples=None,
    ),
    # The first epoch lacks 16 samples.
    "left out": LEFT_OUT,
    "left out, and asked for in each epoch": replace(LEFT_OUT, is_reloaded=True),
}


def expected(framework: str, kind: Kind, world_size: int) -> dict[str, Any]:
    """What a run of two epochs is to write down."""
    batches, said = kind.batches[world_size], kind.said(world_size)
    asks_once = framework == "transformers" or (framework == "lightning" and not kind.is_reloaded)
    if asks_once and said is not None:
        batches = [min(said, number) for number in batches]
    window = ACCUMULATED if said is not None and framework in {"accelerate", "lightning", "transformers"} else 1
    num_updates = sum(math.ceil(number / window) for number in batches)
    num_wanted = None if said is None else NUM_EPOCHS * math.ceil(said / window)
    unknown = WITHOUT_LENGTH if said is None else said
    wanted: dict[str, dict[str, Any]] = {
        "torch": {"len(loader)": unknown, "len(loader.dataset)": kind.num_samples or WITHOUT_LENGTH},
        "fabric": {"len(loader)": unknown},
        "accelerate": {"len(loader)": unknown},
        "lightning": {
            "num_training_batches": math.inf if said is None else said,
            "estimated_stepping_batches": (sum(batches) if kind.is_endless else -1) if said is None else num_wanted,
        },
        "transformers": {
            "max_steps": sum(batches) if said is None else num_wanted,
            "num_update_steps_per_epoch": sum(batches) if said is None else math.ceil(said / window),
            "num_train_epochs": None if said is None else NUM_EPOCHS,
        },
    }
    # Of accelerate, a schedule advances by a step of every rank.
    at = num_updates * (world_size if framework == "accelerate" else 1)
    return {"said": wanted[framework], "batches": batches, "updates": num_updates, "scheduler": at}
