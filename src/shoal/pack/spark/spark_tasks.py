"""`shoal.pack.spark.run`: the units of a job as tasks of Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from shoal.pack.jobs.unit_job import UnitJob, UnitProgress
from shoal.pack.spark.spark_session import context_of, noting_errors, own_errors

_Result = TypeVar("_Result")

_AT_ONCE_BYTES = 64 << 20


def run(spark: Any, job: UnitJob[_Result], *, progress: UnitProgress | None = None) -> _Result:
    """Run the missing units of a job as tasks of Spark, one a task, and finish the job.

    Spark only schedules: the bytes are those of any other engine, whatever executors are lost, however often a task is
    tried (``spark.task.maxFailures``), and with speculation. If the driver dies, plan the job again and run it: only
    what is missing is done. Tasks are sent in rounds of 64 MiB, as much as the driver holds of them; most jobs are one
    round.

    Parameters
    ----------
    spark
        A `pyspark.sql.SparkSession`, not of Spark Connect. shoal must be installed for the Python of the executors.
    job
        A `PackJob`, or any other `UnitJob`.
    progress
        Called with the number of finished units and the total: once at the beginning, then whenever Spark counts a task
        as successful, by a thread of pyspark.

    Returns
    -------
    PackSummary
        Whatever ``job.finish()`` returns.

    Raises
    ------
    UsageError
        pyspark is missing here, or shoal on a machine of the cluster; or what the job raises.
    StorageError
        An input cannot be read, or a shard cannot be written, as often as Spark tried.
    WorkerError
        Spark gave up for another reason, such as executors that die again and again.
    """
    context = context_of(spark)
    missing = job.missing()
    with counting(context, job.num_units, missing, progress) as finished:
        for tasks in _rounds(job, missing):
            with own_errors():
                context.parallelize(tasks, len(tasks)).foreach(_Unit(finished))
    return job.finish()


@contextmanager
def counting(context: Any, num_units: int, missing: Sequence[int], progress: UnitProgress | None) -> Iterator[Any]:
    """Yield an accumulator to which tasks add the units that they finish; an error of ``progress`` is raised."""
    counted = _Counted(progress, num_units)
    counted.tell(num_units - len(missing))
    yield context.accumulator(num_units - len(missing), counted)
    if counted.error is not None:
        raise counted.error


def _rounds(job: UnitJob[Any], units: Sequence[int]) -> Iterator[list[bytes]]:
    from pyspark import cloudpickle  # noqa: PLC0415  # optional; also for what a script itself defines

    tasks: list[bytes] = []
    num_bytes = 0
    for number in units:
        tasks.append(cloudpickle.dumps(job.task(number)))
        num_bytes += len(tasks[-1])
        if num_bytes >= _AT_ONCE_BYTES:
            yield tasks
            tasks, num_bytes = [], 0
    if tasks:
        yield tasks


class _Unit:
    """Function of a task; ``finished`` is an accumulator, in which Spark counts each unit once."""

    def __init__(self, finished: Any) -> None:
        self._finished = finished

    def __call__(self, task: bytes) -> None:
        with noting_errors():
            pickle.loads(task)()  # noqa: S301  # made by the driver
        self._finished += 1


class _Counted:
    """The sum of an accumulator, as `pyspark.accumulators.AccumulatorParam`, and who is told of it on the driver."""

    def __init__(self, progress: UnitProgress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self.error: Exception | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _Counted, (None, self._total)

    def tell(self, done: int) -> None:
        """Call the callback; an error of it ends the job after the running round."""
        if self._progress is not None and self.error is None:
            try:
                self._progress(done, self._total)
            except Exception as error:  # noqa: BLE001  # in pyspark's thread it would end all counting
                self.error = error

    def zero(self, value: int) -> int:  # noqa: ARG002  # the interface of pyspark
        """Return what a task begins with."""
        return 0

    def addInPlace(self, value: int, more: int) -> int:  # noqa: N802  # the interface of pyspark
        """Return the sum, and tell of it."""
        if more:
            self.tell(value + more)
        return value + more
