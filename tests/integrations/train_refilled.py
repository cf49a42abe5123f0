"""A rank of a toy run that fills its batches, which saves its place after each step, and is killed after some."""

from __future__ import annotations

import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

from tests.integrations import stages

import shoal
import shoal.torch
from shoal.errors import ShuffleWarning

SAVED_AT = 3  # steps before the end: what comes after the last checkpoint is lost, and done again


def items_in(batch: dict[str, Any]) -> list[int]:
    """The samples of a batch, or their parts: a number for each."""
    items: list[int] = (batch["__id__"] * 4 + batch.get("__part__", 0)).tolist()
    return items


def write_captions(out: Path, num_samples: int) -> None:
    """Write a caption for each sample, in another order."""
    numbers = [number * 7 % num_samples for number in range(num_samples)]
    shoal.pack.pack(
        ({"id": f"{number:05d}", "caption": number} for number in numbers), out / "captions", format="jsonl"
    )


def dataset(out: Path, kind: str) -> shoal.Dataset:
    ds = shoal.open(str(out / "data"), index=str(out / "fine.index"))
    if kind == "joined":
        ds = ds.join(shoal.open(out / "captions"), on=("__key__", "id"))
    if kind == "windows":
        ds = ds.windows(3, by="shard", pad="edge")  # one of each sample, which begins with it
    ds = ds.shuffle(seed=11, window=100_000, num_canonical_nodes=2)
    if kind == "divided":
        ds = ds.flat_map(stages.in_parts, most=3)
    else:
        ds = ds.filter(stages.begins_odd if kind == "windows" else stages.is_odd, refill=True)
    return ds.with_ids().batch(8, steps="apart")


def consumed(out: Path) -> tuple[list[int], list[Any]]:
    """The samples or parts that were received before checkpoints, and the certificates saved with these."""
    items, proofs = [], []
    for path in sorted(out.glob("saved-*.json")):
        saved = json.loads(path.read_text())
        items += saved["items"]
        proofs.append(saved["certificate"])
    return items, proofs


def run(
    out: Path,
    number: int,
    rank: int,
    world_size: int,
    num_workers: int,
    steps: int,
    method: str | None,
    kind: str,
) -> None:
    """Run leg ``number`` from what the ranks of the one before saved: some steps, or with 0 to the epoch's end."""
    warnings.simplefilter("ignore", ShuffleWarning)
    ds = dataset(out, kind).partition(rank=rank, world_size=world_size)
    loader = shoal.torch.DataLoader(ds, num_workers=num_workers, multiprocessing_context=method)
    if number:
        before = [json.loads(path.read_text())["state"] for path in out.glob(f"saved-{number - 1}-*.json")]
        loader.load_state_dict(shoal.merge_states(before))
    items: list[int] = []
    for step, batch in enumerate(loader, 1):
        if kind == "joined":
            assert batch["caption"].tolist() == batch["__id__"].tolist()
        items += items_in({name: batch[name].numpy() for name in batch if name in ("__id__", "__part__")})
        if not steps or step <= steps - SAVED_AT:
            saved = {"state": loader.state_dict(), "certificate": loader.certificate(), "items": items}
            (out / f"saved-{number}-{rank}.json").write_text(json.dumps(saved))
        if step == steps:
            os.kill(os.getpid(), signal.SIGKILL)
