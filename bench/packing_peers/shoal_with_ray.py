"""The job of `shoal pack` on Ray."""

from __future__ import annotations

import ray
import shoal_pack
from packing_job import PROCESSES, PackingJob, begun, main

import shoal.pack.ray


def write(job: PackingJob) -> None:
    ray.init(num_cpus=PROCESSES, include_dashboard=False, object_store_memory=400 << 20)
    begun()
    shoal.pack.ray.run(shoal_pack.planned(job))
    ray.shutdown()


if __name__ == "__main__":
    main(write, shoal_pack.read)
