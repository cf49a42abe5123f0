"""The door for JAX: batches as arrays, of one process or over all of them, with the protocol of Grain's iterators.

`import shoal` does not import jax, and neither does this before a loader is made.
"""

from __future__ import annotations

from shoal.integrations.jax.jax_loader import DataIterator, DataLoader, partition
from shoal.integrations.jax.jax_processes import compare_ranks

__all__ = ["DataIterator", "DataLoader", "compare_ranks", "partition"]
