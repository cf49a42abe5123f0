"""What goes over the wire to S3, GCS and Azure: signed or not, and who pays."""

from __future__ import annotations

import errno
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

import pytest
from tests.storage.servers import Place
from tests.storage.test_http import answering, send

from shoal.errors import StorageError
from shoal.storage.objects.object_store import ObjectStore

DATA = bytes(range(100))
KEY, SECRET = "AKIAEXAMPLE", "a-secret-that-stays-here"


def answer(handler: BaseHTTPRequestHandler) -> None:
    first, _, last = handler.headers["Range"].removeprefix("bytes=").partition("-")
    body = DATA[int(first) : int(last) + 1]
    said = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    send(handler, 206, body, **{**said, "Content-Range": f"bytes {first}-{last}/{len(DATA)}"})


def asked_with(url_of: str = "s3://bucket/d/a.tar", **options: Any) -> dict[str, str]:
    """The headers of the request that reads a range."""
    with answering(answer) as (url, asked):
        given = {"endpoint": url, **options}
        if url_of.startswith("s3"):
            given |= {"region": "eu-west-1"}
        store = ObjectStore(given)
        assert store.read_range(url_of, 10, 20) == DATA[10:20]
        assert len(asked) == 1
        return asked[0]


def test_requests_are_signed_with_what_was_given() -> None:
    headers = asked_with(access_key_id=KEY, secret_access_key=SECRET, session_token="for-now")
    assert headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={KEY}/")
    assert "/eu-west-1/s3/aws4_request" in headers["authorization"]
    assert headers["x-amz-security-token"] == "for-now"
    assert SECRET not in str(headers)
    assert "x-amz-request-payer" not in headers
    assert headers["path"] == "/bucket/d/a.tar"


def test_who_asks_pays_where_that_is_said_and_the_signature_covers_it() -> None:
    headers = asked_with(access_key_id=KEY, secret_access_key=SECRET, requester_pays=True)
    assert headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" in headers["authorization"]


def test_the_anonymous_sign_nothing_whatever_the_environment_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    headers = asked_with(anonymous=True)
    assert "authorization" not in headers
    assert KEY not in str(headers)
    assert "authorization" in asked_with()  # what the environment has is taken otherwise


def test_google_cloud_storage_at_an_endpoint_of_ones_own() -> None:
    headers = asked_with("gs://bucket/d/a.tar", anonymous=True)
    assert unquote(headers["path"]) == "/bucket/d/a.tar"
    assert "authorization" not in headers


def test_azure_is_signed_with_the_key_of_the_account() -> None:
    headers = asked_with(
        "az://container/d/a.tar", account_name="devstore", account_key="c2VjcmV0LXRoYXQtc3RheXM=", allow_http=True
    )
    assert headers["authorization"].startswith("SharedKey devstore:")
    assert headers["path"].endswith("/container/d/a.tar")


@pytest.mark.parametrize(
    ("status", "written"), [(200, True), (412, False), (409, False), (501, "cannot compare"), (403, "forbidden")]
)
def test_what_is_written_only_if_nobody_else_has(status: int, written: bool | str) -> None:
    def put(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        send(handler, status, b"" if status == 200 else b"<Error/>", ETag='"1"')

    with answering(put) as (url, asked):
        store = ObjectStore({"endpoint": url, "region": "x", "access_key_id": KEY, "secret_access_key": SECRET})
        if isinstance(written, bool):
            assert store.put_if("s3://bucket/d-409/a.index", b"index", replaces=None) is written
        else:
            with pytest.raises(StorageError) as caught:
                store.put_if("s3://bucket/d-409/a.index", b"index", replaces=None)
            assert (caught.value.errno == errno.ENOTSUP) is (status == 501)
            assert not caught.value.transient
        assert asked[0]["if-none-match"] == "*"


def test_what_replaces_another_names_its_etag(s3: Place) -> None:
    s3.put("a.index", b"first")
    path, store = f"{s3.root}/a.index", s3.store()
    first = store.stat(path)
    assert not store.put_if(path, b"new", replaces=None)
    assert store.put_if(path, b"second", replaces=first)
    assert not store.put_if(path, b"third", replaces=first)
    assert store.read_range(path, 0, 6) == b"second"
    store.delete(path)
    assert not store.put_if(path, b"fourth", replaces=first)
    assert store.find(path) is None
