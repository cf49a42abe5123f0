"""Rules that choose the source of each position of a mixture, for `shoal.mix(choice=)`; and the mixture itself."""

from __future__ import annotations

from shoal.order.mixture.source_choice import Even, PerBatch, PerRank, Random
from shoal.peers.mixing.peer_choices import Concatenate, Interleave, RandomMix, RoundRobin
from shoal.stream.mixing.mixed_dataset import MixedDataset

__all__ = [
    "Concatenate",
    "Even",
    "Interleave",
    "MixedDataset",
    "PerBatch",
    "PerRank",
    "Random",
    "RandomMix",
    "RoundRobin",
]
