"""Packing with Spark beside local processes: ``PYSPARK_PYTHON=python python bench/pack_with_spark.py [REPEATS]``.

Needs pyspark[sql] and Java. Both make the same shards of the same files, in turn, with two processes; then a table is
written as it is, and sorted. Starting the session is not counted.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shoal.pack.spark

NUM_FILES, NUM_ROWS = 10_000, 100_000


def main() -> None:
    """Measure, and print medians."""
    try:
        from pyspark.sql import SparkSession, functions  # noqa: PLC0415
    except ImportError:
        print("pack_with_spark: there is no pyspark")
        return
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "2")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    shoal.pack.spark.register(spark)
    home = Path(tempfile.mkdtemp(prefix="spark-bench-"))
    (home / "in").mkdir()
    for number in range(NUM_FILES):
        (home / "in" / f"{number:05d}.bin").write_bytes(number.to_bytes(4, "little") * 4096)
    text = functions.concat(functions.lit("text " * 40), functions.col("id").cast("string"))
    rows = spark.range(0, NUM_ROWS, 1, 2).select("id", (functions.hash("id") % 1000).alias("key"), text.alias("text"))
    out, size = home / "out", "16MiB"

    def as_it_is() -> None:
        writer = rows.write.format("shoal").mode("append").option("format", "parquet").option("shard_bytes", "2MiB")
        writer.save(str(out))

    runs: dict[str, Callable[[], Any]] = {
        "local": lambda: shoal.pack.pack(home / "in", out, shard_bytes=size, num_workers=2),
        "spark": lambda: shoal.pack.spark.run(spark, shoal.pack.plan(home / "in", out, shard_bytes=size)),
        "table as it is": as_it_is,
        "table sorted": lambda: shoal.pack.spark.write(rows, out, key="key", shard_bytes="2MiB"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            began = time.monotonic()
            run()
            if repeat:  # the first starts workers
                seconds[name].append(time.monotonic() - began)
            shutil.rmtree(out)
    for name, taken in seconds.items():
        count = NUM_ROWS if "table" in name else NUM_FILES
        print(f"{name}: {count / statistics.median(taken):,.0f} rows/s, seconds {[round(one, 2) for one in taken]}")
    spark.stop()
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
