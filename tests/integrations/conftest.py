"""What the tests of frameworks share."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stream.made import open_finely, write_tars

from shoal.stream.dataset import Dataset
from shoal.stream.workers import worker_pool

pytest.importorskip("torch.utils.data", reason="torch is not installed")

# One fork server serves all tests, and imports torch once.
multiprocessing.set_forkserver_preload(["torch.utils.data", "shoal.torch", "tests.integrations.stages"])


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name in {"RANK", "WORLD_SIZE"} or name.startswith(("SLURM_", "OMPI_", "PMI_", "MV2_")):
            monkeypatch.delenv(name)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a loader wait half a second, not five, for the end of a worker in the middle of a function."""
    monkeypatch.setattr(worker_pool, "_SECONDS_TO_END", 0.5)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """An empty $TMPDIR for another process, of a short path: sockets of multiprocessing have 107 bytes for theirs."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """197 samples in 8 tars, one of them empty, of 95 extents."""
    return open_finely(write_tars(tmp_path_factory.mktemp("tars") / "data", [30, 1, 0, 47, 22, 60, 5, 32]))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """23 samples in 3 tars."""
    return open_finely(write_tars(tmp_path_factory.mktemp("few") / "data", [9, 3, 11]), extent_bytes=2000)
