"""MosaicML Streaming's `dataframe_to_mds`: a Spark dataframe of names, whose files the function of its tasks reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import mds_processes
from packing_job import PROCESSES, PackingJob, begun, main, sample_of
from pyspark.sql import SparkSession
from streaming.base.converters import dataframe_to_mds


def samples(rows: Any) -> Iterator[dict[str, Any]]:
    for path in rows["path"]:
        yield sample_of(path)


def write(job: PackingJob) -> None:
    spark = (
        SparkSession.builder.master(f"local[{PROCESSES},4]")  # a failed task is tried four times, as on a cluster
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    begun()
    frame = spark.createDataFrame([(path,) for path in job.files], "path string").repartition(4 * PROCESSES)
    columns = {"key": "str", "data": "bytes"}
    settings = {"out": job.out, "columns": columns, "size_limit": job.shard_bytes, "compression": None}
    dataframe_to_mds(frame, merge_index=True, mds_kwargs=settings, udf_iterable=samples)
    spark.stop()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(write, mds_processes.read)
