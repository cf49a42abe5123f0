"""What of Spark needs no Spark: errors that come back as text, and that pyspark is missing."""

from __future__ import annotations

import traceback
from importlib.util import find_spec

import pytest

import shoal.pack.spark
from shoal.errors import ShardError, StorageError, UsageError, WorkerError
from shoal.pack.spark.spark_tasks import error_of, noting_errors, own_errors


@pytest.mark.parametrize(
    "error",
    [
        UsageError("asked for this\nin two lines", hint="give that"),
        ShardError("it ends early", shard="a.tar", byte=7, hint="pack it again"),
        StorageError("refused", transient=True, worth_attempts=3),
    ],
)
def test_an_error_of_a_task_comes_back_whole(error: Exception) -> None:
    try:
        with noting_errors():
            raise error
    except type(error):
        text = f"Job aborted: {traceback.format_exc()}\n\n\tat org.apache.spark.api.python.BasePythonRunner"
    found = error_of(text)
    assert type(found) is type(error)
    assert {name: value for name, value in vars(error).items() if name != "__notes__"} == vars(found)


def test_other_errors_say_what_spark_said() -> None:
    text = (
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted due to stage "
        "failure: Task 1 failed 4 times\nTraceback (most recent call last):\nKeyError: 'a'\n\n\tat org.apache.spark.x"
    )
    assert error_of(text).message == "Spark gave up: KeyError: 'a'"
    assert error_of("").message == "Spark gave up: no reason was given"
    assert isinstance(error_of("ExecutorLostFailure"), WorkerError)


def test_errors_that_are_not_sparks_stay_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), own_errors():
        raise ZeroDivisionError
    with pytest.raises(UsageError, match="no such unit"), own_errors():
        msg = "no such unit"
        raise UsageError(msg)


@pytest.mark.skipif(find_spec("pyspark") is not None, reason="pyspark is installed")
def test_without_pyspark_the_error_says_how_to_get_it() -> None:
    with pytest.raises(UsageError, match="not installed") as caught:
        shoal.pack.spark.run(object(), None)  # type: ignore[arg-type]
    assert caught.value.hint == "pip install pyspark (or 'shoal[spark]')"
