"""Answers over http that look right and are not, now and then; and opening a dataset while a server is unwell."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.stream.faraway import SOON
from tests.stream.made import ids_of, reading_threads, write_tars

from shoal.errors import StorageError
from shoal.formats.format_registry import format_named
from shoal.indexing.build import build_index
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.index_files import save_index
from shoal.orders import Sequential, Window
from shoal.reading.schedule import read_requests
from shoal.storage.files.local_store import LocalStore
from shoal.storage.retry import RetryingStore
from shoal.storage.sources.source import expand
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.testing import Fault, FaultKind, RangeServer

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.usefixtures("http_client"),
]

COUNTS = [60, 45, 0, 70]
SHORT = {"timeout_seconds": 0.4, "connect_timeout_seconds": 2}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, with an index beside them that has checksums and small extents."""
    directory = write_tars(tmp_path_factory.mktemp("served") / "d", COUNTS)
    opened = open_dataset(directory).stream.opened
    found = expand(f"{directory}/*.tar", suffixes=(".tar",))
    index = build_index(found, store=LocalStore(), format=format_named("tar"), extent_bytes=4000)
    sums = extent_checksums(index, opened.paths, store=LocalStore(), check=lambda _: None)
    save_index(replace(index, extent_checksum=sums), directory, store=LocalStore())
    return directory


@pytest.fixture
def server(directory: Path) -> Iterator[RangeServer]:
    with RangeServer(directory) as server:
        yield server


@pytest.fixture(autouse=True)
def _many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_requests, "_LEAST_REQUEST_BYTES", 1)
    monkeypatch.setattr(read_requests, "_REQUESTS_AHEAD", 10**9)


def served(server: RangeServer) -> Dataset:
    ds = open_dataset(server.url_of("shoal.index"), storage_options=SHORT)
    store = ds.stream.opened.store
    assert isinstance(store, RetryingStore)
    store.rule = SOON
    return ds


ORDERS: list[Sequential | Window] = [Sequential(), Window(chunks=10, num_canonical_nodes=2)]
TENTH = range(7, 10**6, 10)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("kind", ["changed", "corrupt"])
def test_one_answer_in_ten_that_is_not_to_be_trusted(
    kind: FaultKind, order: Sequential | Window, server: RangeServer
) -> None:
    """From another version of a shard, or wrong in a bit: also where a shard is compared with the index first."""
    ds = served(server).shuffle(order, seed=4, chunk="4000")
    server.faults = [Fault(kind, requests=TENTH)]
    assert ids_of(ds) == ds.ids().tolist()
    assert server.num_faults()[kind] >= 5
    stats = ds.stats()
    assert stats["num_retries"] > 0
    assert (stats["num_corrupt"] > 0) == (kind == "corrupt")
    assert stats["requested_bytes"] > stats["read_bytes"]
    assert not reading_threads()


@pytest.mark.parametrize("hedge", [False, True])
def test_what_is_counted_is_what_the_server_was_asked(hedge: bool, server: RangeServer, http_client: str) -> None:
    """Tries that failed and second requests too; but not the first look at each shard.

    Nor what libcurl asks again by itself because a kept connection ended before it answered.
    """
    ds = served(server).shuffle(ORDERS[1], seed=4, chunk="4000").reading(hedge=hedge)
    for shard in range(len(COUNTS)):
        ds.stream.opened.check.check(shard)
    server.clear()
    kinds: list[FaultKind] = ["status", "reset", "reset_in_body", "truncate", "short_range", "whole", "corrupt"]
    server.faults = [*(Fault(kind, probability=0.05) for kind in kinds), Fault("slow", probability=0.02, seconds=0.2)]
    assert ids_of(ds) == ds.ids().tolist()
    num_requests = ds.stats()["num_requests"]
    while server.num_requests() < num_requests:  # second requests may be under way still
        time.sleep(0.01)
    num_again = server.num_faults()["reset"] if http_client == "libcurl" else 0
    assert 0 <= server.num_requests() - num_requests <= num_again
    assert num_requests > ds.stats()["num_retries"] > 5


def test_a_dataset_is_opened_and_indexed_through_faults(server: RangeServer, directory: Path) -> None:
    server.faults = [Fault("status", requests=range(1, 10**6, 3)), Fault("reset", requests=range(2, 10**6, 3))]
    ds = open_dataset([server.url_of(path.name) for path in sorted(directory.glob("*.tar"))], storage_options=SHORT)
    assert ds.num_samples == sum(COUNTS)
    server.faults = []
    assert ids_of(ds) == list(range(sum(COUNTS)))


@pytest.mark.parametrize("which", ["files", "server"])
def test_a_process_that_meets_another_version_first_is_put_right(
    which: str, server: RangeServer, directory: Path
) -> None:
    """Workers that are started anew know no version yet, but what the index was made of; here of the files, or not."""
    ds = served(server)
    if which == "server":
        urls = [server.url_of(path.name) for path in sorted(directory.glob("*.tar"))]
        ds = open_dataset(urls, storage_options=SHORT)
    ds = ds.shuffle(Window(chunks=10, num_canonical_nodes=2), seed=4)
    worker = pickle.loads(pickle.dumps(ds))
    server.clear()
    server.faults = [Fault("changed", requests=[0, 4])]
    assert ids_of(worker) == ds.ids().tolist()
    assert server.num_faults()["changed"] == 2


def test_a_server_that_names_another_version_each_time_is_told_so(server: RangeServer) -> None:
    """Looking until some answers agree has an end, where none ever do."""
    worker = pickle.loads(pickle.dumps(served(server)))
    server.faults = [Fault("changed", probability=1)]
    with pytest.raises(StorageError, match="24 requests for the version of this shard had 24 answers"):
        next(iter(worker))
