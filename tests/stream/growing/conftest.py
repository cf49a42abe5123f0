"""Shards for the tests of growing datasets, a cache for each, and short waits for ranks that run in one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stream.growing.growing_data import write_shards

from shoal.indexing.jobs import shared_indexing


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("growing") / "data")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(autouse=True, scope="module")
def _short_waits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_indexing, "_LEAST_WAIT_SECONDS", 0.05)
        patch.setattr(shared_indexing, "_UNKNOWN_WAIT_SECONDS", 0.05)
        patch.setattr(shared_indexing, "_JOIN_SECONDS", 0.01)
        yield
