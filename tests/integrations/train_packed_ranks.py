"""A rank of a toy run that packs documents as they come, and sums something over all ranks at each step."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import shoal
import shoal.torch

NUM_DOCUMENTS, LENGTH = 400, 32


def sized(sample: dict[str, Any]) -> dict[str, Any]:
    """Make a document's tokens from its number: a tokenizer knows lengths only when it reads."""
    number = sample["number"]
    size = number % 7 + 1 if number % 200 < 100 else 20 + number % 11  # ranks that read other shards get more tokens
    return {"tokens": [number * 100 + place for place in range(size)]}


def dataset(data: Path) -> shoal.Dataset:
    ds = shoal.open(str(data / "*.jsonl")).shuffle(seed=2, num_canonical_nodes=1).map(sized)
    return ds.pack_sequences(LENGTH, strategy="best_fit", lengths=None, block=16)


def run(out: Path, rank: int, world_size: int, num_workers: int, method: str | None, how: dict[str, Any]) -> None:
    """Run two passes, with a sum over all ranks at each step."""
    where: Any = {"init_method": (out / "store").as_uri(), "rank": rank, "world_size": world_size}
    dist.init_process_group("gloo", timeout=timedelta(seconds=20), **where)
    ds = dataset(out).batch(2, **how)
    loader = shoal.torch.DataLoader(ds, num_workers=num_workers, multiprocessing_context=method)
    passes: list[list[int]] = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        passes.append([])
        for batch in loader:
            dist.all_reduce(torch.ones(1))
            passes[-1] += batch["tokens"][batch["segment_ids"] > 0].tolist()
            passes[-1].append(-1)
    (out / f"rank-{rank}.json").write_text(json.dumps({"passes": passes, "state": loader.state_dict()}))
    dist.barrier()
