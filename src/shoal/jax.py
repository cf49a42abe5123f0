"""Public interface for JAX: batches as arrays of one or all processes, with the protocol of Grain's iterators.

Neither `import shoal` nor this module imports jax before a loader is created.
"""

from __future__ import annotations

from shoal.integrations.jax_loader import DataIterator, DataLoader, compare_ranks, partition

__all__ = ["DataIterator", "DataLoader", "compare_ranks", "partition"]
