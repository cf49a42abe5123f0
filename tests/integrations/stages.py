"""Functions for `map`, `filter` and `collate_fn`, which worker processes import from here."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.stream.workers import shared_batches


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return batch


def is_odd(sample: dict[str, Any]) -> bool:
    return int(sample["cls"]) % 2 == 1


def begins_odd(window: dict[str, Any]) -> bool:
    """Of a window: what `is_odd` says of its first row; all of its rows are checked."""
    rows = [int(row) for row in window["cls"]]
    first, num_rows = rows[0], len(rows) - int(window["is_pad"].sum())
    assert rows == [first + min(place, num_rows - 1) for place in range(len(rows))]
    return first % 2 == 1


def in_parts(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Up to three parts of a sample: none for each fourth sample."""
    return [{**sample, "part": part} for part in range(int(sample["cls"]) % 4)]


def is_remote(sample: dict[str, Any]) -> bool:
    return int(sample["cls"]) >= 150


def with_pid(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "pid": os.getpid()}


def with_seed(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "drawn": (random.random(), float(torch.rand(1)), float(np.random.rand()))}


def fail_at_100(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["cls"]) == 100:
        msg = "this is sample 100"
        raise KeyError(msg)
    return sample


def fail_with_75(batch: dict[str, Any]) -> dict[str, Any]:
    if 75 in list(batch["__id__"]):
        msg = "this batch holds sample 75"
        raise KeyError(msg)
    return batch


def die_at_100(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["cls"]) == 100:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def stop_at_100(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["cls"]) == 100:
        raise SystemExit(3)
    return sample


def in_torch(sample: dict[str, Any]) -> dict[str, Any]:
    number = int(sample["cls"])
    return {
        "image": torch.full((3, 2), number, dtype=torch.bfloat16),
        "label": torch.tensor(number),
        "length": torch.zeros(1 + number % 2),
        "meta": {"name": sample["__key__"], "box": (number, torch.full((4,), number))},
        "views": [torch.full((2,), number), torch.full((1,), -number)],
    }


def with_array(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "array": np.full(5, int(sample["label"]))}


def with_gradient(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.full((2,), float(sample["cls"]), requires_grad=True)}


def with_seen_epoch(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "seen_epoch": sample["__epoch__"]}


def slowly(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.02)
    return sample


def slowly_noted(path: str, sample: dict[str, Any]) -> dict[str, Any]:
    with Path(path).open("a") as file:
        file.write(".")
    return slowly(sample)


def never(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(1000)
    return sample


def numbered(samples: list[dict[str, Any]]) -> list[int]:
    return [int(sample["cls"]) for sample in samples]


def named(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"numbers": [int(sample["cls"]) for sample in samples]}


def note_worker(number: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    assert info.id == number
    Path(os.environ["SHOAL_TEST_NOTES"], str(number)).write_text(str(os.getpid()))


def without_room(number: int, _: int) -> None:
    """In a worker: the system has no room for a batch, with this error number."""

    def refuse(_: int) -> int:
        raise OSError(number, os.strerror(number))

    shared_batches.new_file = refuse  # type: ignore[assignment]


def generated(sample: dict[str, Any]) -> dict[str, Any]:
    """What no pickle takes."""
    return {"cls": sample["cls"], "x": (number for number in range(3))}


def large(sample: dict[str, Any]) -> dict[str, Any]:
    """A megabyte of the number of the sample."""
    return {"x": np.full(1 << 18, int(sample["cls"]), dtype=np.float32)}


def large_with_id(sample: dict[str, Any]) -> dict[str, Any]:
    return {**large(sample), "__id__": sample["__id__"]}


async def fetched(sample: dict[str, Any]) -> dict[str, Any]:
    """As a request that takes a while, for some samples longer than for others."""
    number = int(sample["cls"])
    await asyncio.sleep(number % 5 / 1000)
    return {**sample, "double": 2 * number}


async def failing_at_100(sample: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.001)
    return fail_at_100(sample)


async def endless_at_70(sample: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(1000 if sample["cls"] == b"70" else 0)
    return sample


async def endless_by_file(sample: dict[str, Any]) -> dict[str, Any]:
    """As `endless_at_70`, with a line in a file when it begins to wait, and when it is cancelled."""
    if sample["cls"] != b"70":
        return sample
    with Path(os.environ["COROUTINE_LOG"]).open("a", buffering=1) as log:  # noqa: ASYNC230  # a short write
        log.write("waits\n")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            log.write("cancelled\n")
            raise
    return sample
