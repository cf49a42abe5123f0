"""A rank of a toy run over batches by length or by column, or packed sequences, which saves its place and is killed."""

from __future__ import annotations

import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import shoal
import shoal.torch
from shoal.errors import ShuffleWarning

SAVED_AT = 3  # steps before the end: what comes after the last checkpoint is lost, and done again
NUM_DOCUMENTS = 600


def write(out: Path) -> None:
    """Documents whose tokens are all different."""
    sizes = np.random.default_rng(0).lognormal(2.5, 0.8, NUM_DOCUMENTS).clip(1, 79).astype(int)
    ends = np.cumsum(sizes)
    samples = (
        {"tokens": list(range(end - size, end)), "num_tokens": size, "kind": size % 4}
        for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)
    )
    shoal.pack.pack(
        samples, out / "data", format="jsonl", shard_bytes="8KiB", extent_bytes=512, columns=["num_tokens", "kind"]
    )


def dataset(out: Path, how: str) -> shoal.Dataset:
    ds = shoal.open(out / "data").shuffle(seed=11, window=20_000, num_canonical_nodes=2)
    if how == "by length":
        return ds.batch_by_length(max_tokens=160, block=128, alike=6)
    if how == "by column":
        return ds.batch(8, by="kind", alike=3)
    if how == "within limits":
        return ds.batch(limits={"num_tokens": 160, "kind": 9}, block=128)
    return ds.pack_sequences(64, strategy=how, block=128).batch(global_batch_size=6, balance="attention")


def tokens_in(batch: dict[str, Any]) -> list[int]:
    """The tokens of a batch that are neither padding nor repeats."""
    repeated = batch.get("__pad__", np.zeros(len(batch["tokens"]), dtype=bool))
    if isinstance(batch["tokens"], list):
        kept = (document for document, again in zip(batch["tokens"], repeated, strict=True) if not again)
        return [int(token) for document in kept for token in document]
    mask = batch["attention_mask"] if "attention_mask" in batch else batch["segment_ids"] > 0
    tokens: list[int] = batch["tokens"][mask & ~repeated[:, None]].tolist()
    return tokens


def run(
    out: Path, how: str, number: int, rank: int, world_size: int, num_workers: int, steps: int, method: str | None
) -> None:
    """Run leg ``number`` from what was saved in the one before: some steps, or with 0 to the epoch's end."""
    warnings.simplefilter("ignore", ShuffleWarning)
    ds = dataset(out, how).partition(rank=rank, world_size=world_size)
    loader = shoal.torch.DataLoader(ds, num_workers=num_workers, multiprocessing_context=method)
    if number:
        loader.load_state_dict(json.loads((out / f"saved-{number - 1}-0.json").read_text())["state"])
    tokens: list[int] = []
    for step, batch in enumerate(loader, 1):
        tokens += tokens_in(batch)
        if not steps or step <= steps - SAVED_AT:
            saved = {"state": loader.state_dict(), "certificate": loader.certificate(), "tokens": tokens}
            (out / f"saved-{number}-{rank}.json").write_text(json.dumps(saved))
        if step == steps:
            os.kill(os.getpid(), signal.SIGKILL)
