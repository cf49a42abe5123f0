"""Damaged inputs of the compiled functions that take many samples or rows at once, for `tests.formats.fuzz`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.formats.made_shards import made

from shoal.errors import ShardError, UsageError
from shoal.formats.compiled_cutting import is_compiled, take_rows, values_of_rows
from shoal.formats.format_registry import FORMATS
from shoal.formats.shard_format import Span
from shoal.testing import Damage

Take = Callable[[Damage], bool]


def inputs_of_gathering() -> Iterator[tuple[str, bytes, Take]]:
    """Shards whose samples are cut together, and offsets and rows of columns."""
    if not is_compiled:
        return
    for name in ("tar", "mds", "jsonl", "text", "tfrecord"):
        for shard, (data, _) in made(name, huge=False).shards.items():
            if data:
                yield shard, data, _shard_taker(name, data)
    texts = [b"text", b"", "d\u00e9j\u00e0 vu".encode(), b"x" * 300]
    for dtype in (np.int32, np.int64):
        offsets = np.cumsum([0, *map(len, texts)]).astype(dtype).tobytes()
        yield f"offsets {dtype.__name__}", offsets, _offsets_taker(dtype, b"".join(texts))
    yield "rows", np.arange(9, dtype=np.int64).tobytes(), _take_rows


def _shard_taker(name: str, data: bytes) -> Take:
    reader = FORMATS[name]
    scan = reader.scan(lambda first, end: data[first:end], len(data), shard="a")
    begin, end, count = int(scan.sample_starts[0]), int(scan.sample_starts[-1]), len(scan.sample_starts) - 1
    starts = (scan.sample_starts - begin).tolist()

    def take(damage: Damage) -> bool:
        part = damage.data[begin:end].ljust(end - begin, b"\0")
        refused = False
        for held in (part, memoryview(bytearray(part))):
            try:
                records: Any = reader.parse(held, Span("a", begin, count, starts, scan.head))
            except ShardError:  # lines that do not end where the index says
                return True
            piece = getattr(records, "piece", None)
            if piece is None:
                continue
            samples = piece.cut({3: (piece, 5)}, [*range(5, 5 + count)], [3] * count, None, 0, count)
            for number in range(count):
                try:
                    wanted = records.sample(number)
                except (ShardError, UsageError):
                    refused = True
                    if number < len(samples):
                        raise AssertionError(f"sample {number} is damaged, but was cut") from None
                    break
                if number < len(samples) and repr(samples[number]) != repr(wanted):
                    raise AssertionError(f"sample {number} is {samples[number]!r} instead of {wanted!r}")
        return refused

    return take


def _offsets_taker(dtype: Any, data: bytes) -> Take:
    def take(damage: Damage) -> bool:
        offsets = np.frombuffer(damage.data[: len(damage.data) // dtype().itemsize * dtype().itemsize], dtype)
        rows = np.arange(max(0, len(offsets) - 1))
        for is_text in (False, True):
            values = values_of_rows([(offsets, data)], np.zeros_like(rows), rows, is_text)
            pairs = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
            if values is not None and [data[a:b] for a, b in pairs] != [v.encode() if is_text else v for v in values]:
                raise AssertionError(f"{values} of {pairs}")
        return values is None

    return take


def _take_rows(damage: Damage) -> bool:
    rows = np.frombuffer(damage.data[: len(damage.data) // 8 * 8], np.int64)
    source, out = np.arange(90, dtype=np.uint8), np.zeros((len(rows), 10), np.uint8)
    done = take_rows(source, 0, 10, rows, out)
    if done and not np.array_equal(out, source.reshape(9, 10)[rows]):
        raise AssertionError(f"other rows than {rows}")
    return not done
