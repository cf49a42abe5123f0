"""A driver that packs with Spark and is killed by tests: ``spark_driver.py MASTER INPUTS OUT``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import shoal.pack


@dataclass(frozen=True)
class Slow:
    """A job whose units take a tenth of a second, so that something is under way whenever it is killed."""

    job: shoal.pack.PackJob

    @property
    def num_units(self) -> int:
        return self.job.num_units

    def missing(self) -> list[int]:
        return self.job.missing()

    def task(self, number: int) -> Callable[[], Any]:
        task = self.job.task(number)

        def slow() -> Any:
            time.sleep(0.1)
            return task()

        return slow

    def finish(self) -> shoal.pack.PackSummary:
        return self.job.finish()


def main() -> None:
    """Plan the job, say so, and run it."""
    from pyspark.sql import SparkSession

    import shoal.pack.spark

    master, inputs, out = sys.argv[1:]
    session = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
    job = shoal.pack.plan(inputs, out, shard_bytes="32KiB", shuffle=True, seed=1)
    print("planned", flush=True)
    shoal.pack.spark.run(session, Slow(job))
    print("finished", flush=True)
    session.stop()


if __name__ == "__main__":
    main()
