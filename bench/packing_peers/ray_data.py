"""Ray Data: `read_binary_files`, a map to keys and fields, `write_webdataset`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
from packing_job import PROCESSES, PackingJob, begun, main
from tar_keys import tar_keys


def sample_of_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": Path(row["path"]).stem, "bin": row["bytes"]}


def write(job: PackingJob) -> None:
    ray.init(num_cpus=PROCESSES, include_dashboard=False, object_store_memory=400 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    begun()
    num_bytes = sum(Path(path).stat().st_size for path in job.files)
    blocks = max(PROCESSES, num_bytes // job.shard_bytes)
    found = ray.data.read_binary_files(job.files, include_paths=True, override_num_blocks=blocks)
    found.map(sample_of_row).write_webdataset(job.out)
    ray.shutdown()


if __name__ == "__main__":
    main(write, tar_keys)
