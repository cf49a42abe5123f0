"""Packing with Spark: a job's units as tasks, and Spark's tables written and read as shards."""

from __future__ import annotations as _annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from shoal.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from shoal.pack.spark.spark_datasource import ShoalDataSource, register
    from shoal.pack.spark.spark_sorted import write
    from shoal.pack.spark.spark_tasks import run

__all__ = ["ShoalDataSource", "register", "run", "write"]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "shoal.pack.spark.spark_datasource": "ShoalDataSource register",
        "shoal.pack.spark.spark_sorted": "write",
        "shoal.pack.spark.spark_tasks": "run",
    },
)
