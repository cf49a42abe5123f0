"""Agreement of all ranks on the current version of a table: the rank that opens the table first decides.

Ranks open a table at different moments, and a writer may commit in between.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import StorageError
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableKind, TableRequest, version_text
from shoal.processes.job_rank import JobRank, is_alone_on_machine
from shoal.storage.cache_directory import cache_directory
from shoal.storage.objects.torch_store import reachable_torch_store
from shoal.storage.shared_decisions import MachineDecisions, SharedDecisions, TorchDecisions
from shoal.storage.urls import without_secrets

_log = logging.getLogger("shoal")


def agreed_snapshot(kind: TableKind, request: TableRequest, job_rank: JobRank | None) -> Snapshot:
    """Return the wanted version, the same on all ranks of a job; a single rank agrees with itself.

    Without ``version=``, the first rank that opens the table decides for the whole job, also for later openings. A
    warning names the version if the table has moved on since, or if ranks cannot reach each other.
    """
    snapshot, wanted = kind.snapshot(request), request.wanted
    if job_rank is None or wanted.version is not None:
        return snapshot
    root = without_secrets(request.root)
    name = json.dumps(["version", kind.name, root, request.split, wanted.timestamp, repr(wanted.predicate)])
    own = json.dumps(snapshot.version)
    reason = "torch.distributed does not run, and no launcher says that all ranks are on this machine"
    if (decisions := _decisions(job_rank)) is not None:
        try:
            decided = decisions.first(f"{name} of {job_rank.world_size}", own.encode()).decode()
        except StorageError as error:
            reason = error.message
        else:
            return snapshot if decided == own else _as_decided(kind, request, snapshot, json.loads(decided))
    text = "%s: each of the %d ranks opens the current version by itself, and this rank opens version %s: %s. Give "
    text += "version=, or compare the ranks by shoal.torch.compare_ranks()"
    _log.warning(text, root, job_rank.world_size, version_text(snapshot.version), reason)
    return snapshot


def _decisions(job_rank: JobRank) -> SharedDecisions | None:
    """Return the place where ranks agree; None if they cannot reach each other."""
    if (store := reachable_torch_store()) is not None:
        return TorchDecisions(store)
    return MachineDecisions(cache_directory()) if is_alone_on_machine(job_rank) else None


def _as_decided(kind: TableKind, request: TableRequest, own: Snapshot, version: Mapping[str, Any]) -> Snapshot:
    wanted = replace(request.wanted, version=version, timestamp=None)
    text = "%s: version %s is opened, as by the rank of this job that opened the table first; the table is %s now. "
    text += "version= opens another version, and follow=True reads the newest one from the next epoch on"
    _log.warning(text, without_secrets(request.root), version_text(version), version_text(own.version))
    return kind.snapshot(replace(request, wanted=wanted))
