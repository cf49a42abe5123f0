"""The length of a run of a mixture up to a position: in samples, in tokens, and in steps of samples or of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.reading.mixture.mix_request import MixRequest


@dataclass(frozen=True, slots=True)
class RunLengths:
    """Units that count a run of a mixture.

    Each sample counts with the mean tokens of its source. A step has ``batch`` samples, or ``batch`` sequences of
    ``sequence`` tokens; None without steps, or without sequences.
    """

    request: MixRequest
    batch: int | None = None
    sequence: int | None = None

    def __post_init__(self) -> None:
        if self.sequence is not None and self.means is None:
            msg = "sequences are counted in tokens, but this mixture counts samples"
            raise UsageError(msg, hint="unit: tokens, and length: the column of tokens, in the mixture file")

    @property
    def means(self) -> NDArray[np.float64] | None:
        """Mean tokens of a sample of each source; None if the mixture counts samples."""
        means = [source.mean_tokens for source in self.request.sources]
        return None if None in means else np.array([float(mean or 0) for mean in means])

    @property
    def unit(self) -> str:
        """Name of a step; of a position without steps."""
        if self.batch is None:
            return "position"
        of = (
            f"{self.batch:,} samples"
            if self.sequence is None
            else f"{self.batch:,} sequences of {self.sequence:,} tokens"
        )
        return f"step of {of}"

    def tokens(self, position: int) -> float | None:
        """Return the number of tokens before a position; None if the mixture counts samples."""
        means = self.means
        return None if means is None else float(self.request.counts(position) @ means)

    def steps(self, position: int) -> float:
        """Return the number of steps before a position; the position itself if the run has no steps."""
        if self.batch is None or self.sequence is None:
            return position / (self.batch or 1)
        return float(self.tokens(position) or 0) / (self.batch * self.sequence)

    def whole_steps(self, position: int | None) -> int | None:
        """Return the number of steps up to a position; None without a position, or if the run has no steps."""
        return None if position is None or self.batch is None else int(np.ceil(self.steps(position)))

    def position_of(self, num_steps: int) -> int:
        """Return the position after the first ``num_steps`` steps."""
        means = self.means
        if self.batch is None or self.sequence is None or means is None:
            return num_steps * (self.batch or 1)
        num_tokens = num_steps * self.batch * self.sequence
        position = self.request.endless.first_position(lambda counts: counts @ means > num_tokens)
        if position is None:
            raise UsageError(f"the mixture never has the {num_tokens:,} tokens of {num_steps:,} steps")
        return position - 1

    def shares(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of each source, of tokens if the mixture counts tokens; shape (..., num_sources)."""
        amounts = counts * (1.0 if self.means is None else self.means)
        shares: NDArray[np.float64] = amounts / amounts.sum(axis=-1, keepdims=True)
        return shares
