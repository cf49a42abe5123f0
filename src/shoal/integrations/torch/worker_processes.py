"""Worker processes of `shoal.torch.DataLoader`: processes without torch, unless a function of the user needs more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from shoal.integrations.torch.torch_in_worker import Preparation, reduce_tensor
from shoal.processes.light_fork_server import begin_importing, light_context
from shoal.stream.iterating.iterator_specs import WorkerSpec
from shoal.stream.workers.packed_work import packages_of
from shoal.stream.workers.snapshot import Snapshot
from shoal.stream.workers.worker_batches import sharing_chunks
from shoal.stream.workers.worker_loop import Job
from shoal.stream.workers.worker_pool import WorkerPool

# Packages that import no torch. The user's own modules may, and then one fork server imports torch for all workers.
_LIGHT = frozenset(("shoal", "numpy", "pyarrow", *sys.stdlib_module_names)) - {"__main__"}


class Workers(WorkerPool):
    """The worker processes of a loader for one pass, or for several.

    ``init`` is called in each worker with its number. ``generator`` is the source of the workers' seeds.
    """

    def __init__(
        self,
        work: WorkerSpec,
        num_workers: int,
        *,
        context: Any,
        init: Callable[[int], None] | None,
        generator: Any,
        prefetch_factor: int,
        timeout: float,
    ) -> None:
        self._inputs = _inputs(work, num_workers, context, init, prefetch_factor, timeout)
        if num_workers > 1:
            work = sharing_chunks(work, num_workers=num_workers)
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        job = Job(work, num_workers, Preparation(seed, num_workers, init), reduce_tensor)
        if context.get_start_method() != "fork":
            job.pack()
            if work.pipeline.formatting.name != "torch":
                context = lightest(context, job.packages)
        super().__init__(job, context=context, prefetch_factor=prefetch_factor, timeout_seconds=timeout)

    def serve(self, work: WorkerSpec, num_workers: int, **options: Any) -> bool:
        """Return True if these workers can replace new `Workers` of these arguments."""
        del options["generator"]  # of seeds for new workers
        return self.is_usable and _inputs(work, num_workers, **options) == self._inputs


def _inputs(
    work: WorkerSpec, num_workers: int, context: Any, init: Any, prefetch_factor: int, timeout: float
) -> Snapshot:
    """Return a snapshot of all inputs of workers.

    The location of samples changes only with the dataset, and the start method does not affect the batches of existing
    workers.
    """
    alone = (work.opened, work.opened.index, context)
    return Snapshot((work, num_workers, context, init, prefetch_factor, timeout), alone=alone)


def lightest(context: Any, packages: set[str]) -> Any:
    """Return the context of the light fork server instead of the usual one, if workers need only ``packages``."""
    return light_context(context) if packages <= _LIGHT else context


def begin_importing_for(context: Any, *needed: Any) -> None:
    """Start the fork server for workers that need these objects, while this process goes on."""
    begin_importing(lightest(context, packages_of(needed)))
