"""Wherever a secret is put, nothing that shoal says or keeps holds it."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.storage.servers import Place
from tests.storage.test_http import answering, send

import shoal
from shoal.cli.main import main
from shoal.errors import ShoalError
from shoal.storage.store_of_url import open_store
from shoal.storage.urls import has_unescaped_password, redacted, without_secrets
from shoal.testing import Fault, RangeServer

pytestmark = pytest.mark.usefixtures("http_client")

LINES = "".join(json.dumps({"id": number}) + "\n" for number in range(20)).encode()

# What keys and tokens are made of; long enough not to be found anywhere by chance.
SECRETS = st.text("abcdefghijklmnopqrstuvwxyzABCDEF0123456789-_.~", min_size=12, max_size=30).map(
    lambda text: f"zq{text}"
)
# Where it may stand, as a URL and options made of it.
PLACES: dict[str, Callable[[str, str], tuple[str, dict[str, Any]]]] = {
    "query": lambda url, secret: (f"{url}?X-Signature={secret}&expires=3600", {}),
    "bare query": lambda url, secret: (f"{url}?{secret}", {}),
    "password": lambda url, secret: (url.replace("://", f"://me:{secret}@"), {}),
    "user": lambda url, secret: (url.replace("://", f"://{secret}@"), {}),
    "fragment": lambda url, secret: (f"{url}#{secret}", {}),
    "header": lambda url, secret: (url, {"headers": {"Authorization": f"Bearer {secret}"}}),
    "own header": lambda url, secret: (url, {"headers": {"X-Key": secret}}),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RangeServer]:
    with RangeServer({"d/a.jsonl": LINES, "d/b.jsonl": LINES}) as running:
        yield running


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """All that was logged, at every level, and printed since the last call."""
    caplog.set_level(logging.DEBUG)

    def since() -> str:
        text = caplog.text + "".join(str(record.__dict__) for record in caplog.records)
        caplog.clear()
        out, err = capsys.readouterr()
        return text + out + err

    return since


def everything_below(directory: Path) -> str:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return "".join(map(str, files)) + "".join(path.read_bytes().decode("latin-1") for path in files)


def complaint_of(call: Callable[[], Any]) -> str:
    try:
        found = call()
    except ShoalError as error:
        causes = [error.__cause__] * (error.__cause__ is not None)
        return "".join(f"{one}{one!r}{one.__dict__}{getattr(one, '__notes__', '')}" for one in (error, *causes))
    return repr(found)


@settings(
    max_examples=2, phases=(Phase.explicit, Phase.generate), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(secret=SECRETS)
@pytest.mark.parametrize("place", PLACES)
def test_what_works_keeps_no_secret(
    place: str, secret: str, server: RangeServer, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = PLACES[place](f"{server.url}/d/{{a,b}}.jsonl", secret)
    with tempfile.TemporaryDirectory() as cache:
        monkeypatch.setenv("SHOAL_CACHE_DIR", cache)
        ds = shoal.open(url, storage_options=options).shuffle(seed=1)
        iterator = iter(ds)
        assert len(list(iterator)) == 40
        kept = json.dumps([ds.state_dict(), iterator.state_dict(), ds.stats()], default=str)
        words = [f"--storage-option=headers.{name}={text}" for name, text in options.get("headers", {}).items()]
        assert main(["info", url, *words]) == main(["info", url, "--json", *words]) == 0
        assert main(["head", url, *words]) == 0
        everything = [
            repr(ds),
            repr(ds.stream.opened.store),
            repr(ds.stream.opened.paths),
            kept,
            said(),
            everything_below(Path(cache)),
        ]
    assert not [text for text in everything if secret in text]


@settings(
    max_examples=2, phases=(Phase.explicit, Phase.generate), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(secret=SECRETS)
@pytest.mark.parametrize("place", PLACES)
def test_what_fails_says_no_secret(place: str, secret: str, server: RangeServer, said: Callable[[], str]) -> None:
    everything = []
    for name in (
        "missing.jsonl",
        "d/",
        "d",
        "d/*.jsonl",
        "d/{a,c}.jsonl",
        "d/{a,b.jsonl",
        "d/x.index",
        "d/a.odd",
        "d/a.jsonl::d",
    ):
        url, options = PLACES[place](f"{server.url}/{name}", secret)
        everything += [complaint_of(partial(shoal.open, url, storage_options=options))]
        words = [f"--storage-option=headers.{name}={text}" for name, text in options.get("headers", {}).items()]
        main(["info", url, *words])
    for source in (
        [PLACES[place]("http://h/a.jsonl", secret)[0], "b.jsonl"],
        PLACES[place]("gopher://h/a.jsonl", secret)[0],
        PLACES[place]("http://nosuch.invalid/a.jsonl", secret)[0],
        PLACES[place]("http://h:port/a.jsonl", secret)[0],
        f"pipe:curl -H {secret} {PLACES[place]('http://h/a.jsonl', secret)[0]}",
        [PLACES[place](f"{server.url}/d/a.jsonl", secret)[0]] * 2,
    ):
        everything.append(complaint_of(partial(open_and_look, source)))
    assert not [text for text in (*everything, said()) if secret in text]


def open_and_look(source: Any) -> None:
    store = open_store(source)
    text = source if isinstance(source, str) else source[0]
    store.read_range(without_secrets(text), 0, 5)


@settings(
    max_examples=2, phases=(Phase.explicit, Phase.generate), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(secret=SECRETS)
@pytest.mark.parametrize("place", PLACES)
def test_what_a_server_repeats_is_struck_out(place: str, secret: str, said: Callable[[], str]) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(handler, 403, f"you asked for {handler.path} with {handler.headers}".encode())

    with answering(answer) as (root, _):
        url, options = PLACES[place](f"{root}/a.jsonl", secret)
        text = complaint_of(lambda: open_store(url, options).read_range(f"{root}/a.jsonl", 0, 5))
    assert "you asked for /a.jsonl" in text
    assert secret not in text
    assert secret not in said()


@settings(
    max_examples=2, phases=(Phase.explicit, Phase.generate), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(secret=SECRETS)
def test_object_stores(secret: str, s3: Place, said: Callable[[], str]) -> None:
    faults = [Fault("status", status=403, probability=1)]
    with RangeServer({}, faults=faults) as refusing:
        everything = []
        for wrong in (
            {"secret_access_key": secret},
            {"session_token": secret},
            {"headers": {"X-Key": secret}},
            {"odd": secret},
        ):
            options = s3.options | {"endpoint": refusing.url} | wrong
            for source in (f"{s3.root}/a.jsonl", s3.root, f"{s3.root}/*.jsonl", f"s3://me:{secret}@bucket/a.jsonl"):
                everything += [complaint_of(partial(shoal.open, source, storage_options=options))]
            everything.append(repr(open_store(s3.root, options)))
        assert all("/a.jsonl" in text or "ObjectStore" in text or "s3://" in text for text in everything)
        assert not [text for text in (*everything, said()) if secret in text]


@pytest.mark.parametrize("given", ["options", "environment"])
def test_a_signature_of_azure_that_the_server_repeats(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent in pieces among other words of a query, encoded in one way or another."""
    secret = "zq/signature+that=stays"
    options = {"account_name": "dev"}
    sas = f"?sv=2022-11-02&sp=r&sig={quote(secret, safe='')}"
    if given == "options":
        options["sas_key"] = sas
    else:
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(handler, 403, f"<Message>asked for {handler.path} and {unquote(handler.path)}</Message>".encode())

    with answering(answer) as (url, asked):
        store = open_store("az://c/d", options | {"endpoint": url})
        text = complaint_of(lambda: list(store.list("az://c/d")))
    assert "sig=" in asked[0]["path"]
    assert "asked for /c?" in text
    assert "signature" not in text


@pytest.mark.parametrize("mark", ["/", "?", "#", "/?", "@/"])
@pytest.mark.parametrize("scheme", ["http", "s3", "gs"])
def test_a_password_that_should_have_been_escaped(scheme: str, mark: str, said: Callable[[], str]) -> None:
    """Half of all secret keys of S3 have a "/" in them; such a URL cannot be used, and says nothing of it."""
    url = f"{scheme}://me:hidden{mark}secret@host/a@b/c.jsonl"
    complaint = complaint_of(partial(shoal.open, url))
    assert main(["info", url]) == 2
    assert not [text for text in (complaint, said(), without_secrets(url)) if "hidden" in text or "secret" in text]


@pytest.mark.parametrize(
    "url", ["http://h:80/a@b", "http://[::1]:80/a@b", "s3://bucket/a:b@c", "http://h:port/a", "file:///a:b/c@d"]
)
def test_what_is_no_password(url: str) -> None:
    assert without_secrets(url) == url
    assert not has_unescaped_password(url)


def test_struck_out() -> None:
    assert redacted("a secret and a secrets", ["secret", "secrets"]) == "a *** and a ***"
    assert (
        without_secrets("abfs://files@account.dfs.core.windows.net/a?sig=x")
        == "abfs://files@account.dfs.core.windows.net/a"
    )
    assert (
        without_secrets("abfs://files:pw@account.dfs.core.windows.net/a")
        == "abfs://files@account.dfs.core.windows.net/a"
    )


@settings(
    max_examples=2, phases=(Phase.explicit, Phase.generate), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(secret=SECRETS)
@pytest.mark.parametrize("place", PLACES)
def test_pages_and_records_hold_no_secret(
    place: str, secret: str, server: RangeServer, said: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = PLACES[place](f"{server.url}/d/{{a,b}}.jsonl", secret)
    words = [f"--storage-option=headers.{name}={text}" for name, text in options.get("headers", {}).items()]
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as out:
        monkeypatch.setenv("SHOAL_CACHE_DIR", cache)
        calls = (
            ["trace", url, "--step", "0", "--global-batch", "4", "--show", "--html", f"{out}/trace.html"],
            ["plan", url, "--global-batch", "4", "--html", f"{out}/plan.html"],
            ["audit", url, "--batch-size", "4", "--html", f"{out}/audit.html"],
            ["repack", url, f"{out}/repacked", "--format", "jsonl"],
            ["index", url, "--output", f"{out}/shoal.index"],
        )
        codes = [main([*call, *words]) for call in calls]
        printed = said()
        assert codes == [0] * len(calls), printed
        assert len([path for path in Path(out).iterdir() if path.suffix == ".html"]) == 3
        assert secret not in printed + everything_below(Path(out)) + everything_below(Path(cache))


def test_a_packing_into_a_store_writes_no_secret(s3: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "zqPackedWithASecret0123"
    written: list[bytes] = []
    store_type = type(open_store(s3.root, s3.options))
    put, put_if = store_type.put, store_type.put_if

    def as_bytes(data: Any) -> bytes:
        return bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(map(bytes, data))

    def noted_put(self: Any, path: str, data: Any) -> Any:
        written.append(path.encode() + as_bytes(data))
        return put(self, path, data)

    def noted_put_if(self: Any, path: str, data: Any, **terms: Any) -> Any:
        written.append(path.encode() + as_bytes(data))
        return put_if(self, path, data, **terms)

    monkeypatch.setattr(store_type, "put", noted_put)
    monkeypatch.setattr(store_type, "put_if", noted_put_if)
    samples = ({"id": number} for number in range(20))
    options = s3.options | {"secret_access_key": secret, "headers": {"X-Key": secret}}
    shoal.pack.pack(samples, f"{s3.root}/packed", format="jsonl", shard_bytes=100, storage_options=options)
    store = open_store(s3.root, s3.options)
    kept = [bytes(store.read_range(info.path, 0, info.num_bytes)) for info in store.list(f"{s3.root}/packed")]
    assert any(b"plan" in data for data in written)  # the record of the unfinished packing
    assert len(kept) > 2
    assert not [data for data in (*written, *kept) if secret.encode() in data]
