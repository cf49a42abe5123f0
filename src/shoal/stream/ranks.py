"""Detection of the rank of this process and the world size from its launcher, and the comparison of all ranks.

Sources, in this order: explicit arguments; torch.distributed, JAX and Ray Train, if imported and running; torchrun's
``RANK`` and ``WORLD_SIZE``; then SLURM, Open MPI and other launchers that speak PMI. No library is imported for this.
Launchers nest: SLURM may start one torchrun per machine; SLURM then counts machines, and torchrun counts processes. An
outer launcher counts only if no inner source reports a rank.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from shoal.arguments import as_choice, with_type
from shoal.errors import UsageError
from shoal.order.partition import check_rank
from shoal.pipeline.stages.context_slices import KINDS, ContextSlice
from shoal.processes.job_rank import LOCAL_SIZES, JobRank

_HINT = ".partition(rank=..., world_size=...) overrides all launchers"

# Pairs of variables by launcher. SLURM_NTASKS does not work here: batch scripts not started by srun have it, too.
_OUTER = {
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "PMI": ("PMI_RANK", "PMI_SIZE"),
}


@dataclass(frozen=True, slots=True)
class Ranks:
    """The source of a dataset's rank, given or detected; and the numbers of ranks that share samples.

    ``replicate`` consecutive ranks get the same batches. ``context_parallel`` consecutive groups of such ranks get
    slices of the same sequences, of the kind ``context_slices``.
    """

    given: tuple[int, int] | None = None
    replicate: int = 1
    context_parallel: int = 1
    context_slices: str = "zigzag"

    @staticmethod
    def of_arguments(
        rank: Any, world_size: Any, replicate: Any, context_parallel: Any = 1, context_slices: Any = "zigzag"
    ) -> Ranks:
        """Return the arguments of `Dataset.partition`, checked."""
        if (rank is None) != (world_size is None):
            msg = f"partition() takes rank and world_size together; got rank={rank!r} and world_size={world_size!r}"
            raise UsageError(msg, hint="without both, the launcher determines the rank")
        times, num_slices = _whole("replicate", replicate), _whole("context_parallel", context_parallel)
        if times < 1:
            msg = f"replicate must be at least 1; got {times}"
            raise UsageError(msg, hint="replicate=8 gives ranks 0 to 7 the same samples, 8 to 15 the next, and so on")
        if num_slices < 1:
            msg = f"context_parallel must be at least 1; got {num_slices}"
            raise UsageError(msg, hint="context_parallel=4 gives ranks 0 to 3 a slice each of the same sequences")
        kind = as_choice("partition(context_slices=)", context_slices, tuple(KINDS))
        given = None if rank is None else rank_and_world_size((rank, world_size))
        ranks = Ranks(given, times, num_slices, kind)
        if ranks.given is not None:
            ranks.resolve()
        return ranks

    def resolve(self) -> tuple[int, int]:
        """Return the part of the samples that belongs to this process, and the number of parts."""
        rank, world_size = rank_and_world_size(self.given)
        size = self.replicate * self.context_parallel
        if world_size % size:
            groups = {"replicate": self.replicate, "context_parallel": self.context_parallel}
            product = " * ".join(f"{name}={number}" for name, number in groups.items() if number > 1)
            msg = f"{product} does not divide the {world_size} ranks"
            hint = "the ranks that share samples are a whole tensor, context or pipeline parallel group"
            raise UsageError(msg, hint=hint)
        return rank // size, world_size // size

    @property
    def slices(self) -> tuple[ContextSlice, ...]:
        """The stage of batches that keeps this rank's slice of each sequence; empty if ranks get whole sequences."""
        if self.context_parallel == 1:
            return ()
        number = rank_and_world_size(self.given)[0] // self.replicate % self.context_parallel
        return (ContextSlice(number, self.context_parallel, self.context_slices),)

    @property
    def num_chunks(self) -> tuple[int, int]:
        """Number of equal chunks that each sequence is cut into, and each document."""
        if self.context_parallel == 1:
            return 1, 1
        part = ContextSlice(0, self.context_parallel, self.context_slices)
        return part.num_chunks, part.num_document_chunks


class _Claim(NamedTuple):
    """The rank and world size from one source, and the name of the source in messages."""

    source: str
    rank: int
    world_size: int

    def __str__(self) -> str:
        return f"{self.source} says rank {self.rank} of {self.world_size}"


def rank_and_world_size(
    given: tuple[int, int] | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[int, int]:
    """Return the rank and world size from the arguments, else from the launcher, else of a single rank.

    Raises `UsageError` if two sources disagree, or a source reports an invalid rank.
    """
    if given is not None:
        rank, world_size = _whole("rank", given[0]), _whole("world_size", given[1])
        return _checked(_Claim("given", rank, world_size))
    inner = [claim for claim in (_torch(), _jax(), _ray()) if claim is not None]
    # Lightning's launcher sets WORLD_SIZE without RANK, and then starts torch.distributed.
    if environment.get("RANK") or (not inner and environment.get("WORLD_SIZE") not in {None, "", "1"}):
        inner += filter(None, [_in_environment("RANK", "WORLD_SIZE", environment, "torchrun")])
    # A rank alone says nothing: SLURM sets it in batch scripts too.
    in_use = [(*names, environment, launcher) for launcher, names in _OUTER.items() if environment.get(names[1])]
    outer = [claim for names in in_use if (claim := _in_environment(*names)) is not None]
    for group in (inner, outer):
        for claim in group[1:]:
            if claim[1:] != group[0][1:]:
                _refuse(group[0], claim)
    if inner:
        # torchrun numbers machines in rendezvous order, so torchrun's ranks need not follow the launcher's ranks.
        if outer and "TORCHELASTIC_RUN_ID" not in environment and not _nests(outer[0], inner[0]):
            _refuse(inner[0], outer[0])
        return _checked(inner[0])
    if outer:
        return _checked(outer[0])
    if (tasks := environment.get("SLURM_NTASKS") or "1") != "1" and "SLURM_PROCID" in environment:
        msg = f"SLURM_NTASKS={tasks}, but this process was not started by srun: its rank is unknown"
        hint = "start the tasks with srun or torchrun; or, for a single process, .partition(rank=0, world_size=1)"
        raise UsageError(msg, hint=hint)
    return 0, 1


def job_rank(environment: Mapping[str, str] = os.environ) -> JobRank | None:
    """Return the rank of this process for work that ranks may share; None if it is unclear, or for a single rank."""
    try:
        rank, world_size = rank_and_world_size(None, environment)
    except UsageError:
        return None  # a caller that needs the rank raises the error
    texts = (environment.get(name, "") for name in LOCAL_SIZES)
    sizes = [int(text) for text in texts if text.isdecimal() and 0 < int(text) <= world_size]
    return JobRank(rank, world_size, sizes[0] if sizes else world_size) if world_size > 1 else None


def _nests(outer: _Claim, inner: _Claim) -> bool:
    """True if the outer launcher may have started groups of consecutive ranks."""
    size, rest = divmod(inner.world_size, max(1, outer.world_size))
    return not rest and size > 0 and inner.rank // size == outer.rank


def _refuse(one: _Claim, other: _Claim) -> NoReturn:
    raise UsageError(f"{one}, but {other}", hint=_HINT)


def _torch() -> _Claim | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _Claim("torch.distributed", distributed.get_rank(), distributed.get_world_size())


def _jax() -> _Claim | None:
    jax: Any = sys.modules.get("jax")
    # jax.process_count() would start the backends of a single process.
    if jax is None or not hasattr(jax, "distributed") or not getattr(jax.distributed, "is_initialized", bool)():
        return None
    return _Claim("jax.distributed", jax.process_index(), jax.process_count())


def _ray() -> _Claim | None:
    train: Any = sys.modules.get("ray.train")
    if train is None or not hasattr(train, "get_context"):
        return None
    try:
        context = train.get_context()
        rank, world_size = context.get_world_rank(), context.get_world_size()
    except RuntimeError:  # outside of a training worker there is no context
        return None
    return None if rank is None or world_size is None else _Claim("Ray Train", rank, world_size)


def _in_environment(rank: str, size: str, environment: Mapping[str, str], launcher: str) -> _Claim | None:
    words = environment.get(rank) or None, environment.get(size) or None
    if words == (None, None):
        return None
    try:
        numbers = int(words[0] or ""), int(words[1] or "")
    except ValueError:
        msg = f"{rank}={words[0]!r} and {size}={words[1]!r} in the environment must both be integers"
        raise UsageError(msg, hint=f"{launcher} sets both; {_HINT}") from None
    return _Claim(f"the environment ({rank}, {size})", *numbers)


def _checked(claim: _Claim) -> tuple[int, int]:
    check_rank(claim.rank, claim.world_size)
    return claim.rank, claim.world_size


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        msg = f"{name} must be an integer; got {with_type(value)}"
        hint = f"{name}=int(...)" if isinstance(value, (str, float)) else ""
        raise UsageError(msg, hint=hint) from None


def check_agreement(everybody: Sequence[tuple[Mapping[str, Any], int]]) -> None:
    """Raise `UsageError` unless all ranks, in order, have the same settings and share the parts equally.

    Each part must belong to equally many ranks. The error names the ranks, the settings and both sides.
    """
    differences = []
    for name in dict.fromkeys(name for settings, _ in everybody for name in settings):
        sides: dict[str, list[int]] = {}
        for rank, (settings, _) in enumerate(everybody):
            sides.setdefault(str(settings.get(name, "none")), []).append(rank)
        if len(sides) > 1:
            texts = [f"{value} on {_listed(ranks)}" for value, ranks in sides.items()]
            differences.append(f"{name}: {', but '.join(texts)}")
    if differences:
        msg = f"the ranks of this job would not train on the same data; {'; '.join(differences)}"
        raise UsageError(msg, hint="all ranks must open, shuffle and batch in the same way, and load the same state")
    world_size: int = everybody[0][0]["world size"]
    owners: dict[int, list[int]] = {part: [] for part in range(world_size)}
    for rank, (_, part) in enumerate(everybody):
        owners.setdefault(part, []).append(rank)
    if len({len(ranks) for ranks in owners.values()}) > 1:
        shown = [f"{part} belongs to {_listed(ranks)}" for part, ranks in sorted(owners.items()) if ranks][:4]
        missing = [part for part, ranks in owners.items() if not ranks]
        lost = f"; no rank has {missing[:8]}" if missing else ""
        msg = f"the samples of this job are in {world_size} parts; {', '.join(shown)}{lost}"
        hint = "each part must belong to equally many ranks; check .partition() and the launcher's variables"
        raise UsageError(msg, hint=hint)


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
