"""What a packing into an object store asks of it, a unit: the guide on packing 100 TB computes a price from this."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.storage.memory_store import MemoryStore

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "pack-100-tb.md"
PUTS, GETS, FREE = ("put", "put_if", "list"), ("find", "stat", "stat_again", "read_range", "map"), ("delete",)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Requests of all memory stores; what one of them is made of is not counted again."""
    found: Counter[str] = Counter()
    depth = 0

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def request(*given: Any, **named: Any) -> Any:
            nonlocal depth
            found[name] += depth == 0
            depth += 1
            try:
                return call(*given, **named)
            finally:
                depth -= 1

        return request

    with monkeypatch.context() as patch:
        for name in (*PUTS, *GETS, *FREE):
            if hasattr(MemoryStore, name):
                patch.setattr(MemoryStore, name, counting(name, getattr(MemoryStore, name)))
        yield found


def requests_of_job(source: Path, name: str, shard_bytes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    with counted(monkeypatch) as found:
        job = shoal.pack.plan(source, f"memory://requests/{name}", shard_bytes=shard_bytes, labelled=False)
        for number in job.missing():
            job.run(number)
        job.finish()
    return job.num_units, sum(found[name] for name in PUTS), sum(found[name] for name in GETS)


def test_the_guide_counts_no_fewer_requests_than_a_unit_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(80):
        (tmp_path / f"{number:02d}.bin").write_bytes(bytes(8000))
    few, *few_made = requests_of_job(tmp_path, "few", 160_000, monkeypatch)
    many, *many_made = requests_of_job(tmp_path, "many", 32_000, monkeypatch)
    text = GUIDE.read_text(encoding="utf-8")
    stated = [int(number) for number in re.findall(r"^(?:PUTS|GETS)_A_UNIT = (\d+)$", text, re.MULTILINE)]
    assert many > 3 * few
    for most, first, second in zip(stated, few_made, many_made, strict=True):
        assert 0.5 * most < (second - first) / (many - few) <= most
