"""A store with faults tells of them as a store of ours does."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from shoal.errors import StorageError
from shoal.storage.files.local_store import LocalStore
from shoal.storage.store_protocol import Store
from shoal.testing import FAULT_KINDS, Fault, FaultKind, FaultyStore

DATA = bytes(range(256))


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "a").write_bytes(DATA)
    return str(tmp_path / "a")


def test_without_faults_it_is_the_other_store(path: str, tmp_path: Path) -> None:
    plain: Store = LocalStore()
    store: Store = FaultyStore(LocalStore())
    assert store.read_range(path, 3, 9) == DATA[3:9]
    assert store.reads_ahead == plain.reads_ahead
    assert (store.stat(path), store.find(path)) == (plain.stat(path), plain.find(path))
    assert store.find(f"{path}-none") is None
    assert list(store.list(str(tmp_path))) == list(plain.list(str(tmp_path)))
    reader = store.reader(path)
    assert reader(0, 4) == DATA[:4]
    reader.confirm()
    store.put(f"{path}b", b"new")
    assert bytes(store.map(f"{path}b")) == b"new"
    store.close()


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_each_fault_once(path: str, kind: FaultKind) -> None:
    slept: list[float] = []
    store = FaultyStore(LocalStore(), [Fault(kind, requests=[0], seconds=7)], sleep=slept.append)
    if kind in {"slow", "stall"}:
        assert store.read_range(path, 0, 100) == DATA[:100]
        assert slept == [7]
    elif kind == "corrupt":
        wrong = store.read_range(path, 0, 100)
        assert sum((a ^ b).bit_count() for a, b in zip(wrong, DATA[:100], strict=True)) == 1
    else:
        with pytest.raises(StorageError) as raised:
            store.read_range(path, 0, 100)
        assert raised.value.transient == (kind != "changed")
    assert store.reader(path)(0, 100) == DATA[:100]
    assert store.reads == [(path, 0, 100)] * 2
    assert store.num_faults() == {kind: 1}


def test_a_refusal_is_final_where_asking_again_is_no_use(path: str) -> None:
    store = FaultyStore(LocalStore(), [Fault("status", requests=[0], status=403)])
    with pytest.raises(StorageError, match="403") as raised:
        store.stat(path)
    assert not raised.value.transient


def test_another_version_shows_where_objects_are_described(path: str, tmp_path: Path) -> None:
    before = LocalStore().stat(path)
    store = FaultyStore(LocalStore(), [Fault("changed", requests=range(9))])
    found = store.find(path)
    assert found is not None
    for info in (store.stat(path), found, *store.list(str(tmp_path))):
        assert (info.num_bytes, info.version != before.version) == (before.num_bytes, True)


def test_a_copy_for_a_worker_has_the_same_faults(path: str) -> None:
    store = FaultyStore(LocalStore(), [Fault("reset", probability=0.5)], seed=3)
    copy = pickle.loads(pickle.dumps(store))

    def failing(one: FaultyStore) -> list[int]:
        failed = []
        for first in range(50):
            try:
                one.read_range(path, first, first + 1)
            except StorageError:
                failed.append(first)
        return failed

    assert failing(store) == failing(copy) != []


def test_draws_do_not_depend_on_the_directory(tmp_path: Path) -> None:
    seen = []
    for directory in ("x", "y"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "a").write_bytes(DATA)
        store = FaultyStore(LocalStore(), [Fault("corrupt", probability=0.4)])
        seen.append([store.read_range(str(tmp_path / directory / "a"), 0, 100) for _ in range(20)])
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 3


def test_another_version_is_the_same_evidence_until_a_right_answer_comes_between(path: str) -> None:
    """So that a few servers of many that lag, or unlucky numbers of requests, are no end of a stream."""
    store = FaultyStore(LocalStore(), [Fault("changed", requests=[0, 1, 3])])
    evidence, worth = [], set()
    for _ in range(4):
        try:
            store.read_range(path, 0, 1)
        except StorageError as error:
            worth.add(error.worth_attempts)
            evidence.append(error.evidence)
    assert evidence[0] == evidence[1] != evidence[2]
    assert worth == {4}
