"""`shoal.pack.ray.run`: the units of a job as tasks of Ray; and the library ray itself, and its errors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

from shoal.errors import ShoalError, StorageError, UsageError, WorkerError
from shoal.hints import pip_install
from shoal.pack.jobs.unit_job import UnitJob, UnitProgress

_Result = TypeVar("_Result")

_TASKS_PER_CPU = 4  # sent ahead: no worker waits for the driver, and an autoscaler sees the demand
_LOOK_SECONDS = 1.0
_GATHER_SECONDS = 0.1


def run(
    job: UnitJob[_Result], *, progress: UnitProgress | None = None, remote_options: Mapping[str, Any] | None = None
) -> _Result:
    """Run the missing units of a job as tasks of Ray, one unit per task, and finish the job.

    Ray only schedules: the bytes equal the bytes of any other engine, even if workers and machines are lost. The driver
    submits at most four tasks per CPU ahead. If the driver dies, plan the job again and run it: only missing units run.

    Parameters
    ----------
    job
        A `PackJob`, or any other `UnitJob`. shoal must be installed on all machines. ``ray.init()`` starts Ray, if it
        has not started.
    progress
        Called with the number of finished units and the total, at the beginning and after each finished unit.
    remote_options
        Options of the tasks, as for ``ray.remote``: ``{"memory": 2 << 30, "max_retries": 10}``. By default a task is
        repeated three times when its process or machine dies, or when it cannot read or write.

    Returns
    -------
    PackSummary
        The result of ``job.finish()``.

    Raises
    ------
    UsageError
        ray is missing; or the job raises it.
    StorageError
        An input cannot be read, or a shard cannot be written, in all attempts of Ray.
    WorkerError
        Ray gave up: processes or machines died more often than Ray repeats a task.

    Examples
    --------
    >>> job = shoal.pack.plan("pets", "packed", shard_bytes="100KiB")
    >>> shoal.pack.ray.run(job).num_samples  # doctest: +SKIP
    200
    """
    ray = ray_library()
    total = job.num_units
    missing = deque(job.missing())
    done = total - len(missing)
    report = progress if progress is not None else lambda _done, _total: None
    report(done, total)
    if missing:
        with own_errors():
            if not ray.is_initialized():
                ray.init()
            options = {"num_cpus": 1, "max_retries": 3, "retry_exceptions": [StorageError], **(remote_options or {})}
            for _ in _finished(ray, ray.remote(**options)(_run), job, missing):
                done += 1
                report(done, total)
    return job.finish()


def _run(task: Callable[[], Any]) -> None:
    task()


def _finished(ray: Any, remote: Any, job: UnitJob[Any], missing: deque[int]) -> Iterator[None]:
    """Send tasks, a bounded number ahead, and yield once for each finished task; no task outlives the generator."""
    running: list[Any] = []
    most, looked_seconds = 0, -_LOOK_SECONDS
    try:
        while missing or running:
            if time.monotonic() - looked_seconds >= _LOOK_SECONDS:  # a cluster grows and shrinks
                most = _TASKS_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))
                looked_seconds = time.monotonic()
            while missing and len(running) < most:
                number = missing.popleft()
                running.append(remote.options(name=f"shoal unit {number}").remote(job.task(number)))
            ready, _ = ray.wait(running, num_returns=1)
            more, _ = ray.wait(running, num_returns=len(running), timeout=_GATHER_SECONDS)
            ready = set(ready) | set(more)
            running = [task for task in running if task not in ready]
            for task in ready:
                ray.get(task)
                yield
    finally:
        for task in running:
            ray.cancel(task)


def ray_library() -> Any:
    """Import and return the module ``ray``; `UsageError` with the command that installs it, if it is missing."""
    try:
        import ray  # noqa: PLC0415  # optional
    except ImportError as error:
        msg = "packing with Ray needs the library ray, which is not installed"
        raise UsageError(msg, hint=pip_install("ray")) from error
    return ray


def ray_data() -> Any:
    """Import and return the module ``ray.data``; `UsageError` if it or its requirements are missing."""
    ray_library()
    if lacking := [name for name in ("pandas", "pyarrow") if find_spec(name) is None]:
        msg = f"Ray Data needs {' and '.join(lacking)}, not installed here"
        raise UsageError(msg, hint=f"pip install {' '.join(lacking)}, or all requirements: pip install 'ray[data]'")
    import ray.data  # noqa: PLC0415  # optional

    return ray.data


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise errors of tasks as in the task, and `WorkerError` if Ray gave up: processes or machines died repeatedly."""
    ray = ray_library()
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ShoalError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        msg = f"Ray gave up: {str(error).strip().splitlines()[0]:.300}"
        raise WorkerError(msg, hint="run again to continue: finished units are kept") from error
