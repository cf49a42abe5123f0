"""`shoal.pack.spark.run`: the units of a job as tasks of Spark; and pyspark itself, its sessions and its errors."""

from __future__ import annotations

import base64
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from shoal.errors import ShoalError, UsageError, WorkerError
from shoal.hints import pip_install
from shoal.pack.jobs.unit_job import UnitJob, UnitProgress

_Result = TypeVar("_Result")

_AT_ONCE_BYTES = 64 << 20
_OLDEST = 4
_NOTE = "shoal error: "
_NOTED = re.compile(rf"{_NOTE}([A-Za-z0-9+/=]+)")
_NEEDED = re.compile(r"\[PACKAGE_NOT_INSTALLED\] ([\w.]+)")
_LACKING = re.compile(r"No module named '((?:shoal|numpy|pyarrow|pandas)\b[\w.]*)'")
_EXCEPTION = re.compile(r"[\w.]*(?:Error|Exception): .")


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

    Examples
    --------
    >>> job = shoal.pack.plan("pets", "packed", shard_bytes="100KiB")
    >>> shoal.pack.spark.run(spark, job).num_samples  # doctest: +SKIP
    200
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


def spark_library() -> Any:
    """Import and return the module ``pyspark``; `UsageError` if it is missing, or older than 4 (no data sources)."""
    try:
        import pyspark  # noqa: PLC0415  # optional
    except ImportError as error:
        msg = "packing with Spark needs the library pyspark, which is not installed"
        raise UsageError(msg, hint=pip_install("pyspark")) from error
    if int(pyspark.__version__.split(".")[0]) < _OLDEST:
        msg = f"pyspark {pyspark.__version__} is installed; shoal needs {_OLDEST} or newer"
        raise UsageError(msg, hint=pip_install("pyspark", upgrade=True))
    return pyspark


def context_of(spark: Any) -> Any:
    """Return the `SparkContext` of a session; `UsageError` if the session has none, as in Spark Connect."""
    spark_library()
    try:
        return spark.sparkContext
    except Exception as error:  # pyspark has a separate class for each refusal
        msg = f"this is not a session of classic Spark, which runs units as tasks: {spark!r:.80}"
        raise UsageError(msg, hint="SparkSession.builder.master(...).getOrCreate(), without Spark Connect") from error


@contextmanager
def noting_errors() -> Iterator[None]:
    """In a task, attach an error of shoal to itself as a note: the driver receives only the text of errors."""
    try:
        yield
    except ShoalError as error:
        error.add_note(f"{_NOTE}{base64.b64encode(pickle.dumps(error)).decode()}")
        raise


@contextmanager
def own_errors() -> Iterator[None]:
    """On the driver: raise errors of tasks as in the task; `UsageError` if a machine lacks shoal; or `WorkerError`."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("py4j.", "pyspark.")):
            raise
        raise error_of(str(error)) from error


def error_of(text: str) -> ShoalError:
    """Return the error in a text of Spark.

    >>> error_of("ModuleNotFoundError: No module named 'shoal'").hint
    'install shoal for the Python of the executors (PYSPARK_PYTHON), or send it along with spark.archives'
    >>> str(error_of("Caused by: java.lang.OutOfMemoryError: Java heap space")).partition(": ")[2].partition(chr(10))[0]
    'java.lang.OutOfMemoryError: Java heap space'
    """
    if noted := _NOTED.findall(text):
        error = pickle.loads(base64.b64decode(noted[-1]))  # noqa: S301  # our own tasks have written it
        if isinstance(error, ShoalError):
            return error
    if needed := _NEEDED.search(text):
        msg = f"tables of Spark need {needed[1]}, which is not installed"
        return UsageError(msg, hint="pip install 'pyspark[sql]', here and for the Python of the executors")
    if lacking := _LACKING.search(text):
        msg = f"a machine of the cluster cannot import {lacking[1]}"
        library = "'pyspark[sql]'" if lacking[1].startswith(("pyarrow", "pandas")) else "shoal"
        hint = f"install {library} for the Python of the executors (PYSPARK_PYTHON), or send it along with "
        return UsageError(msg, hint=f"{hint}spark.archives")
    lines = [line.strip().removeprefix("Caused by: ") for line in text.strip().splitlines()] or ["no reason was given"]
    named = [line for line in lines if _EXCEPTION.match(line)]
    reason = next((line for line in named if "org.apache.spark" not in line), lines[0])
    hint = "Spark's log says more; run again to continue: finished units are kept"
    return WorkerError(f"Spark gave up: {reason:.300}", hint=hint)
