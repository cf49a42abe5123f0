"""Ranges of objects behind plain http:// come by signed URLs: the bytes and errors of obstore, and no secrets."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import obstore
import pytest
from tests.storage.servers import KEY, SECRET, s3_options
from tests.storage.test_http import DATA, answering, send, send_range

from shoal.errors import StorageError
from shoal.storage.objects.object_options import client_of, location_of
from shoal.storage.objects.object_store import ObjectStore
from shoal.storage.objects.signed_ranges import SignedRanges
from shoal.storage.retry import RetryControl, RetryingStore, RetryRule, retry_control

PATH = "s3://bucket/d/a b+c.tar"


def object_store_of(url: str, **options: Any) -> ObjectStore:
    store = ObjectStore(s3_options(url) | options)
    assert store.read_range(PATH, 0, 5) == DATA[:5]  # by obstore, which learns the version
    return store


def served(handler: BaseHTTPRequestHandler, refuses: Callable[[str], bool] = lambda _: False) -> None:
    """Answer as an S3 server does, and refuse some signed URLs."""
    if "X-Amz-Signature" in handler.path and refuses(handler.path):
        send(handler, 403, b"<Error><Code>AccessDenied</Code></Error>")
    else:
        send_range(handler, ETag='"v1"', Last_Modified="Fri, 27 Nov 2026 06:00:00 GMT")


@pytest.fixture
def no_obstore(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("this range should not be read by obstore")

    return lambda: monkeypatch.setattr(obstore, "get", refuse)


@pytest.mark.parametrize("anonymous", [False, True])
def test_known_objects_are_read_without_obstore(anonymous: bool, no_obstore: Callable[[], None]) -> None:
    with answering(served) as (url, asked):
        store = object_store_of(url, **({"anonymous": True} if anonymous else {}))
        no_obstore()
        assert store.read_range(PATH, 3, 900) == DATA[3:900]
        buffer = bytearray(700)
        store.fill(PATH, 11, memoryview(buffer))
        assert buffer == DATA[11:711]
    assert [("X-Amz-Signature" in each["path"]) for each in asked] == [False, *[not anonymous] * 2]
    assert {each["path"].partition("?")[0] for each in asked} == {"/bucket/d/a%20b%2Bc.tar"}
    assert asked[1]["port"] == asked[2]["port"]  # one connection


def read_with_retries(store: ObjectStore, first: int, end: int) -> tuple[bytes, int]:
    """The bytes of a range, and the number of retries."""
    failures: list[StorageError] = []
    retrying = RetryingStore(store, RetryRule(first_pause_seconds=0.001))
    with retry_control(RetryControl(lambda _: False, failures.append)):
        return retrying.read_range(PATH, first, end), len(failures)


def test_a_bucket_that_refuses_signed_urls_is_read_by_obstore_and_the_refusal_counts() -> None:
    with answering(lambda handler: served(handler, lambda _: True)) as (url, asked):
        store = object_store_of(url)
        assert read_with_retries(store, 5, 50) == (DATA[5:50], 1)
        num_requests = len(asked)
        assert read_with_retries(store, 5, 50) == (DATA[5:50], 0)
        assert len(asked) == num_requests + 1


def test_a_refused_url_is_signed_again() -> None:
    refused: set[str] = set()
    with answering(lambda handler: served(handler, refused.__contains__)) as (url, asked):
        store = object_store_of(url)
        store.read_range(PATH, 5, 50)
        refused.add(asked[-1]["path"])
        assert read_with_retries(store, 6, 60) == (DATA[6:60], 1)
        assert "X-Amz-Signature" not in asked[-1]["path"]
        refused.clear()
        assert read_with_retries(store, 6, 60) == (DATA[6:60], 0)
        assert "X-Amz-Signature" in asked[-1]["path"]


def test_the_final_error_of_a_forbidden_object_is_that_of_obstore() -> None:
    is_forbidden = [False]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if is_forbidden[0]:
            send(handler, 403, b"<Error><Code>ExpiredToken</Code></Error>")
        else:
            served(handler)

    with answering(answer) as (url, _):
        store = object_store_of(url)
        store.read_range(PATH, 5, 50)
        is_forbidden[0] = True
        with pytest.raises(StorageError, match="ExpiredToken") as caught:
            read_with_retries(store, 5, 50)
    assert "the credentials have expired" in caught.value.hint


def test_urls_are_signed_again_long_before_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    num_signed = [0]
    sign = obstore.sign

    def counted(*what: Any) -> Any:
        num_signed[0] += 1
        return sign(*what)

    monkeypatch.setattr(obstore, "sign", counted)
    with answering(served) as (url, asked):
        store = object_store_of(url)
        store._signed = SignedRanges(s3_options(url), clock=lambda: now[0])
        for seconds in (0, 239, 2, 239, 1):
            now[0] += seconds
            assert store.read_range(PATH, 1, 9) == DATA[1:9]
    assert num_signed == [3]
    assert all("X-Amz-Expires=3600" in each["path"] for each in asked[1:])


@pytest.mark.parametrize(
    ("headers", "match"),
    [
        ({"Content_Range": "bytes 10-19/77"}, "changed while it was being read"),
        ({"ETag": '"v2"'}, "changed while it was being read"),
        ({"Content_Range": f"bytes 20-29/{len(DATA)}"}, "sent bytes"),
        ({"Content_Range": "bytes */9"}, "Content-Range"),
        ({"Content_Length": "10", "Content_Range": f"bytes 10-18/{len(DATA)}"}, "9"),
    ],
)
def test_other_answers_are_errors_and_no_bytes(headers: dict[str, str], match: str) -> None:
    changed: dict[str, str] = {}

    def answer(handler: BaseHTTPRequestHandler) -> None:
        send_range(handler, **{"ETag": '"v1"', "Last_Modified": "Fri, 27 Nov 2026 06:00:00 GMT"} | changed)

    with answering(answer) as (url, _):
        store = object_store_of(url)
        changed |= headers
        with pytest.raises(StorageError, match=match):
            store.read_range(PATH, 10, 20)
        changed.clear()
        assert store.read_range(PATH, 10, 20) == DATA[10:20]


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_no_error_holds_a_secret(status: int, caplog: pytest.LogCaptureFixture) -> None:
    statuses = [206]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if statuses[-1] == 206:
            served(handler)
        else:
            send(handler, statuses[-1], f"<Error>{handler.path}</Error>".encode())

    with answering(answer) as (url, asked), caplog.at_level(logging.DEBUG):
        store = object_store_of(url)
        store.read_range(PATH, 10, 20)
        signature = asked[-1]["path"].partition("X-Amz-Signature=")[2]
        assert len(signature) == 64
        statuses.append(status)
        with pytest.raises(StorageError) as caught:
            store.read_range(PATH, 10, 20)
        shown = f"{caught.value!r} {caught.value} {caught.value.hint} {store!r} {caplog.text}"
    assert caught.value.transient == (status >= 500)
    for secret in (signature, SECRET, KEY):
        assert secret not in shown


def test_signed_urls_do_not_travel_to_other_processes() -> None:
    with answering(served) as (url, asked):
        store = object_store_of(url)
        store.read_range(PATH, 10, 20)
        signature = asked[-1]["path"].partition("X-Amz-Signature=")[2]
        assert signature.encode() not in pickle.dumps(store)
        store.close()
        assert store._signed._urls == {}


@pytest.mark.parametrize(
    "options", [{"headers": {"X-Key": "7"}}, {"request_payer": True}, {"proxy": "http://127.0.0.1:9"}]
)
def test_requests_with_headers_or_a_proxy_stay_with_obstore(options: dict[str, Any]) -> None:
    assert not SignedRanges(s3_options("http://127.0.0.1:1") | options)._is_usable


def test_a_server_that_is_gone_is_named() -> None:
    with answering(served) as (url, _):
        store = object_store_of(url)
    with pytest.raises(StorageError, match=rf"{PATH.replace('+', '.')}: no connection to {url[7:]}") as caught:
        store.read_range(PATH, 10, 20)
    assert caught.value.transient


def test_https_and_proxies_of_the_environment_stay_with_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    location = location_of(PATH)
    for endpoint, proxy in (("https://127.0.0.1:1", ""), ("http://store.test:1", "http://127.0.0.1:9")):
        monkeypatch.setenv("http_proxy", proxy)
        options = s3_options(endpoint)
        signed = SignedRanges(options)
        assert signed.read(location, client_of(location, options), PATH, 0, 5, None) is None
        assert signed._left == {"s3://bucket"}
