"""Plan a first epoch that is read while shards are indexed (`shoal plan --index grow`)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli.options.argument_types import option_of
from shoal.cli.options.source_options import refuse_mixture, source_of, storage_options_of
from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.order.orders_without_window import Block
from shoal.order.window.order import Window
from shoal.quality.expected_quality import GrowingQuality
from shoal.quality.growing_quality import growing_quality
from shoal.reading.growing.resolved_growing import ResolvedGrowing
from shoal.storage.sources.source import printed
from shoal.stream.open_dataset import open_dataset

GROW = "grow"
_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True, eq=False)
class ListedShards:
    """Shards without an index: ``num_bytes`` of each in permuted order, and the estimated number of samples."""

    num_bytes: NDArray[np.int64]
    num_samples: int

    def quality(
        self, order: Window | Block, chunk_bytes: float, batch: int, arguments: argparse.Namespace
    ) -> GrowingQuality:
        """Predict the mixing of the first epoch; its windows have as many bytes as the windows of later epochs."""
        is_known = arguments.rho < 1.0 or arguments.shard_rho is not None
        return growing_quality(
            self.num_bytes,
            batch,
            sample_bytes=float(self.num_bytes.sum()) / self.num_samples,
            seed=None,
            window=round(order.chunks * chunk_bytes) if arguments.window is None else arguments.window,
            chunk=round(chunk_bytes) if arguments.chunk is None else arguments.chunk,
            num_canonical_nodes=order.resolved_nodes if isinstance(order, Window) else None,
            rho=arguments.rho if is_known else None,
            shard_rho=arguments.shard_rho,
        )


def listed_shards(arguments: argparse.Namespace) -> ListedShards:
    """List the shards; without ``--sample-bytes``, index the shards of the first segment."""
    refuse_mixture(arguments)
    names = [name for name in ("order", "chunks", "samples", "pack_sequences") if getattr(arguments, name) is not None]
    if names:
        option = option_of(names[0])
        msg = f"--index {GROW} is an order of its own, before samples are counted, and {option} asks for another"
        raise UsageError(msg, hint=f"leave out {option}; --window, --chunk, --num-canonical-nodes and --seed apply")
    dataset = open_dataset(
        source_of(arguments),
        split=arguments.split,
        index=GROW,
        format=arguments.format,
        storage_options=storage_options_of(arguments),
    )
    resolved = dataset.shuffle(seed=arguments.seed).stream.resolved
    if not isinstance(resolved, ResolvedGrowing):
        msg = f"{printed(source_of(arguments))} has an order of its own, and does not grow"
        raise UsageError(msg, hint=f"leave out --index {GROW}")
    growing = resolved.growing
    if arguments.sample_bytes is None:
        return ListedShards(growing.shard_bytes, growing.growth().num_samples)
    total = int(growing.shard_bytes.sum())
    return ListedShards(growing.shard_bytes, max(1, total // parse_bytes(arguments.sample_bytes, "--sample-bytes")))


def growing_facts(quality: GrowingQuality) -> dict[str, Any]:
    """Return the quality as JSON types, with the first segments only."""
    facts = quality.to_dict()
    segments = facts.pop("segments")
    facts |= {"vr": quality.vr, "num_segments": len(segments), "first_segments": segments[:_MOST_SHOWN]}
    return {**facts, "last_segment": segments[-1], "warning": quality.warning()}
