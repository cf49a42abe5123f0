"""Shards for the tests of growing datasets, a cache for each, and short waits for ranks that run in one process."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stream.growing.growing_data import write_shards

from shoal.indexing.jobs import shared_indexing

_AHEAD = "shoal-index-ahead"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("growing") / "data")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _no_thread_of_another_test() -> Iterator[None]:
    """A thread that keeps an index does not end in the middle of the next test."""
    yield
    if any(thread.name == _AHEAD for thread in threading.enumerate()):
        gc.collect()  # datasets in cycles, which stop their threads when they go
    for thread in threading.enumerate():
        if thread.name == _AHEAD:
            thread.join(5)


@pytest.fixture(autouse=True, scope="module")
def _short_waits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_indexing, "_LEAST_WAIT_SECONDS", 0.05)
        patch.setattr(shared_indexing, "_UNKNOWN_WAIT_SECONDS", 0.05)
        patch.setattr(shared_indexing, "_JOIN_SECONDS", 0.01)
        yield
