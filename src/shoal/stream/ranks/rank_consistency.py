"""Settings that the ranks of a job must agree on before they train, reported by each and compared by all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.stream.dataset import Dataset


def told_of(dataset: Dataset) -> tuple[dict[str, Any], int]:
    """Return the settings a rank is about to train with, in JSON types, and the part of the samples that is its own."""
    run = dataset._pass()  # noqa: SLF001  # what the next iterator does, before it begins
    shares = run.work.recipe.partition
    state = run.state(run.epoch, run.start)
    told = {
        "dataset": state["index"],
        "seed": state["seed"],
        "order": state["order"],
        "epoch": run.epoch,
        "position": run.start,
        "global batch": shares.global_batch if shares.batched else "none",
        "remainder": shares.remainder,
        "world size": shares.world_size,
    }
    return told, run.work.recipe.rank


def check_agreement(everybody: Sequence[tuple[Mapping[str, Any], int]]) -> None:
    """Raise `UsageError` unless all ranks, in order, report the same settings and share the parts equally.

    Each part must belong to equally many ranks. The error names the ranks, the fields and both sides.
    """
    _compare([told for told, _ in everybody])
    _check_parts([part for _, part in everybody], everybody[0][0]["world size"])


def _compare(told: Sequence[Mapping[str, Any]]) -> None:
    differences = []
    for name in told[0]:
        sides: dict[str, list[int]] = {}
        for rank, fields in enumerate(told):
            sides.setdefault(str(fields[name]), []).append(rank)
        if len(sides) > 1:
            texts = [f"{value} on {_ranks(ranks)}" for value, ranks in sides.items()]
            differences.append(f"{name}: {', but '.join(texts)}")
    if differences:
        msg = f"the ranks of this job would train on different things; {'; '.join(differences)}"
        raise UsageError(msg, hint="open, shuffle and batch alike on all ranks, and load the same state on all")


def _check_parts(parts: Sequence[int], world_size: int) -> None:
    counts = Counter(parts)
    missing = [part for part in range(world_size) if part not in counts]
    if missing or len(set(counts.values())) > 1:
        owners = {part: [rank for rank, own in enumerate(parts) if own == part] for part in sorted(counts)}
        told = ", ".join(f"{part} is had by {_ranks(ranks)}" for part, ranks in list(owners.items())[:4])
        lost = f"; nobody has {missing[:8]}" if missing else ""
        msg = f"the samples of this job are in {world_size} parts, of which {told}{lost}"
        hint = "each part must be had by equally many ranks; look at .partition() and the launcher's variables"
        raise UsageError(msg, hint=hint)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
