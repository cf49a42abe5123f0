"""The job of `shoal pack` on Spark."""

from __future__ import annotations

import shoal_pack
from packing_job import PROCESSES, PackingJob, begun, main
from pyspark.sql import SparkSession

import shoal.pack.spark


def write(job: PackingJob) -> None:
    spark = (
        SparkSession.builder.master(f"local[{PROCESSES},4]")  # a failed task is tried four times, as on a cluster
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    begun()
    shoal.pack.spark.run(spark, shoal_pack.planned(job))
    spark.stop()


if __name__ == "__main__":
    main(write, shoal_pack.read)
