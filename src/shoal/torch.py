"""The door for torch: loaders and datasets that give tensors, on any number of ranks and workers.

`import shoal` does not import torch; this does.
"""

from __future__ import annotations

from shoal.integrations.torch_iterable import IterableDataset
from shoal.integrations.torch_loader import DataLoader
from shoal.integrations.torch_ranks import compare_ranks, partition
from shoal.integrations.torch_samplers import BatchSampler, Sampler

__all__ = ["BatchSampler", "DataLoader", "IterableDataset", "Sampler", "compare_ranks", "partition"]
