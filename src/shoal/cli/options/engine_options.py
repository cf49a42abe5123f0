"""Options of the engine that runs the units of a job: processes of this machine, a cluster, or that of a package."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from shoal.cli.display.preview import printable
from shoal.cli.display.progress_bar import Progress
from shoal.errors import ShoalError, UsageError
from shoal.hints import LIBRARIES_OF_EXTRA, did_you_mean, pip_install
from shoal.pack.jobs.unit_job import UnitJob, UnitProgress
from shoal.plugins.doors import Door
from shoal.storage.urls import without_secrets

_Result = TypeVar("_Result")

_LOCAL = "local"

_HOSTS = re.compile(r"(?:(?:spark|ray)://)?([^\s/]+:\d+(?:,[^\s/]+:\d+)*)")
_CONNECT_SECONDS = 10


def add_engine_arguments(parser: argparse.ArgumentParser, *, planned: str) -> None:
    """Declare the engine and its cluster; ``planned`` says what this machine does itself, whatever the engine."""
    group = parser.add_argument_group("engine")
    text = (
        "what runs the work: processes of this machine (local, the default), a cluster, or an engine of an installed "
        f"package; {planned}"
    )
    group.add_argument("--engine", metavar="{local,ray,spark}", type=_engine_name, default=_LOCAL, help=text)
    text = (
        "the cluster: master URL of Spark (default: that of spark-submit or its configuration, or else local[*]), or "
        "address of Ray (default: RAY_ADDRESS, one that runs on this machine, or one that is started for this run)"
    )
    group.add_argument("--address", metavar="ADDRESS", help=text)


@dataclass(frozen=True, slots=True)
class Engine:
    """A cluster engine; ``label`` and ``unit`` are words for its progress bar, such as "packing" and "shards"."""

    name: str
    address: str | None
    label: str
    unit: str

    def run(self, job: UnitJob[_Result]) -> _Result:
        """Run the units of a job that are missing, and finish it; without any, the engine is not started.

        Sessions that are started here are closed here. Raises what the job does, and `UsageError` if the engine cannot
        be started.
        """
        if not job.missing():
            return job.finish()
        with Progress(label=self.label, unit=self.unit) as bar:
            done: _Result = ENGINES[self.name](job, address=self.address, progress=bar.show_bytes)
            return done

    def record(self) -> dict[str, Any]:
        """Return the name and address for a report."""
        return {"engine": self.name, "address": None if self.address is None else _shown(self.address)}


def engine_of(arguments: argparse.Namespace, *, label: str, unit: str) -> Engine | None:
    """Return the engine that was asked for; None for processes of this machine.

    Raises `UsageError` if the library of the engine is not installed, the package that brings it is broken, or an
    address is given for this machine.
    """
    name, address = arguments.engine, arguments.address
    if name == _LOCAL:
        if address is not None:
            msg = f"--address {_shown(address)} names a cluster, and --engine local runs on this machine"
            raise UsageError(msg, hint="--engine spark or --engine ray")
        return None
    if name not in ENGINES.own:
        _ = ENGINES[name]  # a broken package is named before anything is planned
        return Engine(name, address, label, unit)
    try:
        import_module(LIBRARIES_OF_EXTRA[name])
    except ImportError as error:
        msg = f"--engine {name} needs {LIBRARIES_OF_EXTRA[name]}, which cannot be imported: {error}"
        raise UsageError(msg, hint=pip_install(name)) from None
    return Engine(name, address, label, unit)


@contextmanager
def _spark(address: str | None) -> Iterator[Any]:
    """Yield a Spark session, which is stopped at the end unless it was there before."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # optional, and slow to import

    was_there = SparkSession.getActiveSession() is not None
    builder = SparkSession.builder.appName("shoal").config("spark.ui.showConsoleProgress", "false")
    with _starting("Spark", address, hint="Spark needs Java 17 or later; --address takes its master URL"):
        session = (builder if address is None else builder.master(address)).getOrCreate()
    try:
        yield session
    finally:
        if not was_there:
            session.stop()


@contextmanager
def _ray(address: str | None) -> Iterator[None]:
    """Connect to Ray, or start it here, and leave it at the end unless it was there before."""
    import ray  # noqa: PLC0415  # optional, and slow to import

    was_there = ray.is_initialized()
    if not was_there:
        with _starting("Ray", address, hint="`ray status` on the head node shows the address"):
            ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    try:
        yield
    finally:
        if not was_there:
            ray.shutdown()


def _on_spark(job: UnitJob[_Result], *, address: str | None, progress: UnitProgress) -> _Result:
    with _spark(address) as session:
        done: _Result = import_module("shoal.pack.spark").run(session, job, progress=progress)
    return done


def _on_ray(job: UnitJob[_Result], *, address: str | None, progress: UnitProgress) -> _Result:
    with _ray(address):
        done: _Result = import_module("shoal.pack.ray").run(job, progress=progress)
    return done


ENGINES: Door[Any] = Door("shoal.engines", {"ray": _on_ray, "spark": _on_spark})
"""What runs the missing units of a job, and finishes it, by the names of ``--engine``."""


def _engine_name(text: str) -> str:
    if text != _LOCAL and text not in ENGINES:
        msg = f"there is no engine {text!r}; {did_you_mean(text, ENGINES)}there are {', '.join((_LOCAL, *ENGINES))}"
        raise argparse.ArgumentTypeError(msg)
    return text


@contextmanager
def _starting(name: str, address: str | None, *, hint: str) -> Iterator[None]:
    where = "here" if address is None else f"at {_shown(address)}"
    try:
        _connect(address or "")
        yield
    except ShoalError:
        raise
    except Exception as error:
        # py4j first says which call has failed, then why.
        lines = [line.strip(": ") for line in str(error).splitlines() if not line.startswith("An error occurred while")]
        msg = f"{name} cannot be reached or started {where}: {printable((lines or [type(error).__name__])[0])}"
        raise UsageError(msg, hint=hint) from error


def _shown(address: str) -> str:
    return printable(without_secrets(address))


def _connect(address: str) -> None:
    """Raise `OSError` if none of an address's hosts can be reached; Spark would go on trying for a minute, Ray longer.

    Words such as ``local[2]``, ``yarn`` and ``auto`` name no host.
    """
    found = _HOSTS.fullmatch(address)
    hosts = found[1].split(",") if found else []
    for number, host in enumerate(hosts, 1):
        name, _, port = host.rpartition(":")
        with suppress(*([OSError] if number < len(hosts) else [])):
            socket.create_connection((name.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
            return
