"""Processes that end in the middle of a remote stream: at once, in good order, whatever the server does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stream.made import open_finely, write_tars

import shoal
from shoal.indexing.index_files import save_index
from shoal.storage.files.local_store import LocalStore
from shoal.testing import Fault, FaultKind, RangeServer

SCRIPT = """
    import gc, sys, threading, warnings
    sys.path[:0] = {path!r}
    warnings.simplefilter("ignore")
    import shoal
    ds = shoal.open({url!r}).shuffle(shoal.orders.Window(chunks=8, num_canonical_nodes=2), seed=1, chunk="4000")
    iterator = iter(ds)
    for _ in range(3):
        next(iterator)
    sys.stdin.readline()  # comes when what is read ahead has met a fault
    assert any(thread.name.startswith("shoal-read") for thread in threading.enumerate())
    {end}
"""
ENDS = {
    "the end of the script": "pass",
    "letting go": "del iterator; gc.collect()",
    "an error": "sys.excepthook = lambda *_: None; raise ValueError",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ds = open_finely(write_tars(tmp_path_factory.mktemp("served") / "d", [600, 500]))
    directory = Path(ds.stream.opened.paths[0]).parent
    save_index(ds.stream.opened.index, directory, store=LocalStore())
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[RangeServer]:
    with RangeServer(directory, latency_seconds=0.02) as server:
        yield server


@pytest.fixture(scope="module")
def cache(server: RangeServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where is written that the shards are those of the index, so that only chunks are asked for."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE_DIR", str(cache))
        assert len(list(shoal.open(server.url_of("shoal.index")))) == 1100
    return cache


def exit_code(end: str, server: RangeServer, cache: Path) -> int:
    """The exit code of a process that ends so; it must take well below the 30 s that requests are silent."""
    source = [str(Path(__file__).parents[2] / "src")]
    script = textwrap.dedent(SCRIPT.format(path=source, url=server.url_of("shoal.index"), end=end))
    environment = {"SHOAL_CACHE_DIR": str(cache), "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        while not any(server.num_faults().values()):
            assert process.poll() is None
            time.sleep(0.01)
        began = time.monotonic()
        _, complaints = process.communicate("\n", timeout=60)
    assert not [line for line in complaints.splitlines() if not line.startswith("https is read by")]
    assert time.monotonic() - began < 25
    return process.returncode


@pytest.mark.parametrize(
    ("http_client", "kind", "end"),
    [
        ("libcurl", "stall", "the end of the script"),
        ("plain", "stall", "an error"),
        *(pytest.param("libcurl", "stall", end, marks=pytest.mark.drill) for end in ("letting go", "an error")),
        *(
            pytest.param("plain", "stall", end, marks=pytest.mark.drill)
            for end in ("the end of the script", "letting go")
        ),
        *(
            pytest.param(name, "slow", "the end of the script", marks=pytest.mark.drill)
            for name in ("libcurl", "plain")
        ),
    ],
    indirect=["http_client"],
)
@pytest.mark.usefixtures("http_client")
def test_a_process_ends_in_the_middle_of_a_stream(kind: FaultKind, end: str, server: RangeServer, cache: Path) -> None:
    """With requests under way that take long, or are not answered at all."""
    server.clear()
    server.faults = [Fault(kind, path="*.tar", requests=range(40, 10**9), seconds=30.0 if kind == "stall" else 0.3)]
    assert exit_code(ENDS[end], server, cache) == (1 if end == "an error" else 0)
    assert server.num_faults()[kind] > 0
