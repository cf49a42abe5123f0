"""Packing with Spark, run in an environment that has it: two executors, each a process of its own, on this machine."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from tests.integration.shards_on_engines import check_shards_on_engine

import shoal
import shoal.pack.spark
from shoal.errors import StorageError, UsageError, WorkerError
from shoal.index.index_file import decode, encode

NUM_KILLS = int(os.environ.get("SHOAL_NUM_KILLS", "2"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.speculation": "true",  # tasks that take longer than others are begun once more beside them
        "spark.speculation.interval": "10ms",
        "spark.speculation.multiplier": "1.0",
        "spark.speculation.quantile": "0.1",
        "spark.task.maxFailures": "3" if NUM_KILLS < 5 else "50",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.sql.shuffle.partitions": "4",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("inputs")
    for number in range(600):
        (directory / f"{number:04d}.txt").write_text(f"document {number}\n" * (number % 50))
    return directory


@dataclass(frozen=True)
class Hindered:
    """A job whose units take their time, and fail the first time that they are tried if ``failing`` is a directory."""

    job: shoal.pack.PackJob
    seconds: float = 0.0
    failing: str = ""

    @property
    def num_units(self) -> int:
        return self.job.num_units

    def missing(self) -> list[int]:
        return self.job.missing()

    def task(self, number: int) -> Callable[[], Any]:
        task, seconds, failing = self.job.task(number), self.seconds, self.failing

        def hindered() -> Any:
            time.sleep(seconds)
            if failing:
                try:
                    Path(failing, str(number)).touch(exist_ok=False)
                except FileExistsError:
                    return task()
                task()
                msg = f"unit {number} fails once, after its work"
                raise OSError(msg)
            return task()

        return hindered

    def finish(self) -> shoal.pack.PackSummary:
        return self.job.finish()


def planned(inputs: Path, out: Path) -> shoal.pack.PackJob:
    return shoal.pack.plan(inputs, out, shard_bytes="32KiB", shuffle=True, seed=1)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.fixture(scope="session")
def expected(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what processes of this machine make."""
    directory = tmp_path_factory.mktemp("expected")
    summary = shoal.pack.pack(inputs, directory, shard_bytes="32KiB", shuffle=True, seed=1, num_workers=2)
    assert len(summary.shards) > 20
    return directory


def same(out: Path, expected: Path) -> None:
    """Check that all is there once, and nothing else; an index also has the times of its files."""
    shards, wanted = contents(out), contents(expected)
    assert shards.keys() == wanted.keys()
    index, other = (decode(found.pop("shoal.index")) for found in (shards, wanted))
    assert shards == wanted
    assert encode(replace(index, shard_versions=other.shard_versions)) == encode(other)
    assert not (out / ".shoal-pack").exists()


def test_the_shards_are_those_of_local_processes(
    spark: SparkSession, inputs: Path, expected: Path, tmp_path: Path
) -> None:
    job = planned(inputs, tmp_path / "out")
    told: list[tuple[int, int]] = []
    summary = shoal.pack.spark.run(spark, job, progress=lambda *numbers: told.append(numbers))
    same(tmp_path / "out", expected)
    total = job.num_units
    assert told == [(done, total) for done in range(total + 1)]
    again = shoal.pack.spark.run(spark, planned(inputs, tmp_path / "out"))
    assert (again.fingerprint, again.digest) == (summary.fingerprint, summary.digest)


def test_a_task_that_fails_once_leaves_no_trace(
    spark: SparkSession, inputs: Path, expected: Path, tmp_path: Path
) -> None:
    (tmp_path / "failed").mkdir()
    job = planned(inputs, tmp_path / "out")
    shoal.pack.spark.run(spark, Hindered(job, failing=str(tmp_path / "failed")))
    assert len(list((tmp_path / "failed").iterdir())) == job.num_units
    same(tmp_path / "out", expected)


def test_executors_may_be_killed(spark: SparkSession, inputs: Path, expected: Path, tmp_path: Path) -> None:
    rng = random.Random(7)
    for number in range(NUM_KILLS):
        out = tmp_path / f"out{number}"
        killer = threading.Timer(rng.uniform(0, 2.0), kill_an_executor)
        killer.start()
        shoal.pack.spark.run(spark, Hindered(planned(inputs, out), seconds=0.1))
        killer.join()
        same(out, expected)


def kill_an_executor() -> None:
    found = [line.split() for line in processes() if "CoarseGrainedExecutorBackend" in line]
    if found:  # the one before may not have been replaced yet
        os.kill(int(random.choice(found)[0]), signal.SIGKILL)


def processes() -> list[str]:
    """Return the processes of this test, as a line each that begins with the number."""
    group = str(os.getpgrp())
    listed = subprocess.run(["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True, check=True)
    return [line.strip() for line in listed.stdout.splitlines() if line.split()[1] == group]


def test_only_what_is_missing_is_made(spark: SparkSession, inputs: Path, expected: Path, tmp_path: Path) -> None:
    job = planned(inputs, tmp_path / "out")
    for number in range(0, job.num_units, 2):
        job.run(number)
    told: list[tuple[int, int]] = []
    shoal.pack.spark.run(spark, job, progress=lambda *numbers: told.append(numbers))
    assert told[0] == ((job.num_units + 1) // 2, job.num_units)
    assert told[-1] == (job.num_units, job.num_units)
    same(tmp_path / "out", expected)


def test_an_error_of_a_task_is_that_of_the_task(spark: SparkSession, inputs: Path, tmp_path: Path) -> None:
    mine = tmp_path / "inputs"
    shutil.copytree(inputs, mine)
    job = planned(mine, tmp_path / "out")
    (mine / "0017.txt").unlink()
    with pytest.raises(StorageError, match=r"0017\.txt") as caught:
        shoal.pack.spark.run(spark, job)
    assert caught.value.message.startswith("could not read ")
    assert not (tmp_path / "out" / "shoal.index").exists()


def test_what_else_goes_wrong_is_told_with_a_way_on(spark: SparkSession, inputs: Path, tmp_path: Path) -> None:
    class Broken(Hindered):
        def task(self, number: int) -> Callable[[], Any]:
            nothing: dict[str, Any] = {}
            return lambda: nothing["of this name"]

    with pytest.raises(WorkerError, match="KeyError: 'of this name'") as caught:
        shoal.pack.spark.run(spark, Broken(planned(inputs, tmp_path / "out")))
    assert "run again" in caught.value.hint
    with pytest.raises(UsageError, match="not a session of classic Spark"):
        shoal.pack.spark.run(object(), planned(inputs, tmp_path / "out"))


def test_an_error_of_the_progress_ends_the_job(spark: SparkSession, inputs: Path, tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        if done > 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shoal.pack.spark.run(spark, planned(inputs, tmp_path / "out"), progress=fail)
    assert not (tmp_path / "out" / "shoal.index").exists()


def table(spark: SparkSession, num_partitions: int) -> DataFrame:
    """Return rows with a key that has many ties, in as many partitions."""
    rows = spark.range(0, 5000, 1, num_partitions)
    texts = functions.concat(functions.lit("text "), functions.col("id").cast("string"))
    return rows.select("id", (functions.col("id") % 7).alias("label"), texts.alias("text"))


def test_a_table_sorted_by_a_key_is_cut_evenly_however_it_lies(spark: SparkSession, tmp_path: Path) -> None:
    def written(name: str, rows: DataFrame, **more: Any) -> shoal.pack.PackSummary:
        return shoal.pack.spark.write(rows, tmp_path / name, key="label", format="jsonl", shard_bytes="16KiB", **more)

    told: list[tuple[int, int]] = []
    first = written("first", table(spark, 3), progress=lambda *numbers: told.append(numbers))
    again = written("again", table(spark, 5).orderBy(functions.rand(1)), num_partitions=7)
    assert (first.digest, first.fingerprint) == (again.digest, again.fingerprint)
    assert written("first", table(spark, 2)).digest == first.digest
    total = len(first.shards)
    assert told[0] == (0, total)
    assert told[-1] == (total, total)
    assert total > 8
    sizes = [shard.num_bytes for shard in first.shards]
    assert max(sizes) - min(sizes) < 2000
    found = [shoal.open(str(tmp_path / "first"))[number] for number in range(0, 5000, 10)]
    assert [sample["label"] for sample in found] == sorted(sample["label"] for sample in found)
    rows = [json.loads(line) for shard in first.shards for line in open_lines(tmp_path / "first" / shard.name)]
    assert sorted(row["id"] for row in rows) == list(range(5000))
    with pytest.raises(UsageError, match="this packing would write another one"):
        written("first", table(spark, 2).limit(4999))


def open_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_table_whose_driver_died_is_finished_with_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    def written(name: str, **more: Any) -> shoal.pack.PackSummary:
        return shoal.pack.spark.write(table(spark, 3), tmp_path / name, key="id", shard_bytes="16KiB", **more)

    expected = written("expected")

    def die(done: int, total: int) -> None:
        if done:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        written("out", progress=die)
    lost = list((tmp_path / "out").glob("*.parquet"))[:3]
    for path in lost:
        path.unlink()
    told: list[tuple[int, int]] = []
    assert written("out", progress=lambda *numbers: told.append(numbers)).fingerprint == expected.fingerprint
    assert told[0] == (len(expected.shards) - 3, len(expected.shards))
    assert not (tmp_path / "out" / ".shoal-pack").exists()


def test_an_error_of_a_row_is_that_of_shoal(spark: SparkSession, tmp_path: Path) -> None:
    rows = table(spark, 3).withColumn("data", functions.col("text").cast("binary"))
    with pytest.raises(UsageError, match="JSON") as caught:
        shoal.pack.spark.write(rows, tmp_path / "out", key="id", format="jsonl")
    assert "Traceback" not in str(caught.value)
    with pytest.raises(UsageError, match="no column 'lable'") as caught:
        shoal.pack.spark.write(rows, tmp_path / "out", key="lable")
    assert "did you mean 'label'?" in caught.value.hint


@pytest.mark.parametrize("format_name", ["parquet", "tar"])
def test_the_format_shoal_writes_partitions_as_they_are(spark: SparkSession, tmp_path: Path, format_name: str) -> None:
    shoal.pack.spark.register(spark)
    ordered = table(spark, 3)  # repartitionByRange() would draw other ranges for each of the tables written below

    def save(rows: DataFrame, name: str, **more: str) -> None:
        writer = rows.write.format("shoal").mode("append").option("format", format_name).option("shard_bytes", "64KiB")
        for option, value in more.items():
            writer = writer.option(option, value)
        writer.save(str(tmp_path / name))

    save(ordered, "out", sort="id", columns="label")
    dataset = shoal.open(str(tmp_path / "out"))
    assert dataset.index_column("label").tolist() == [number % 7 for number in range(5000)]
    assert (len(list((tmp_path / "out").glob("shard-000002-*"))) > 1) == (format_name != "parquet")  # compressed
    shards = contents(tmp_path / "out")
    save(ordered, "out", sort="id", columns="label")  # compares
    assert contents(tmp_path / "out") == shards
    with pytest.raises(Exception, match="these rows differ from the dataset"):
        save(ordered.filter("id < 4000"), "out", sort="id", columns="label")
    assert contents(tmp_path / "out") == shards
    with pytest.raises(Exception, match="rows are not sorted by 'id'"):
        save(table(spark, 2).orderBy(functions.rand(1)), "other", sort="id")
    assert [path for path in (tmp_path / "other").rglob("*") if path.is_file()] == []
    with pytest.raises(Exception, match="never replaced"):
        ordered.write.format("shoal").mode("overwrite").save(str(tmp_path / "out"))


def test_the_format_shoal_reads_a_dataset_in_stored_order(spark: SparkSession, expected: Path, tmp_path: Path) -> None:
    shoal.pack.spark.register(spark)
    dataset = shoal.open(str(expected))
    rows = spark.read.format("shoal").option("partition_bytes", "64KiB").load(str(expected))
    assert rows.schema.simpleString() == "struct<__key__:string,txt:binary>"
    assert rows.rdd.getNumPartitions() > 5
    found = [{"__key__": row["__key__"], "txt": bytes(row["txt"])} for row in rows.collect()]
    assert found == [
        {name: sample[name] for name in ("__key__", "txt")} for sample in map(dataset.__getitem__, range(600))
    ]
    decoded = spark.read.format("shoal").option("decode", "true").schema("txt string").load(str(expected))
    assert [row["txt"] for row in decoded.take(3)] == [dataset[number]["txt"].decode() for number in range(3)]
    with pytest.raises(Exception, match="did you mean 'decode'"):
        spark.read.format("shoal").option("decod", "true").load(str(expected))


def test_types_come_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    shoal.pack.spark.register(spark)
    types = "id int, when timestamp, day date, price decimal(9,2), part float, names array<string>, inner struct<a:int>"
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678000)  # noqa: DTZ001  # as Spark gives them
    values = [
        (number, moment, moment.date(), decimal.Decimal("1.25"), 0.5, ["a", None], (number,)) for number in range(50)
    ]
    rows = spark.createDataFrame([*values, (None,) * 7], types).repartition(2, "id")
    shoal.pack.spark.write(rows, tmp_path / "out", key="id")
    back = spark.read.format("shoal").load(str(tmp_path / "out"))
    assert back.schema.simpleString() == rows.schema.simpleString()
    assert back.collect() == rows.sort("id").collect()


def test_shards_are_indexed_and_verified_while_executors_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    over = threading.Event()

    def kill() -> None:
        for _ in range(NUM_KILLS):
            if over.wait(random.uniform(1.0, 3.0)):
                return
            kill_an_executor()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        check_shards_on_engine(lambda job: shoal.pack.spark.run(spark, job), tmp_path / "in", seconds=0.1)
    finally:
        over.set()
        killer.join()
