"""Shards of known samples, and helpers for comparisons."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from shoal.formats.shard_format import Format, Sample
from shoal.index.shard_scan import Buffer, ShardScan

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class KnownShard:
    """A shard of some format with its name, its bytes, and its samples; ``is_decoded`` if its bytes are compressed."""

    name: str
    data: bytes
    samples: Sequence[Sample]
    format_name: str = ""
    is_decoded: bool = False

    def read(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Return the bytes of a range in the shard, sometimes as a view."""
        inside = 0 <= first_byte <= end_byte <= len(self.data)
        require(inside, self, f"bytes [{first_byte}, {end_byte}) are requested, but the shard has {len(self.data)}")
        data = self.data[first_byte:end_byte]
        return data if first_byte % 2 else memoryview(data)

    def scan(self, format: Format) -> ShardScan:  # noqa: A002
        """Scan the shard with the format."""
        return format.scan(self.read, len(self.data), shard=self.name)


def require(condition: bool, known: KnownShard, what: str) -> None:  # noqa: FBT001
    """Raise AssertionError with the names of format and shard if the condition fails."""
    if not condition:
        raise AssertionError(f"{known.format_name}, shard {known.name!r}: {what}")


def require_same(value: Any, expected: Any, known: KnownShard, what: str) -> None:
    """Raise AssertionError if a value differs from the expected value; only then the values become text."""
    if not same(value, expected):
        require(False, known, f"{what} is {value!r:.300}, but should be {expected!r:.300}")


def measured(work: Callable[[], _Result]) -> tuple[_Result, int]:
    """Return the result of the work, and the peak growth of the memory of Python and numpy meanwhile."""
    already = tracemalloc.is_tracing()
    if not already:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        result = work()
        return result, tracemalloc.get_traced_memory()[1] - before
    finally:
        if not already:
            tracemalloc.stop()


def same(one: Any, other: Any) -> bool:
    """Return True if two values are equal in type and content, field by field; arrays also in dtype and shape."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return same(one.tolist(), other.tolist()) if one.dtype.hasobject else one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (isinstance(one, float) and one != one and other != other))  # noqa: PLR0124
