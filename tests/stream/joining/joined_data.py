"""Two sides of a join whose samples say in their bytes which they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import shoal
from shoal.stream.dataset import Dataset

NUM_LEFT = 240
ORDERS = ("equal", "sparse", "shuffled", "rotated", "larger", "disjoint")


def write_left(directory: Path) -> Path:
    """Tars of 240 samples ``k000`` to ``k239``, in several shards of several extents."""
    samples = ({"__key__": f"k{i:03d}", "txt": f"left {i} ".encode() * (1 + i % 40)} for i in range(NUM_LEFT))
    shoal.pack.pack(samples, directory, format="tar", shard_bytes="100KiB", extent_bytes=4096)
    return directory


def numbers_of(order: str) -> list[int]:
    """The keys of a right side, as numbers, in its order; see `ORDERS`."""
    everything = list(range(NUM_LEFT))
    orders = {
        "equal": everything,
        "sparse": [i for i in everything if i % 7 not in (2, 3)],
        "shuffled": [i * 77 % NUM_LEFT for i in everything],
        "rotated": everything[100:] + everything[:100],
        "larger": list(range(-30, NUM_LEFT + 30)),
        "disjoint": [i + 500 for i in everything],
    }
    return orders[order]


def caption(number: int) -> str:
    """What the right side has of a sample."""
    return f"caption {number} " * (1 + number % 23)


def write_right(directory: Path, order: str, *, format: str = "tar") -> Path:  # noqa: A002
    """Shards of captions; tars have keys, other formats have the field ``key``."""
    numbers: Iterable[int] = numbers_of(order)
    if format == "tar":
        samples: Any = ({"__key__": f"k{i:03d}", "caption": caption(i).encode()} for i in numbers)
    else:
        samples = ({"key": f"k{i:03d}", "caption": caption(i)} for i in numbers)
    shoal.pack.pack(samples, directory, format=format, shard_bytes="40KiB", extent_bytes=4096)
    return directory


def joined(left: Path, right: Path, *, how: str = "inner", **more: Any) -> Dataset:
    """Return the left side with the captions of the right."""
    other = shoal.open(right)
    on: Any = "__key__" if other.stream.opened.index.format == "tar" else ("__key__", "key")
    return shoal.open(left).join(other, on=on, how=how, **more)


def check_joined(sample: dict[str, Any], numbers: set[int]) -> int:
    """Return the number of a sample; both of its sides are right."""
    number = int(sample["__key__"][1:])
    assert sample["txt"] == f"left {number} ".encode() * (1 + number % 40)
    if number in numbers:
        text = sample["caption"]
        assert (text.decode() if isinstance(text, bytes) else text) == caption(number)
    else:
        assert sample.get("caption") is None
    return number


def check_batch(batch: dict[str, Any], numbers: set[int]) -> list[int]:
    """Return the numbers of the samples of a batch, without marked repeats."""
    pads = batch.get("__pad__", [False] * len(batch["__key__"]))
    columns = {name: list(batch[name]) for name in ("__key__", "txt", "caption") if name in batch}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [check_joined(row, numbers) for row, pad in zip(rows, pads, strict=True) if not pad]
