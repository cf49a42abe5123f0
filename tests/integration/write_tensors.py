"""A process that writes tensors of (2, 3) with a library, Ray or datasets, into a directory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

TENSORS = np.arange(48, dtype=np.float32).reshape(8, 2, 3)


def with_ray(directory: Path) -> None:
    """Write a directory for each way in which Ray stores tensors of one shape."""
    import ray
    from ray.data.extensions import FixedShapeTensorFormat

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for kind in FixedShapeTensorFormat:
        ray.data.DataContext.get_current().arrow_fixed_shape_tensor_format = kind
        ray.data.from_numpy(TENSORS).rename_columns({"data": "tensor"}).write_parquet(str(directory / kind.name))
    ray.shutdown()


def with_datasets(directory: Path) -> None:
    """Write Parquet, and the Arrow of a saved dataset."""
    import datasets

    features = datasets.Features({"tensor": datasets.Array2D((2, 3), "float32")})
    rows = datasets.Dataset.from_dict({"tensor": TENSORS}, features=features)
    directory.mkdir(parents=True)
    rows.to_parquet(str(directory / "tensors.parquet"))
    rows.save_to_disk(str(directory / "saved"))


if __name__ == "__main__":
    {"ray": with_ray, "datasets": with_datasets}[sys.argv[1]](Path(sys.argv[2]))
