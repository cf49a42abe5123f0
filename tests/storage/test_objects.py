from __future__ import annotations

import errno
import os
import pickle
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.storage.servers import KEY, SECRET, Place, s3_options
from tests.storage.test_http import answering, send

from shoal.errors import ForkError, SourceError, StorageError, UsageError
from shoal.storage.objects.object_options import client_settings, location_of
from shoal.storage.objects.object_store import ObjectStore
from shoal.storage.retry import RetryingStore, RetryRule
from shoal.storage.sources.source import expand
from shoal.testing import Fault, RangeServer, answers

DATA = bytes(range(256)) * 300


def unsigned(server: RangeServer, **options: Any) -> ObjectStore:
    return ObjectStore({"endpoint": server.url, "anonymous": True, **options})


def test_without_credentials_what_is_public_is_read() -> None:
    with RangeServer({"bucket/d/a.tar": DATA, "bucket/d/b.tar": DATA[:5]}) as server:
        store = unsigned(server)
        assert store.read_range("s3://bucket/d/a.tar", 5, 10) == DATA[5:10]
        assert [info.path for info in store.list("s3://bucket/d")] == ["s3://bucket/d/a.tar", "s3://bucket/d/b.tar"]
        num_requests = server.num_requests()
        assert store.stat("s3://bucket/d/b.tar").num_bytes == 5  # the listing said so
        assert server.num_requests() == num_requests


def test_google_cloud_storage() -> None:
    with RangeServer({"bucket/d/a b.tar": DATA, "bucket/d/c.tar": DATA[:5]}) as server:
        store = unsigned(server)
        assert store.read_range("gs://bucket/d/a b.tar", 5, 10) == DATA[5:10]
        assert [info.path for info in store.list("gs://bucket/d")] == ["gs://bucket/d/a b.tar", "gs://bucket/d/c.tar"]
        assert store.find("gs://bucket/none") is None


FAULTS = [
    Fault("status", requests=[0]),
    Fault("status", status=500, requests=[0]),
    Fault("status", status=429, requests=[0]),
    Fault("reset", requests=[0]),
    Fault("reset_in_body", requests=[0]),
    Fault("truncate", requests=[0]),
    Fault("wrong_range", requests=[0]),
    Fault("short_range", requests=[0]),
    Fault("whole", requests=[0]),
    Fault("stall", requests=[0], seconds=1),
    Fault("slow", requests=[0], seconds=1),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.status}")
def test_what_may_pass_is_transient_and_is_asked_for_once(fault: Fault) -> None:
    with RangeServer({"bucket/a.tar": DATA}) as server:
        store = unsigned(server, timeout_seconds=0.3)
        store.stat("s3://bucket/a.tar")
        server.faults = [fault]
        num_requests = server.num_requests()
        with pytest.raises(StorageError) as caught:
            store.read_range("s3://bucket/a.tar", 1000, 70_000)
        assert server.num_requests() == num_requests + 1
        assert caught.value.transient
        assert "s3://bucket/a.tar" in str(caught.value)
        assert "[1000, 70000)" in str(caught.value)
        assert store.read_range("s3://bucket/a.tar", 1000, 70_000) == DATA[1000:70_000]


def test_an_answer_that_never_says_its_length_is_soon_believed() -> None:
    """As behind a proxy that sends answers on in chunks: two minutes of trying would only hide it."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        chunks = b"3\r\nabc\r\n0\r\n\r\n"
        send(handler, 206, chunks, Content_Range="bytes 0-2/300", ETag='"a"', Transfer_Encoding="chunked")

    with answering(answer) as (url, asked):
        store = ObjectStore({"endpoint_url": url, "anonymous": True})
        rule = RetryRule(first_pause_seconds=0.001, deadline_seconds=60)
        with pytest.raises(StorageError, match="Content-Length Header missing") as caught:
            RetryingStore(store, rule).read_range("s3://bucket/a.tar", 0, 3)
        assert "proxy" in caught.value.hint
        assert len(asked) == 6


def test_a_changed_etag_is_not_transient() -> None:
    with RangeServer({"bucket/a.tar": DATA}, faults=[Fault("changed", requests=[1])]) as server:
        store = unsigned(server)
        store.read_range("s3://bucket/a.tar", 0, 5)
        with pytest.raises(StorageError, match="changed while it was being read") as caught:
            store.read_range("s3://bucket/a.tar", 0, 5)
        assert not caught.value.transient


def listed_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have listings of the server show etags of another kind, as some stores do for what was uploaded in parts."""
    key_xml = answers._key_xml
    monkeypatch.setattr(answers, "_key_xml", lambda *what: key_xml(*what).replace("&quot;</ETag>", "-12&quot;</ETag>"))


def test_a_listing_may_show_etags_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    listed_otherwise(monkeypatch)
    objects = {"bucket/d/a.tar": DATA, "bucket/d/b.tar": DATA[:-1]}
    with RangeServer(objects) as server:
        store = unsigned(server)
        infos = list(store.list("s3://bucket/d"))
        assert all(info.version.endswith("-12") for info in infos)
        assert store.read_range("s3://bucket/d/a.tar", 3, 9) == DATA[3:9]
        num_requests = server.num_requests()
        assert store.read_range("s3://bucket/d/a.tar", 3, 9) == DATA[3:9]
        assert server.num_requests() == num_requests + 1  # it is asked once
        objects["bucket/d/a.tar"] = DATA[::-1]
        with pytest.raises(StorageError, match="changed"):
            store.read_range("s3://bucket/d/a.tar", 3, 9)


@pytest.mark.parametrize("quirky", [False, True])
def test_what_was_replaced_after_it_was_listed_is_noticed(quirky: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if quirky:
        listed_otherwise(monkeypatch)
    objects = {"bucket/d/a.tar": DATA}
    with RangeServer(objects) as server:
        store = unsigned(server)
        list(store.list("s3://bucket/d"))
        objects["bucket/d/a.tar"] = DATA[::-1]
        with pytest.raises(StorageError, match="changed"):
            store.read_range("s3://bucket/d/a.tar", 3, 9)


def test_who_is_not_there() -> None:
    with RangeServer({}) as server:
        server.down()
        with pytest.raises(StorageError, match="could not look at s3://bucket/a") as caught:
            unsigned(server).stat("s3://bucket/a")
        assert caught.value.transient


def test_a_bucket_that_is_not_there(s3: Place) -> None:
    store = s3.store()
    with pytest.raises(StorageError, match="404 Not Found") as caught:
        store.stat("s3://no-such-bucket-anywhere/x")
    assert (caught.value.errno, caught.value.transient) == (errno.ENOENT, False)
    with pytest.raises(StorageError, match=r"could not list s3://no-such-bucket-anywhere.*NoSuchBucket") as caught:
        list(store.list("s3://no-such-bucket-anywhere"))
    assert (caught.value.errno, caught.value.transient) == (errno.ENOENT, False)


def test_keys_that_urls_would_write_otherwise(s3: Place) -> None:
    names = ["a b.tar", "a%20b.tar", "ü+#?.tar", "x=1/y.tar"]
    for name in names:
        s3.put(f"odd/{name}", name.encode())
    store = s3.store()
    found = expand(f"{s3.root}/odd", suffixes=(".tar",), store=store)
    assert sorted(found.names) == sorted(names)
    for path, name in zip(found.paths, found.names, strict=True):
        assert bytes(store.map(path)) == name.encode()


def test_an_object_of_exactly_that_name_wins(s3: Place) -> None:
    for name in ("br[1].tar", "br1.tar", "st*r.tar", "star.tar"):
        s3.put(f"odd/{name}", b"x")
    store = s3.store()

    def names(text: str) -> tuple[str, ...]:
        return expand(f"{s3.root}/odd/{text}", suffixes=(".tar",), store=store).names

    assert names("br[1].tar") == ("br[1].tar",)
    assert names("st*r.tar") == ("st*r.tar",)
    assert sorted(names("?r*1*.tar")) == ["br1.tar", "br[1].tar"]


def test_a_key_that_the_library_cannot_list(s3: Place) -> None:
    s3.put("a.tar", b"0123")
    s3.put("d//b.tar", b"0123")
    assert [info.num_bytes for info in s3.store().list(f"{s3.root}/a")] == []
    for ask in (lambda store: list(store.list(s3.root)), lambda store: store.stat(f"{s3.root}/d//b.tar")):
        with pytest.raises(StorageError) as caught:
            ask(s3.store())
        assert not caught.value.transient
    with pytest.raises(StorageError, match=r"d//b\.tar") as caught:
        list(s3.store().list(s3.root))
    assert "name the shards" in caught.value.hint
    with pytest.raises(StorageError, match="illegal character") as caught:
        s3.store().stat(f"{s3.root}/tab\t.tar")
    assert "control character" in caught.value.hint


def test_directories_that_are_objects(s3: Place) -> None:
    s3.put("d/", b"")
    s3.put("d/a.tar", b"x")
    s3.put("dd/b.tar", b"x")
    assert [info.path for info in s3.store().list(f"{s3.root}/d")] == [f"{s3.root}/d/a.tar"]
    assert [info.path for info in s3.store().list(s3.root)] == [f"{s3.root}/d/a.tar", f"{s3.root}/dd/b.tar"]


def test_many_objects_are_listed_lazily(s3: Place) -> None:
    for number in range(30):
        s3.put(f"many/{number:03d}.tar", b"x")
    assert len(list(s3.store().list(s3.root))) == 30


@pytest.mark.parametrize("status", [403, 301, 400])
def test_refusals_say_what_to_look_at(status: int) -> None:
    body_seen = Fault("status", status=status, requests=[0])
    with RangeServer({"bucket/a": DATA}, faults=[body_seen]) as server:
        with pytest.raises(StorageError) as caught:
            unsigned(server).read_range("s3://bucket/a", 0, 5)
        assert not caught.value.transient
        assert str(status) in caught.value.message or "redirect" in caught.value.message
        assert ("region" in caught.value.hint) == (status != 403)


def test_no_credentials_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine itself is asked who it is; here a server that does not know stands for it."""
    with RangeServer({}) as server:
        store = ObjectStore(
            {"metadata_endpoint": server.url.replace("127.0.0.1", "169.254.169.254.localhost"), "region": "x"}
        )
        with pytest.raises(StorageError, match="could not look at s3://bucket/a") as caught:
            store.stat("s3://bucket/a")
        assert "no credentials were found" in caught.value.hint
        assert '"anonymous": True' in caught.value.hint
        assert not caught.value.transient


def test_wrong_credentials_are_not_shown(s3_endpoint: str) -> None:
    with RangeServer({}, faults=[Fault("status", status=403, probability=1)]) as server:
        store = ObjectStore(s3_options(server.url))
        for ask in (
            store.stat,
            store.find,
            lambda path: store.read_range(path, 0, 1),
            lambda path: list(store.list(path)),
        ):
            with pytest.raises(StorageError) as caught:
                ask("s3://bucket/a")
            assert KEY not in str(caught.value)
            assert SECRET not in str(caught.value)
            assert caught.value.errno == errno.EACCES
    assert SECRET not in repr(store)


@pytest.mark.parametrize(
    "options",
    [
        {"acces_key_id": SECRET},
        {"client_options": {"x": SECRET}},
        {"skip_signature": SECRET},
        {"timeout_seconds": SECRET},
        {"endpoint": f"me:{SECRET}@minio.local:9000"},  # at which obstore would panic
        {"endpoint": "minio.local:9000"},
        {"secret_access_key": f"{SECRET}\n"},
        {"endpoint": f"http:///{SECRET}"},
    ],
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="storage_options") as caught:
        ObjectStore(options).stat("s3://bucket/key")
    assert SECRET not in str(caught.value)


def test_what_obstore_holds_to_be_impossible_is_an_error_as_any_other() -> None:
    """It panics, and what is then raised is no `Exception`: a thread would end without a word of why."""
    with RangeServer({"bucket/a.tar": DATA}) as server:
        store = ObjectStore(s3_options(server.url) | {"access_key_id": "A\nB"})
        for ask in (store.stat, lambda path: store.read_range(path, 0, 1), lambda path: list(store.list(path))):
            with pytest.raises(StorageError, match="obstore failed") as caught:
                ask("s3://bucket/a.tar")
            assert not caught.value.transient


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///key", f"s3://user:{SECRET}@bucket/key", "gs://b:80/k", f"gs://{SECRET}@b/k"]
)
def test_urls_that_name_no_bucket(url: str) -> None:
    with pytest.raises(SourceError, match="BUCKET/KEY") as caught:
        ObjectStore().stat(url)
    assert SECRET not in str(caught.value)


def test_places() -> None:
    place = location_of("abfss://files@account.dfs.core.windows.net/a/b.tar")
    assert (place.kind, place.bucket, place.key, place.account) == ("az", "files", "a/b.tar", "account")
    assert place.root == "abfss://files@account.dfs.core.windows.net"
    assert location_of("s3a://bucket/k").kind == "s3"
    assert location_of("gs://bucket").key == ""


def sorted_for(url: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    return client_settings(location_of(url), options)


def test_the_words_of_others_are_understood(tmp_path: Path) -> None:
    words = {"key": "k", "secret": "s", "token": "t", "endpoint_url": "http://h", "requester_pays": True}
    config, client, _ = sorted_for("s3://b/k", anon=False, **words)
    assert config == {
        "access_key_id": "k",
        "secret_access_key": "s",
        "session_token": "t",
        "endpoint": "http://h",
        "request_payer": True,
        "skip_signature": False,
    }
    assert client["allow_http"] is True
    assert sorted_for("az://c/k", account="a", key="k")[0] == {"account_name": "a", "key": "k"}
    assert sorted_for("abfs://c@a.dfs.core.windows.net/k")[0] == {"account_name": "a"}
    assert "allow_http" not in sorted_for("s3://b/k", endpoint="https://h")[1]
    (tmp_path / "ca.pem").write_bytes(b"certificates")
    _, client, provider = sorted_for(
        "gs://b/k",
        timeout_seconds=3,
        connect_timeout_seconds=2,
        ca_bundle=str(tmp_path / "ca.pem"),
        headers={"a": "b"},
        credential_provider=len,
        user_agent="x",
    )
    assert (client["read_timeout"], client["connect_timeout"]) == (timedelta(seconds=3), timedelta(seconds=2))
    assert (client["root_certificate"], client["default_headers"], client["user_agent"]) == (
        b"certificates",
        {"a": "b"},
        "x",
    )
    assert provider is len


def write_profiles() -> None:
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(
        "[default]\nregion = eu-west-1\n[profile work]\nregion = eu-north-1\nendpoint_url = http://work\n"
        "[profile signed-on]\nsso_start_url = https://x\nsso_region = us-east-1\nsso_account_id = 1\n"
        "sso_role_name = r\n[profile signed-off]\nsso_session = nowhere\n"
    )
    Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).write_text(
        "[default]\naws_access_key_id = DK\naws_secret_access_key = ds\n"
        "[work]\naws_access_key_id = WK\naws_secret_access_key = ws%\naws_session_token = wt\n"
    )


def test_profiles_of_the_aws_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted_for("s3://b/k")[0] == {}
    write_profiles()
    default = {"region": "eu-west-1", "access_key_id": "DK", "secret_access_key": "ds"}
    work = {"access_key_id": "WK", "secret_access_key": "ws%", "session_token": "wt"}
    work_place = {"region": "eu-north-1", "endpoint": "http://work"}
    assert sorted_for("s3://b/k")[0] == default
    assert sorted_for("gs://b/k")[0] == {}
    assert sorted_for("s3://b/k", profile="work")[0] == work | work_place
    assert sorted_for("s3://b/k", profile="work", region="x", access_key_id="mine")[0] == {
        "region": "x",
        "access_key_id": "mine",
        "endpoint": "http://work",
    }
    assert sorted_for("s3://b/k", anonymous=True)[0] == {"region": "eu-west-1", "skip_signature": True}
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert sorted_for("s3://b/k")[0] == work | work_place
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    assert sorted_for("s3://b/k")[0] == work_place
    with pytest.raises(UsageError, match="no AWS profile nobody"):
        sorted_for("s3://b/k", profile="nobody")
    provider = sorted_for("s3://b/k", profile="signed-on")[2]
    assert type(provider).__name__ == "Boto3CredentialProvider"
    with pytest.raises(UsageError, match="the AWS profile signed-off gives no credentials"):
        sorted_for("s3://b/k", profile="signed-off")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert sorted_for("s3://b/k")[0] == {}  # the environment has a key
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert sorted_for("s3://b/k", anonymous=True)[0] == {"skip_signature": True}
    with pytest.raises(UsageError, match="AWS_PROFILE: there is no AWS profile nobody"):
        sorted_for("s3://b/k")
    Path(os.environ["AWS_CONFIG_FILE"]).write_text("no section = 1")
    with pytest.raises(UsageError, match="cannot be read: MissingSectionHeaderError"):
        sorted_for("s3://b/k")


def test_a_profile_is_used(s3: Place) -> None:
    s3.put("a.tar", b"0123")
    write_profiles()
    store = ObjectStore({"endpoint": s3.options["endpoint"]})
    assert store.read_range(f"{s3.root}/a.tar", 1, 3) == b"12"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_says_at_once_that_it_cannot(s3: Place) -> None:
    s3.put("a.tar", b"0123")
    store = s3.store()
    store.stat(f"{s3.root}/a.tar")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            pickle.dumps(store)
            ObjectStore(s3.options).read_range(f"{s3.root}/a.tar", 0, 1)
        except ForkError as error:
            code = 0 if "forkserver" in error.hint and not error.transient else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.read_range(f"{s3.root}/a.tar", 0, 1) == b"0"
