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

    Spark only schedules: the bytes equal the bytes of any other engine, even if executors are lost, tasks are repeated
    (``spark.task.maxFailures``), or Spark speculates. If the driver dies, plan the job again and run it: only missing
    units run. The driver sends tasks in rounds of 64 MiB, and holds no more; most jobs are one round.

    Parameters
    ----------
    spark
        A `pyspark.sql.SparkSession`, not of Spark Connect. shoal must be installed for the Python of the executors.
    job
        A `PackJob`, or any other `UnitJob`.
    progress
        Called with the number of finished units and the total: at the beginning, and, by a thread of pyspark, after
        each successful task.

    Returns
    -------
    PackSummary
        The result of ``job.finish()``.

    Raises
    ------
    UsageError
        pyspark is missing here, or shoal on a machine of the cluster; or the job raises it.
    StorageError
        An input cannot be read, or a shard cannot be written, in all attempts of Spark.
    WorkerError
        Spark gave up for another reason, such as executors that die repeatedly.
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
    """Yield an accumulator for the finished units of tasks; raise an error of ``progress``."""
    counted = _Counted(progress, num_units)
    counted.report(num_units - len(missing))
    yield context.accumulator(num_units - len(missing), counted)
    if counted.error is not None:
        raise counted.error


def _rounds(job: UnitJob[Any], units: Sequence[int]) -> Iterator[list[bytes]]:
    from pyspark import cloudpickle  # noqa: PLC0415  # optional; also pickles functions of a script

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
    """Function of a task; Spark counts each unit once in the accumulator ``finished``."""

    def __init__(self, finished: Any) -> None:
        self._finished = finished

    def __call__(self, task: bytes) -> None:
        with noting_errors():
            pickle.loads(task)()  # noqa: S301  # made by the driver
        self._finished += 1


class _Counted:
    """The sum of an accumulator, as `pyspark.accumulators.AccumulatorParam`, with a callback on the driver."""

    def __init__(self, progress: UnitProgress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self.error: Exception | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _Counted, (None, self._total)

    def report(self, done: int) -> None:
        """Call the callback; its error ends the job after the running round."""
        if self._progress is not None and self.error is None:
            try:
                self._progress(done, self._total)
            except Exception as error:  # noqa: BLE001  # in pyspark's thread it would end all counting
                self.error = error

    def zero(self, value: int) -> int:  # noqa: ARG002  # the interface of pyspark
        """Return the first value of a task."""
        return 0

    def addInPlace(self, value: int, more: int) -> int:  # noqa: N802  # the interface of pyspark
        """Return the sum, and report it."""
        if more:
            self.report(value + more)
        return value + more
