"""SECURITY.md names a test for each claim; the claims that no other room tests are tested here."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import re
import ssl
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.formats import writers
from tests.project.makefile import ROOT
from tests.samples import write_jsonl, write_tar, write_tar_shards
from tests.storage.test_http import answering, send

import shoal
from shoal.errors import ShardError, ShoalError, SourceError, StateError, StorageError
from shoal.formats.format_registry import format_named
from shoal.index.index_file import encode
from shoal.order.state_dict import sealed
from shoal.storage.store_of_url import open_store
from shoal.testing import RangeServer

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
WITHOUT_TEST = ("**C libraries parse", "**Data can take time", "**An installed package", "**A checkpoint may be")

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


def test_each_claim_has_tests_that_exist() -> None:
    claims = re.split(r"^- ", PAGE, flags=re.MULTILINE)[1:]
    lacking = [claim[:60] for claim in claims if "<!-- tests/" not in claim and not claim.startswith(WITHOUT_TEST)]
    assert lacking == []
    names = re.findall(r"(tests/[\w/]+\.py)::(\w+)", PAGE)
    assert len(names) > 40
    for path, name in names:
        functions = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
                     if isinstance(node, ast.FunctionDef)}  # fmt: skip
        assert name in functions, f"{path} has no {name}"


def test_an_index_allows_no_pickles(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    shard = writers.mds_of({"x": ("pkl", None)}, [[pickle.dumps(Runs())]])
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.mds").write_bytes(shard)
    ds = shoal.open(tmp_path / "data", format=shoal.formats.Mds(allow_pickle=True))
    index = ds.stream.opened.index
    path = tmp_path / "data" / "shoal.index"
    for metadata in ({}, {"options": {"allow_pickle": True}}, {"allow_pickle": True}):
        path.write_bytes(b"".join(encode(replace(index, metadata={**index.metadata, **metadata}))))
        with pytest.raises(ShoalError):
            list(shoal.open(path))
    with pytest.raises(SourceError, match="no shard format 'mds' with options"):
        format_named("mds", {"allow_pickle": True})
    assert not (tmp_path / "ran").exists()


def test_a_state_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_order.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ds = shoal.open(write_jsonl(tmp_path / "a.jsonl")).shuffle(seed=0).batch(4)
    state = ds.state_dict()
    for name in ("hostile_order", "hostile_order:Order", "os:system"):
        with pytest.raises(StateError):
            ds.load_state_dict(sealed({**state, "order": {"name": name, "version": 1}}))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "source",
    [
        "'pipe:touch RAN'",
        "'pipe:aws s3 cp s3://b/a.tar - | tee RAN'",
        "{path: a.jsonl, format: 'hostile:Format'}",
        "{path: a.jsonl, format: 'os:system'}",
        "{path: a.jsonl, shuffle: {order: 'hostile:Order'}}",
        "!!python/object/apply:os.system ['touch RAN']",
        "{path: a.jsonl, index: 'pipe:touch RAN'}",
        "{path: 'hostile://a.jsonl'}",
    ],
)
def test_a_mixture_file_runs_nothing(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')\nclass Format: ...\nclass Order: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl")
    (tmp_path / "blend.yaml").write_text(f"sources:\n  a: {source}\n")
    with pytest.raises(ShoalError):
        list(shoal.open(tmp_path / "blend.yaml"))
    assert not (tmp_path / "RAN").exists()
    assert "hostile" not in sys.modules


def test_reading_writes_to_the_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home", "work", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "work")
    write_tar_shards(tmp_path / "data")

    def files() -> dict[str, int]:
        paths = (path for path in tmp_path.rglob("*") if "cache" not in path.relative_to(tmp_path).parts)
        return {str(path): path.stat().st_mtime_ns for path in paths}

    before = files()
    ds = shoal.open(tmp_path / "data").decode().shuffle(seed=0).batch(8)
    for _ in ds:
        pass
    ds.check_certificate(ds.certificate())
    assert files() == before


@pytest.mark.parametrize("form", ["pil", "rgb8", "rgb"])
def test_an_image_of_too_many_pixels_is_refused(form: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.new("RGB", (16, 16)).save(out, "JPEG")
    data = bytearray(out.getvalue())
    place = data.index(b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", 65_500, 65_500)
    write_tar(tmp_path / "a.tar", [{"__key__": b"a", "jpg": bytes(data)}])
    with pytest.raises(ShardError, match="4290250000 pixels"):
        list(shoal.open(tmp_path / "a.tar").decode(form))


def test_options_of_the_call_go_to_each_server_of_a_mixture_file(tmp_path: Path) -> None:
    """SECURITY.md warns of it; docs/mixture-files.md promises it."""
    pytest.importorskip("yaml")
    for name in ("first", "second"):
        with answering(lambda handler: send(handler, 404)) as (url, requests):
            (tmp_path / "blend.yaml").write_text(f"sources: {{{name}: '{url}/a.jsonl'}}\n")
            with pytest.raises(ShoalError):
                shoal.open(tmp_path / "blend.yaml", storage_options={"headers": {"X-Key": "for each"}})
            assert {request["x-key"] for request in requests} == {"for each"}


def test_certificates_of_object_stores_are_verified() -> None:
    pytest.importorskip("obstore")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ROOT / "tests" / "storage" / "data" / "localhost.pem")
    with answering(lambda handler: send(handler, 404), context=context) as (url, requests):
        options = {"endpoint": url, "access_key_id": "a", "secret_access_key": "b", "deadline_seconds": 1}
        for is_verified in (True, False):
            more = {} if is_verified else {"allow_invalid_certificates": True}
            with pytest.raises(StorageError):
                open_store("s3://bucket/a.tar", options | more).read_range("s3://bucket/a.tar", 0, 5)
            assert (not requests) == is_verified


def test_links_of_a_directory_are_followed(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "mine" / "private.jsonl")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a.jsonl").symlink_to("../mine/private.jsonl")
    assert shoal.open(tmp_path / "theirs").num_samples == 200


def test_a_checksum_is_no_signature(tmp_path: Path) -> None:
    ds = shoal.open(write_jsonl(tmp_path / "a.jsonl")).shuffle(seed=0).batch(4)
    state = ds.state_dict()
    with pytest.raises(StateError, match="changed"):
        ds.load_state_dict({**state, "position": 8})
    fields = {name: value for name, value in state.items() if name != "check"}
    ds.load_state_dict(sealed({**fields, "position": 8}))
    assert ds.state_dict()["position"] == 8


def test_a_pickled_dataset_holds_its_keys(tmp_path: Path) -> None:
    data = write_jsonl(tmp_path / "a.jsonl").read_bytes()
    with RangeServer({"a.jsonl": data}) as server:
        ds = shoal.open(f"{server.url}/a.jsonl", storage_options={"headers": {"X-Key": "zqNeededByWorkers"}})
        assert b"zqNeededByWorkers" in pickle.dumps(ds)
        assert "zqNeededByWorkers" not in json.dumps(ds.state_dict()) + repr(ds)
