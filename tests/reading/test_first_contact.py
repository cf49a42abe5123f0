"""A server that never answered is given up soon, one that did is waited for; how long can be said."""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls
from tests.integration.servers import free_ports
from tests.samples import write_tar_shards

import shoal
from shoal.errors import StorageError, UsageError
from shoal.storage.http.http_store import HttpStore
from shoal.storage.objects.fsspec_store import FileSystemStore
from shoal.storage.objects.object_store import ObjectStore
from shoal.storage.retry import RetryControl, RetryingStore, retry_control, with_retries
from shoal.storage.store_protocol import Store
from shoal.testing import RangeServer

pytestmark = pytest.mark.usefixtures("http_client")

S3 = {"access_key_id": "a", "secret_access_key": "b", "region": "x"}


class Clock:
    """Time that passes only in pauses, each of which takes half of what it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(os, "urandom", lambda count: b"\x80" * count)

    def pause(self, seconds: float) -> bool:
        self.now += seconds
        return False

    def seconds_until_given_up(self, store: Store, path: str) -> float:
        """For how long a store that fails is asked."""
        began = self.now
        with (
            retry_control(RetryControl(self.pause, lambda _: None)),
            pytest.raises(StorageError, match="attempts in") as caught,
        ):
            store.read_range(path, 0, 1)
        assert caught.value.hint
        return self.now - began


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class _Refusing:
    """A filesystem whose server is not there, until it is."""

    protocol = "refusing"
    is_there = False

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        if not self.is_there:
            raise ConnectionRefusedError(111, "Connection refused")
        return bytes(end - start)

    info = find = None

    def _strip_protocol(self, path: str) -> str:
        return path


def http(port: int) -> tuple[Store, str]:
    return HttpStore(), f"http://127.0.0.1:{port}/b/a"


def s3(port: int) -> tuple[Store, str]:
    return ObjectStore({"endpoint": f"http://127.0.0.1:{port}", **S3}), "s3://b/a"


@pytest.mark.parametrize("kind", [http, s3])
def test_a_refused_port_is_given_up_soon_unless_it_answered_before(
    kind: Callable[[int], tuple[Store, str]], clock: Clock
) -> None:
    store, path = kind(free_ports(1)[0])
    assert 2 < clock.seconds_until_given_up(with_retries(store), path) <= 10
    with RangeServer({"b/a": b"0123"}) as server:
        store, path = kind(server.port)
        tried = with_retries(store)
        assert tried.read_range(path, 0, 1) == b"0"
        server.down()
        tried.close()
        assert 60 < clock.seconds_until_given_up(tried, path) <= 120
        # A worker that begins while the server is away waits as its parent would.
        assert 60 < clock.seconds_until_given_up(pickle.loads(pickle.dumps(tried)), path) <= 120


@pytest.mark.parametrize("kind", [http, s3])
def test_a_server_that_answers_is_there_whatever_it_says(
    kind: Callable[[int], tuple[Store, str]], clock: Clock
) -> None:
    with RangeServer({}) as server:
        store, path = kind(server.port)
        with pytest.raises(StorageError, match="404"):
            store.read_range(path, 0, 1)
        server.down()
        store.close()
        assert 60 < clock.seconds_until_given_up(with_retries(store), path) <= 120


def test_an_unknown_host_is_given_up_soon(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert 2 < clock.seconds_until_given_up(with_retries(HttpStore()), "http://no-such-host.invalid/a") <= 10


def test_a_filesystem_whose_server_is_not_there_is_given_up_soon(clock: Clock) -> None:
    filesystem = _Refusing()
    tried = with_retries(FileSystemStore(filesystem))
    assert 2 < clock.seconds_until_given_up(tried, "refusing://a") <= 10
    filesystem.is_there = True
    tried.read_range("refusing://a", 0, 1)
    filesystem.is_there = False
    assert 60 < clock.seconds_until_given_up(tried, "refusing://a") <= 120


@pytest.mark.parametrize("seconds", [3, 60])
def test_a_deadline_that_was_asked_for_holds_from_the_first(seconds: float, clock: Clock) -> None:
    store, path = http(free_ports(1)[0])
    tried = with_retries(store, {"deadline_seconds": seconds})
    assert seconds / 3 < clock.seconds_until_given_up(tried, path) <= seconds


def test_opening_says_that_nobody_answered_and_how_to_wait_longer() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}/a.tar"
    began = time.monotonic()
    with pytest.raises(StorageError, match="no answer has come from this server as yet") as caught:
        shoal.open(url, storage_options={"deadline_seconds": 0.3})
    assert time.monotonic() - began < 5
    assert "deadline_seconds in storage_options" in caught.value.hint


def test_a_stream_has_the_deadline_of_its_store(tmp_path: Path) -> None:
    write_tar_shards(tmp_path / "data")
    with RangeServer(tmp_path / "data") as server:
        ds = shoal.open(
            f"{server.url}/train-{{000000..000003}}.tar", storage_options={"deadline_seconds": 0.3}
        ).shuffle()
        server.down()
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"the deadline is 0\.3 s"):
            next(iter(ds))
        with pytest.raises(StorageError, match=r"the deadline is 0\.4 s"):
            next(iter(ds.reading(deadline=0.4)))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "words",
    [
        "info",
        "head",
        "index --output DST",
        "verify",
        "plan",
        "audit",
        "trace --step 0 --batch-size 4",
        "bench",
        "repack DST",
        "pack DST",
    ],
)
def test_every_verb_takes_a_deadline(words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    verb, *more = words.split()
    url = f"http://127.0.0.1:{free_ports(1)[0]}/a.tar"
    if verb == "pack":
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "a.txt").write_text("a")
        url, more = str(tmp_path / "files"), ["s3://bucket/packed"]
    rest = [str(tmp_path / "out") if word == "DST" else word for word in more]
    began = time.monotonic()
    options = [f"--storage-option={name}={value}" for name, value in S3.items()] if verb == "pack" else []
    if options:
        options.append(f"--storage-option=endpoint=http://127.0.0.1:{free_ports(1)[0]}")
    calls = Calls(capsys)
    calls.refused(verb, url, *rest, *options, "--deadline", "0.2")
    assert time.monotonic() - began < 5
    assert "0.2 s" in calls.complaints
    assert "--deadline is a number of seconds" in calls.refused(verb, url, *rest, "--deadline", "soon")


@pytest.mark.parametrize("wrong", [0, -1, "soon", True, float("inf"), [1]])
def test_a_deadline_is_a_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(UsageError, match="deadline_seconds is a number of seconds above 0"):
        shoal.open("http://127.0.0.1:1/a.tar", storage_options={"deadline_seconds": wrong})


def test_files_of_this_machine_do_not_mind_a_deadline(tmp_path: Path) -> None:
    write_tar_shards(tmp_path / "data")
    ds = shoal.open(tmp_path / "data", storage_options={"deadline_seconds": 5})
    assert ds.num_samples == 200
    assert not isinstance(ds.stream.opened.store, RetryingStore)
