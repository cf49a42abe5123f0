"""Checks of pyspark (installed, and new enough), and conversion of its errors to errors of shoal."""

from __future__ import annotations

import base64
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shoal.errors import ShoalError, UsageError, WorkerError
from shoal.hints import pip_install

_OLDEST = 4
_NOTE = "shoal error: "
_NOTED = re.compile(rf"{_NOTE}([A-Za-z0-9+/=]+)")
_NEEDED = re.compile(r"\[PACKAGE_NOT_INSTALLED\] ([\w.]+)")
_LACKING = re.compile(r"No module named '((?:shoal|numpy|pyarrow|pandas)\b[\w.]*)'")
_EXCEPTION = re.compile(r"[\w.]*(?:Error|Exception): .")


def spark_library() -> Any:
    """Import and return the module ``pyspark``; `UsageError` if it is missing, or older than 4 (no data sources)."""
    try:
        import pyspark  # noqa: PLC0415  # optional
    except ImportError as error:
        msg = "packing with Spark needs the library pyspark, which is not installed"
        raise UsageError(msg, hint=pip_install("spark")) from error
    if int(pyspark.__version__.split(".")[0]) < _OLDEST:
        msg = f"pyspark {pyspark.__version__} is installed; shoal needs {_OLDEST} or newer"
        raise UsageError(msg, hint=pip_install("spark", upgrade=True))
    return pyspark


def context_of(spark: Any) -> Any:
    """Return the `SparkContext` of a session; `UsageError` if it has none, as sessions of Spark Connect."""
    spark_library()
    try:
        return spark.sparkContext
    except Exception as error:  # pyspark has a separate class for each refusal
        msg = f"this is no session of classic Spark, which runs units as tasks: {spark!r:.80}"
        raise UsageError(msg, hint="SparkSession.builder.master(...).getOrCreate(), without Spark Connect") from error


@contextmanager
def noting_errors() -> Iterator[None]:
    """In a task: add errors of shoal to themselves as a note, since the driver gets only text."""
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
