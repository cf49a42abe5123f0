"""Options of the engine of a job: this machine, a cluster, or an engine of a package."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from shoal.cli.display.progress_bar import Progress
from shoal.errors import ShoalError, UsageError
from shoal.hints import did_you_mean, pip_install
from shoal.pack.jobs.unit_job import UnitJob, UnitProgress
from shoal.plugins.doors import Door
from shoal.storage.urls import without_secrets
from shoal.tools.samples.preview import printable

_Result = TypeVar("_Result")

_LOCAL = "local"
_LIBRARIES = {"ray": "ray", "spark": "pyspark"}

_HOSTS = re.compile(r"(?:(?:spark|ray)://)?([^\s/]+:\d+(?:,[^\s/]+:\d+)*)")
_CONNECT_SECONDS = 10


def add_engine_arguments(parser: argparse.ArgumentParser, *, planned: str) -> None:
    """Declare the engine and its cluster; ``planned`` names the work that always runs on this machine."""
    group = parser.add_argument_group("engine")
    text = f"run on this machine (local, the default), a cluster, or an engine of an installed package; {planned}"
    group.add_argument("--engine", metavar="{local,ray,spark}", type=_engine_name, default=_LOCAL, help=text)
    text = (
        "master URL of Spark (default: from spark-submit or its configuration, else local[*]), or address of Ray "
        "(default: RAY_ADDRESS, else a Ray on this machine, else a new Ray for this run)"
    )
    group.add_argument("--address", metavar="ADDRESS", help=text)


@dataclass(frozen=True, slots=True)
class Engine:
    """A cluster engine; its progress bar shows ``label`` and ``unit``, such as "packing" and "shards"."""

    name: str
    address: str | None
    label: str
    unit: str

    def run(self, job: UnitJob[_Result]) -> _Result:
        """Run the missing units of a job, and finish the job; without missing units, do not start the engine.

        Closes only sessions started here. Raises the errors of the job, and `UsageError` if the engine cannot start.
        """
        if not job.missing():
            return job.finish()
        with Progress(label=self.label, unit=self.unit) as bar:
            done: _Result = ENGINES[self.name](job, address=self.address, progress=bar.show_bytes)
            return done

    def record(self) -> dict[str, Any]:
        """Return the name and the address for a report."""
        return {"engine": self.name, "address": None if self.address is None else _shown(self.address)}


def engine_of(arguments: argparse.Namespace, *, label: str, unit: str) -> Engine | None:
    """Return the requested engine; None for this machine.

    Raises `UsageError` if the library of the engine is missing, its package is broken, or this machine gets an address.
    """
    name, address = arguments.engine, arguments.address
    if name == _LOCAL:
        if address is not None:
            msg = f"--address {_shown(address)} names a cluster, but --engine local runs on this machine"
            raise UsageError(msg, hint="--engine spark or --engine ray")
        return None
    if name not in ENGINES.own:
        _ = ENGINES[name]  # an error about a broken package comes before the planning
        return Engine(name, address, label, unit)
    library = _LIBRARIES[name]
    try:
        import_module(library)
    except ImportError as error:
        msg = f"--engine {name} needs {library}, and the import fails: {error}"
        raise UsageError(msg, hint=pip_install(library)) from None
    return Engine(name, address, label, unit)


def _on_spark(job: UnitJob[_Result], *, address: str | None, progress: UnitProgress) -> _Result:
    """Run a job in a Spark session; stop the session at the end unless it was active before."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # optional, and slow to import

    was_active = SparkSession.getActiveSession() is not None
    builder = SparkSession.builder.appName("shoal").config("spark.ui.showConsoleProgress", "false")
    with _starting("Spark", address, hint="Spark needs Java 17 or later; --address takes its master URL"):
        session = (builder if address is None else builder.master(address)).getOrCreate()
    try:
        done: _Result = import_module("shoal.pack.spark").run(session, job, progress=progress)
        return done
    finally:
        if not was_active:
            session.stop()


def _on_ray(job: UnitJob[_Result], *, address: str | None, progress: UnitProgress) -> _Result:
    """Run a job on Ray: connect to a cluster, or start one; disconnect at the end unless already connected before."""
    import ray  # noqa: PLC0415  # optional, and slow to import

    was_connected = ray.is_initialized()
    if not was_connected:
        with _starting("Ray", address, hint="`ray status` on the head node shows the address"):
            ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    try:
        done: _Result = import_module("shoal.pack.ray").run(job, progress=progress)
        return done
    finally:
        if not was_connected:
            ray.shutdown()


ENGINES: Door[Any] = Door("shoal.engines", {"ray": _on_ray, "spark": _on_spark})
"""Functions that run the missing units of a job and finish it, by ``--engine``."""


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
        # The first line of py4j names the failed call, the next line the reason.
        lines = [line.strip(": ") for line in str(error).splitlines() if not line.startswith("An error occurred while")]
        msg = f"{name} cannot be reached or started {where}: {printable((lines or [type(error).__name__])[0])}"
        raise UsageError(msg, hint=hint) from error


def _shown(address: str) -> str:
    return printable(without_secrets(address))


def _connect(address: str) -> None:
    """Raise `OSError` if no host of the address can be reached; Spark would try for a minute, Ray longer.

    Words such as ``local[2]``, ``yarn`` and ``auto`` name no host.
    """
    match = _HOSTS.fullmatch(address)
    hosts = match[1].split(",") if match else []
    for number, host in enumerate(hosts, 1):
        name, _, port = host.rpartition(":")
        with suppress(*([OSError] if number < len(hosts) else [])):
            socket.create_connection((name.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
            return
