"""Indexing and verifying on an engine, whichever it is: the index and the report of one machine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shoal
from shoal.cli.main import main
from shoal.verify.open_to_verify import open_to_verify, verify


@dataclasses.dataclass(frozen=True)
class Slow:
    """A job whose units take their time, so that a kill finds some."""

    job: Any
    seconds: float

    @property
    def num_units(self) -> int:
        """Number of units."""
        return int(self.job.num_units)

    def missing(self) -> Any:
        """Return those of the job."""
        return self.job.missing()

    def task(self, number: int) -> Callable[[], Any]:
        """Return the unit, a little later."""
        task, seconds = self.job.task(number), self.seconds

        def slow() -> Any:
            time.sleep(seconds)
            return task()

        return slow

    def finish(self) -> Any:
        """Finish the job."""
        return self.job.finish()


def check_shards_on_engine(run: Callable[[Any], Any], directory: Path, *, seconds: float = 0.0) -> None:
    """Index shards and verify them by ``run``, with units that take so many seconds, and compare with this machine."""
    data, here, there = directory / "data", directory / "here.index", directory / "there.index"
    texts = ({"text": f"document {number}", "id": number} for number in range(3000))
    names = [shard.name for shard in shoal.pack.pack(texts, data, format="jsonl", shard_bytes="1KiB").shards]
    (data / "shoal.index").unlink()
    assert main(["index", str(data), "--output", str(here), "--checksum"]) == 0
    job = shoal.plan_index(data, to=there, checksum=True)
    assert job.num_units > 10
    assert run(Slow(job, seconds)).num_samples == 3000
    assert there.read_bytes() == here.read_bytes()
    for name in names[7::50]:
        shard = data / name
        shard.write_bytes(shard.read_bytes().replace(b"document", b"Document", 1))
    (data / names[3]).unlink()
    expected = verify(open_to_verify(data, index=here))
    assert len(expected.damages) == 1 + len(names[7::50])
    assert run(Slow(shoal.plan_verify(data, index=here, to=directory / "parts"), seconds)) == expected
    assert sorted(path.name for path in directory.iterdir()) == ["data", "here.index", "parts", "there.index"]
    assert list((directory / "parts").iterdir()) == []
