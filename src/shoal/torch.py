"""The door for torch: loaders and datasets that give tensors, on any number of ranks and workers.

`import shoal` does not import torch; this does.
"""

from __future__ import annotations

from shoal.integrations.torch_iterable import IterableDataset
from shoal.integrations.torch_loader import DataLoader
from shoal.integrations.torch_ranks import compare_ranks, partition

__all__ = ["DataLoader", "IterableDataset", "compare_ranks", "partition"]
