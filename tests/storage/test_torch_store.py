"""Objects in the store of torch.distributed."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import sys
from typing import Any

import pytest
from tests.storage.servers import torch_server

from shoal.errors import StorageError, UsageError
from shoal.storage.objects import torch_store
from shoal.storage.objects.torch_store import TorchStore, reachable_torch_store

DATA = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def server() -> Any:
    return torch_server()


@pytest.fixture
def store(server: Any, monkeypatch: pytest.MonkeyPatch) -> TorchStore:
    monkeypatch.setattr(torch_store, "_PIECE_BYTES", 1000)
    return TorchStore(server.host, server.port)


def test_objects_of_several_pieces(store: TorchStore) -> None:
    path = f"{store.url}/several/ä b"
    assert store.find(path) is None
    store.put(path, [DATA[:7], DATA[7:]])
    info = store.stat(path)
    assert (info.path, info.num_bytes) == (path, len(DATA))
    for first, end in [(0, 1), (0, len(DATA)), (999, 1001), (1000, 2000), (len(DATA) - 1, len(DATA)), (7, 7)]:
        assert store.read_range(path, first, end) == DATA[first:end]
    assert bytes(store.map(path)) == DATA
    with pytest.raises(StorageError, match="bytes"):
        store.read_range(path, 0, len(DATA) + 1)
    with pytest.raises(UsageError, match="not a range"):
        store.read_range(path, 5, 4)
    store.put(path, b"other")
    assert store.stat(path).version != info.version
    assert store.read_range(path, 0, 5) == b"other"


def test_listing_and_removal(store: TorchStore, server: Any) -> None:
    for name in ("b/2", "a", "b/1", "bc"):
        store.put(f"{store.url}/list/{name}", DATA)
    store.put(f"{store.url}/list/b/0", b"")
    found = list(store.list(f"{store.url}/list/b/"))
    assert [info.path for info in found] == [f"{store.url}/list/b/{number}" for number in (0, 1, 2)]
    assert [info.num_bytes for info in found] == [0, len(DATA), len(DATA)]
    num_keys = len(server.list_keys())
    store.delete(f"{store.url}/list/b/1")
    assert len(server.list_keys()) == num_keys - 12  # its pieces too
    assert store.find(f"{store.url}/list/b/1") is None
    assert store.read_range(f"{store.url}/list/b/2", 0, len(DATA)) == DATA
    store.delete(f"{store.url}/list/b/1")


def test_what_is_not_there_is_missing(store: TorchStore) -> None:
    for ask in (store.stat, lambda path: store.read_range(path, 0, 1)):
        with pytest.raises(StorageError, match="nothing") as caught:
            ask(f"{store.url}/nothing")
        assert caught.value.errno == errno.ENOENT


def test_pickled_and_forked_processes_connect_anew(store: TorchStore) -> None:
    path = f"{store.url}/processes"
    store.put(path, DATA)
    assert pickle.loads(pickle.dumps(store)).read_range(path, 0, 9) == DATA[:9]
    child = os.fork()
    if not child:
        os._exit(store.read_range(path, 0, len(DATA)) != DATA)
    assert os.waitpid(child, 0)[1] == 0
    assert store.read_range(path, 0, len(DATA)) == DATA


def test_the_store_of_a_job_is_named_by_its_launcher(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"MASTER_ADDR": server.host, "MASTER_PORT": str(server.port)}
    found = reachable_torch_store(there)
    assert found is not None
    assert (found.host, found.port) == (server.host, server.port)
    assert reachable_torch_store({}) is None
    assert reachable_torch_store({**there, "MASTER_PORT": "none"}) is None
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert reachable_torch_store({**there, "MASTER_PORT": str(unused.getsockname()[1])}) is None
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert reachable_torch_store(there) is None


def test_a_server_that_has_ended_is_an_error_of_storage() -> None:
    server = torch_server()
    store = TorchStore(server.host, server.port)
    store.put("name", b"data")
    del server
    with pytest.raises(StorageError, match=r"the store of torch\.distributed"):
        store.find("name")
