"""Packing with Spark: a job's units as tasks."""

from __future__ import annotations as _annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from shoal.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from shoal.pack.spark.spark_tasks import run

__all__ = ["run"]

__getattr__, __dir__ = _lazy_names(__name__, {"shoal.pack.spark.spark_tasks": "run"})
