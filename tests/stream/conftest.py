"""What the tests of the running stream share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.samples import write_tar
from tests.stream.made import open_finely, write_lines, write_tars

from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """197 samples in 8 tars, one of them empty, of 95 extents."""
    return open_finely(write_tars(tmp_path_factory.mktemp("tars") / "data", [30, 1, 0, 47, 22, 60, 5, 32]))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """83 lines in 4 shards."""
    return open_finely(write_lines(tmp_path_factory.mktemp("lines") / "data", [20, 33, 1, 29]))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """300 samples of 20 KB in one shard of 6 MB: more than is read ahead."""
    directory = tmp_path_factory.mktemp("large")
    write_tar(directory / "a.tar", [{"__key__": str(i).encode(), "bin": bytes(20_000)} for i in range(300)])
    return open_dataset(directory / "a.tar")


@pytest.fixture(params=["told", "threads"])
def readers(request: pytest.FixtureRequest, tars: Dataset, lines: Dataset, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who reads `tars` and `lines`: the consumer, as for local files, or threads, as for remote stores."""
    if request.param == "threads":
        for ds in (tars, lines):
            monkeypatch.setattr(ds.stream.opened.store, "reads_ahead", False)
    return str(request.param)
