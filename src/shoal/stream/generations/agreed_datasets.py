"""Agreement of all ranks on the shards of the next epoch: the first rank that looks decides.

Ranks list a source at different moments, and may see different shards. No rank may go on with shards of its own: some
samples would come twice, and others never.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from shoal.errors import StateError, StorageError, UsageError
from shoal.indexing.opened_dataset import Known, Opened, OpenedDataset
from shoal.storage.cache_directory import cache_directory
from shoal.storage.objects.torch_store import reachable_torch_store
from shoal.storage.shared_decisions import MachineDecisions, SharedDecisions, TorchDecisions
from shoal.stream.generations.recovered_datasets import recovered_part
from shoal.stream.ranks import Ranks, job_rank, rank_and_world_size

Look = Callable[[OpenedDataset], OpenedDataset]

_WAIT_SECONDS = 300.0
_TRIES = 6  # looks of a rank that does not see all shards that another rank sees: listings may be behind
_PAUSE_SECONDS = 2.0


def agreed(opened: OpenedDataset, look: Look, ranks: Ranks, *, epoch: int) -> OpenedDataset:
    """Return the dataset that ``look`` finds on the first rank, the same on all ranks; ``opened`` if nothing is new.

    A single rank agrees with itself. Ranks reach each other through the store of torch.distributed, or through the
    cache directory of their machine; all ranks of a machine must then come to the beginning of the epoch.

    Raises `UsageError`: ranks cannot reach each other, or a rank does not come; `StateError`: this rank does not see
    the shards of the first rank.
    """
    rank, world_size = rank_and_world_size(ranks.given)
    if world_size == 1:
        return look(opened)
    decisions = decisions_of(world_size)
    latest = look(opened)
    value = json.dumps([Known.of(part.index, with_names=True) for part in latest.parts]).encode()
    name = json.dumps([[part.index.fingerprint for part in opened.parts], epoch, world_size])
    value = decisions.first(name, value)
    if all(part.latest for part in opened.parts):
        # A rank may have opened fewer shards than others. Machines with paths of their own have agreed by fingerprint.
        name = json.dumps([[part.latest.name for part in opened.parts if part.latest], epoch, world_size])
        value = decisions.first(name, value)
    decided = [_known(words) for words in json.loads(value)]
    if missing := decisions.wait_for_all(name, rank, world_size, limit_seconds=_WAIT_SECONDS):
        msg = f"ranks {', '.join(map(str, missing))} of {world_size} did not come to the beginning of epoch {epoch} "
        msg += f"within {_WAIT_SECONDS:.0f} s, so it is unknown which shards they read"
        raise UsageError(msg, hint=HINT)
    return _as_decided(opened, latest, decided, look)


HINT = (
    "one launcher must start all ranks of a machine, and all must begin the epoch; or make the index with `shoal index "
    "--append`, and call extended(INDEX) on all ranks"
)


def decisions_of(world_size: int) -> SharedDecisions:
    """Return the place where ranks agree; `UsageError` if there is none."""
    if (store := reachable_torch_store()) is not None:
        return TorchDecisions(store)
    job = job_rank()
    if job is not None and job.local_size == world_size == job.world_size:
        return MachineDecisions(cache_directory())
    msg = f"{world_size} ranks must take the same new shards, but they cannot reach each other: torch.distributed does "
    msg += "not run, and no launcher says that all ranks are on this machine"
    hint = "make the index with `shoal index --append`, and call extended(INDEX) on all ranks"
    raise UsageError(msg, hint=hint)


def _known(words: Any) -> Known:
    fingerprint, num_shards, snapshot, names = words
    return Known(fingerprint, tuple(num_shards), snapshot, tuple(names))


def _as_decided(opened: OpenedDataset, latest: OpenedDataset, decided: list[Known], look: Look) -> OpenedDataset:
    """Return the decided dataset, looking again while this rank sees fewer shards than were decided."""
    for is_last in (*[False] * (_TRIES - 1), True):
        try:
            parts = [
                old if known.fingerprint == old.index.fingerprint else recovered_part(new, known).opened
                for old, new, known in zip(opened.parts, latest.parts, decided, strict=True)
            ]
        except (StateError, StorageError) as error:
            if is_last:
                msg = f"this rank does not see the shards that another rank took for the next epoch: {error}"
                hint = "all machines must see the same shards: " + HINT
                raise StateError(msg, hint=hint) from error
            time.sleep(_PAUSE_SECONDS)
            latest = look(opened)
        else:
            return _joined(opened, parts)
    raise AssertionError


def _joined(opened: OpenedDataset, parts: list[Opened]) -> OpenedDataset:
    is_same = all(new is old for new, old in zip(parts, opened.parts, strict=True))
    return opened if is_same else opened.with_parts(tuple(parts))
