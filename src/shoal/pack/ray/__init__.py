"""Packing with Ray: a job's units as tasks, and Ray Data's datasets written and read as shards."""

from __future__ import annotations as _annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from shoal.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from shoal.pack.ray.ray_data_shards import ShoalDatasink, ShoalDatasource
    from shoal.pack.ray.ray_tasks import run

__all__ = ["ShoalDatasink", "ShoalDatasource", "run"]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "shoal.pack.ray.ray_data_shards": "ShoalDatasink ShoalDatasource",
        "shoal.pack.ray.ray_tasks": "run",
    },
)
