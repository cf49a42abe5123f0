"""Public interface for torch: loaders and datasets of tensors, on any number of ranks and workers.

`import shoal` does not import torch; this module does.
"""

from __future__ import annotations

from shoal.integrations.torch.iterable_dataset import IterableDataset
from shoal.integrations.torch.jpegs_on_accelerator import JpegDecoder
from shoal.integrations.torch.samplers import BatchSampler, Sampler
from shoal.integrations.torch.torch_loader import DataLoader
from shoal.integrations.torch.torch_ranks import compare_ranks, partition

__all__ = ["BatchSampler", "DataLoader", "IterableDataset", "JpegDecoder", "Sampler", "compare_ranks", "partition"]
