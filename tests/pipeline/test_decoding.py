"""Samples decoded in several threads: the order, errors at their place, bounds, and ends."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.stream.made import reading_threads

from shoal.errors import ShardError
from shoal.pipeline.decode_pool import Decoders, Threaded, choose_threads
from shoal.pipeline.quarantine import QUARANTINED
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.map_and_filter import Filter, Map
from shoal.pipeline.stages.stage import DROPPED
from shoal.pipeline.stages.with_ids import WithIds
from shoal.reading.checks.damaged_samples import Damaged
from shoal.storage.retry import StoppedError

FOUR = Threaded(num_stages=1, num_threads=4, limit_bytes=1 << 20)


def unevenly(sample: int) -> int:
    time.sleep(random.Random(sample).random() * 0.002)
    return 10 * sample


def decoded(decoders: Decoders, samples: Any, num: int = 100) -> list[Any]:
    return list(decoders.samples(iter(samples), range(num)))


def test_the_order_is_that_of_the_samples() -> None:
    decoders = Decoders([Map(unevenly)], FOUR, index=None, forgiving=False)
    for _ in range(2):
        assert decoded(decoders, range(100)) == [10 * sample for sample in range(100)]
    assert decoded(decoders, range(9), 10) == [10 * sample for sample in range(9)]
    assert decoded(decoders, []) == []
    assert len([name for name in reading_threads() if "decode" in name]) == 4
    decoders.close()
    assert reading_threads() == []


def test_only_the_first_stages_are_run() -> None:
    decoders = Decoders([Map(unevenly), Map(str)], FOUR, index=None, forgiving=False)
    assert decoded(decoders, range(3)) == [0, 10, 20]
    decoders.close()


@pytest.mark.parametrize("place", [0, 7, 8, 50])
def test_an_error_comes_after_all_that_came_before_it(place: int) -> None:
    def fail(sample: int) -> int:
        if sample == place:
            msg = "this one"
            raise KeyError(msg)
        return unevenly(sample)

    def cut_off() -> Iterator[int]:
        yield from range(place)
        msg = "the bytes are gone"
        raise ShardError(msg, shard="s", byte=1)

    expected = [10 * sample for sample in range(place)]
    for samples, stage, error in ((range(100), fail, KeyError), (cut_off(), unevenly, ShardError)):
        decoders = Decoders([Map(stage)], FOUR, index=None, forgiving=False)
        received = []
        with pytest.raises(error) as caught:
            for sample in decoders.samples(iter(samples), range(100)):
                received.append(sample)  # noqa: PERF402  # what came before the error counts
        assert received == expected
        if error is KeyError:
            assert f"the sample with id {place}" in caught.value.__notes__[0]
        decoders.close()


def test_what_is_left_out_stays_in_its_place() -> None:
    def is_even(sample: int) -> bool:
        return sample % 2 == 0

    decoders = Decoders([Filter(is_even)], FOUR, index=None, forgiving=True)
    damaged = Damaged(ValueError("x"))
    samples: list[Any] = [0, 1, QUARANTINED, 2, damaged, 3]
    assert decoded(decoders, samples) == [0, DROPPED, QUARANTINED, 2, damaged, DROPPED]
    decoders.close()


def test_what_is_ahead_is_bounded() -> None:
    pulled: list[int] = []

    def samples() -> Iterator[int]:
        for sample in range(400):
            pulled.append(sample)
            yield sample

    def large(sample: int) -> bytes:
        return bytes(1000)

    for limit_bytes, most_ahead in ((1, 8), (24_000, 24), (1 << 30, 128)):
        pulled.clear()
        decoders = Decoders([Map(large)], Threaded(1, 4, limit_bytes), index=None, forgiving=False)
        received = enumerate(decoders.samples(samples(), range(400)), 1)
        assert max(len(pulled) - number for number, _ in received) <= most_ahead
        decoders.close()


def test_closing_waits_for_one_sample_and_not_for_all() -> None:
    begun, go_on = threading.Event(), threading.Event()
    num_begun = itertools.count()

    def wait(sample: int) -> int:
        next(num_begun)
        begun.set()
        go_on.wait(30)
        return sample

    decoders = Decoders([Map(wait)], FOUR, index=None, forgiving=False)
    made = decoders.samples(iter(range(100)), range(100))
    failures: list[BaseException] = []

    def consume() -> None:
        try:
            next(made)
        except StoppedError as error:
            failures.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    begun.wait(30)
    decoders._stop.set()
    go_on.set()
    decoders.close()
    consumer.join()
    assert len(failures) == 1
    assert next(num_begun) == 1
    assert reading_threads() == []


def test_letting_go_ends_the_threads() -> None:
    decoders = Decoders([Map(unevenly)], FOUR, index=None, forgiving=False)
    made = decoders.samples(iter(range(100)), range(100))
    next(made)
    del decoders, made
    gc.collect()
    assert reading_threads() == []


def identity(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize(
    ("stages", "num_stages", "why"),
    [
        ([], 0, "one thread: no stage decodes images, audio or video, or tokenizes"),
        ([Decode([])], 0, "one thread: no stage decodes images, audio or video, or tokenizes"),
        ([Decode(["pil"])], 1, "turbo decodes without the interpreter's lock"),
        (
            [Decode(["pil"]), Map(identity), Decode(["rgb8"])],
            1,
            "; map(identity) in one thread: if that is slow, take num_w",
        ),
        (
            [WithIds(), Decode(["rgb8"]), WithIds()],
            2,
            "8 threads: 16 processors for this rank, and libjpeg-turbo decodes",
        ),
        ([Map(identity), Decode(["pil"])], 0, "one thread: a map() function decodes, or runs before decode()"),
        (
            [Decode(["pil", {"jpg": identity}])],
            0,
            "one thread: a map() function decodes, or runs before decode()",
        ),
    ],
)
def test_what_gains_from_threads(stages: list[Any], num_stages: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr("shoal.pipeline.decode_pool.usable_processors", lambda: 16)
    monkeypatch.setattr("shoal.pipeline.decode_pool.decodes_without_lock", lambda: True)
    found = choose_threads(stages, num_threads=None, limit_bytes=5)
    assert found.threaded == (Threaded(num_stages, 8, 5) if num_stages else None)
    assert why in found.words
    asked = choose_threads(stages, num_threads=3, limit_bytes=5)
    assert asked.threaded == (Threaded(len(stages), 3, 5) if stages else None)
    assert asked.words == f"{'3 threads' if stages else 'one thread'}: num_threads=3 was given"
    assert choose_threads(stages, num_threads=1, limit_bytes=5).threaded is None
    monkeypatch.setattr("shoal.pipeline.decode_pool.usable_processors", lambda: 1)
    assert choose_threads(stages, num_threads=None, limit_bytes=5).threaded is None


@pytest.mark.parametrize(
    ("processors", "local", "is_free", "num_threads", "why"),
    [
        (16, None, False, 4, "4 threads: 16 processors for this rank, and Pillow holds the interpreter's lock"),
        (16, "4", True, 4, "4 threads: 4 processors for this rank, and libjpeg-turbo"),
        (16, "many", True, 8, "8 threads: 16 processors for this rank"),
        (2, "1", True, 2, "2 threads: 2 processors for this rank"),
        (4, "4", True, None, "one thread: there is one processor for this rank"),
        (4, "8", True, None, "one thread: there is one processor for this rank"),
    ],
)
def test_how_many_threads(
    processors: int,
    local: str | None,
    is_free: bool,
    num_threads: int | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("PIL")
    monkeypatch.setattr("shoal.pipeline.decode_pool.usable_processors", lambda: processors)
    monkeypatch.setattr("shoal.pipeline.decode_pool.decodes_without_lock", lambda: is_free)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    found = choose_threads([Decode(["rgb8"])], num_threads=None, limit_bytes=5)
    assert found.threaded == (None if num_threads is None else Threaded(1, num_threads, 5))
    assert found.words.startswith(why)
