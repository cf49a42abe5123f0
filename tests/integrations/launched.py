"""Starts a script as ranks of a job with the agent that torchrun starts them with, but without importing torch anew.

The agent is a child of the tests' fork server, and the ranks are its children: they have what the agent imported.
torchrun also reads its command line and starts Python for each rank, which then imports torch for a second or two.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint
import torch.distributed.launcher.api as elastic
import torch.optim

__all__ = ["launch"]

# Imported in the agent, once for all ranks.
_HEAVY = (torch.distributed.checkpoint, torch.optim.SGD)


def launch(
    arguments: Sequence[str], *, num_processes: int, log: Path, environment: Mapping[str, str], run_id: str = "job"
) -> Any:
    """A started process, the leader of a session that holds all ranks of ``script argument ...``."""
    context: Any = multiprocessing.get_context("forkserver")
    process = context.Process(
        target=_agent, args=(list(arguments), num_processes, str(log), {**os.environ, **environment}, run_id)
    )
    process.start()
    return process


def _agent(arguments: list[str], num_processes: int, log: str, environment: dict[str, str], run_id: str) -> None:
    os.setsid()
    _write_to(log)
    os.environ.clear()
    os.environ.update(environment)
    config = elastic.LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=run_id,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.05,
        start_method="fork",
    )
    elastic.elastic_launch(config, _rank)(arguments)


def _rank(arguments: list[str]) -> None:
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def _write_to(log: str) -> None:
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(number, stream)
    os.close(number)
