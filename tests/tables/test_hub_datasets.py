"""Datasets of the Hub by name and revision, from a hub of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.hub_server import HubServer

import shoal
from shoal.errors import SourceError, UsageError
from shoal.tables.hub.hub_datasets import hub_name


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def lines(*numbers: int) -> bytes:
    return "".join(f"{json.dumps({'n': number})}\n" for number in numbers).encode()


def card(text: str) -> bytes:
    return f"---\n{text}\n---\n# A dataset\n".encode()


def numbers(hub: HubServer, source: str, **how: Any) -> list[int]:
    return [sample["n"] for sample in shoal.open(source, storage_options={"endpoint": hub.url}, **how)]


def test_a_revision_is_resolved_once(hub: HubServer) -> None:
    first = hub.commit("me/moves", {"train.jsonl": lines(1, 2)}, "v1")
    at_first = shoal.open("hf://datasets/me/moves", storage_options={"endpoint": hub.url})
    second = hub.commit("me/moves", {"train.jsonl": lines(3, 4, 5)})
    assert [sample["n"] for sample in at_first] == [1, 2]
    assert numbers(hub, "hf://datasets/me/moves") == numbers(hub, f"hf://datasets/me/moves@{second}") == [3, 4, 5]
    assert numbers(hub, "hf://datasets/me/moves@v1") == numbers(hub, "hf://datasets/me/moves", version="v1") == [1, 2]
    opened = at_first.stream.spec.opened.one("a test")
    assert opened.index.metadata["snapshot"] == {"revision": first, "config": "default"}
    assert opened.paths == (f"hf://datasets/me/moves@{first}/train.jsonl",)
    newest = shoal.open("hf://datasets/me/moves", storage_options={"endpoint": hub.url}).shuffle(seed=0)
    newest.load_state_dict(at_first.shuffle(seed=0).state_dict())
    assert sorted(sample["n"] for sample in newest) == [1, 2]  # a state goes on with the commit that it names


def test_configurations_and_splits_are_those_of_the_readme(hub: HubServer) -> None:
    text = """configs:
- config_name: en
  data_files:
  - split: train
    path: en/a-*.jsonl
  - split: heldout
    path: [en/b.jsonl, en/c.jsonl]
- config_name: de
  data_dir: de"""
    files = {"README.md": card(text), "en/a-1.jsonl": lines(1), "en/a-2.jsonl": lines(2), "en/b.jsonl": lines(3)}
    hub.commit("me/tongues", {**files, "en/c.jsonl": lines(4), "de/dev.jsonl": lines(5), "de/train.jsonl": lines(6)})
    name = "hf://datasets/me/tongues"
    with pytest.raises(SourceError, match="configurations are en, de"):
        numbers(hub, name)
    with pytest.raises(SourceError, match="splits train, heldout"):
        numbers(hub, f"{name}#en")
    assert numbers(hub, f"{name}#en", split="train") == [1, 2]
    assert numbers(hub, f"{name}@main#en", split=["heldout"]) == [3, 4]
    assert numbers(hub, f"{name}#en", split="all") == [1, 2, 3, 4]
    assert numbers(hub, f"{name}#de", split="validation") == [5]
    with pytest.raises(SourceError, match="no configuration 'fr'"):
        numbers(hub, f"{name}#fr")
    with pytest.raises(SourceError, match="did you mean 'heldout'"):
        numbers(hub, f"{name}#en", split="heldou")


def test_paths_of_a_repository_are_files(hub: HubServer) -> None:
    hub.commit("me/files", {"data/train.jsonl": lines(1), "data/test.jsonl": lines(2)})
    assert numbers(hub, "hf://datasets/me/files/data/t*.jsonl", split="all") == [2, 1]
    assert numbers(hub, "hf://datasets/me/files/", split="test") == [2]


def test_what_is_not_there_is_named(hub: HubServer) -> None:
    hub.commit("me/some", {"train.jsonl": lines(1), "x.bin": b""}, "v1")
    for name, message in {
        "hf://datasets/me/none": "no dataset 'me/none'",
        "hf://datasets/me/some@v2": r"no revision 'v2'(.|\n)*are main, v1",
        "hf://datasets/me/some#odd": "no configuration 'odd'",
    }.items():
        with pytest.raises(SourceError, match=message):
            numbers(hub, name)
    with pytest.raises(SourceError, match="timestamp="):
        numbers(hub, "hf://datasets/me/some", timestamp="2026-01-01")
    with pytest.raises(UsageError, match="second revision"):
        numbers(hub, "hf://datasets/me/some@v1", version="main")
    hub.commit("me/odd", {"a.xml": b"<a/>"})
    with pytest.raises(SourceError, match="does not read in place"):
        numbers(hub, "hf://datasets/me/odd")
    hub.commit("me/mixed", {"train.csv": b"a\n1\n", "test.jsonl": lines(1)})
    with pytest.raises(SourceError, match="csv in train, json in test"):
        numbers(hub, "hf://datasets/me/mixed")


def test_names_with_revisions_of_the_hub_itself() -> None:
    named = hub_name("hf://datasets/a/b@refs/convert/parquet#en")
    assert named is not None
    assert named == ("a/b", "refs/convert/parquet", "en")
    assert hub_name("hf://datasets/a/b@refs%2Fpr%2F3") == ("a/b", "refs/pr/3", None)
    assert hub_name("hf://datasets/a/b@main/data.csv") is None
    assert hub_name("hf://datasets/a") is None
