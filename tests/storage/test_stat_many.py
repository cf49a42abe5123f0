"""Many objects are looked at side by side, in their order, and an error ends it."""

from __future__ import annotations

import threading

import pytest
from tests.stream.far import FarStore

from shoal.errors import StorageError
from shoal.storage.stat_many import find_all, stat_all
from shoal.storage.store_protocol import ObjectInfo


def objects(count: int) -> dict[str, bytes]:
    return {f"far://{number}": bytes(number) for number in range(count)}


def test_each_object_is_looked_at_once_and_in_order() -> None:
    store = FarStore(objects(1000))
    infos = stat_all(list(store.objects), store)
    assert [info.num_bytes for info in infos] == list(range(1000))
    assert sorted(store.stats) == sorted(store.objects)


def test_what_is_missing_is_none_or_an_error() -> None:
    store = FarStore(objects(5))
    found = find_all(["far://4", "far://x", "far://0"], store)
    assert [None if info is None else info.num_bytes for info in found] == [4, None, 0]
    with pytest.raises(KeyError):
        stat_all(["far://4", "far://x"], store)


class Failing(FarStore):
    """A store whose objects from 100 on cannot be looked at."""

    def find(self, path: str) -> ObjectInfo | None:
        if int(path.removeprefix("far://")) >= 100:
            self.stats.append(path)
            msg = f"could not look for {path}"
            raise StorageError(msg)
        return super().find(path)


def test_an_error_ends_the_search_and_the_first_one_is_raised() -> None:
    store = Failing({f"far://{number}": b"" for number in range(20_000)})
    with pytest.raises(StorageError, match="far://1"):
        find_all(list(store.objects), store)
    assert len(store.stats) < 1000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shoal-stat")]
