"""Batches through shared memory: equal to what was sent, whatever the receiver keeps, and in memory that is reused."""

from __future__ import annotations

import gc
import mmap
import os
import random
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.stream.workers import shared_batches
from shoal.stream.workers.shared_batches import BatchReceiver, BatchSender


@pytest.fixture
def ends() -> Iterator[tuple[BatchSender, BatchReceiver]]:
    here, there = Pipe()
    sender, receiver = BatchSender(there), BatchReceiver(here, most_lent=3)
    yield sender, receiver
    sender.close()
    receiver.close()


def passed(ends: tuple[BatchSender, BatchReceiver], thing: Any) -> Any:
    sender, receiver = ends
    sender.send(*sender.packed(thing))
    received = receiver.receive()
    sender.free(receiver.returned())
    return received


def batch_of(chance: random.Random, number: int) -> dict[str, Any]:
    length = chance.choice([0, 1, 7, 5_000, 40_000])
    numbers = np.full(length, number, dtype=chance.choice(["u1", "<f4", "<i8"]))
    if chance.random() < 0.3:
        numbers.flags.writeable = False
    texts = [str(number) * chance.randint(0, 3000) for _ in range(chance.choice([0, 1, 40]))]
    return {"numbers": numbers, "texts": texts, "matrix": np.full((3, 4), number)[:, ::2], "number": number}


def check(batch: dict[str, Any], sent: dict[str, Any]) -> None:
    for name, value in sent.items():
        if isinstance(value, np.ndarray):
            assert batch[name].dtype == value.dtype
            assert batch[name].flags.writeable == value.flags.writeable
            np.testing.assert_array_equal(batch[name], value)
        else:
            assert batch[name] == value


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=30, deadline=None)
def test_kept_batches_stay_what_they_were(seed: int) -> None:
    here, there = Pipe()
    ends = BatchSender(there), BatchReceiver(here, most_lent=3)
    chance = random.Random(seed)
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for number in range(40):
        sent = batch_of(chance, number)
        kept.append((passed(ends, sent), sent))
        if chance.random() < 0.7:
            kept.pop(chance.randrange(len(kept)))
        for batch, before in kept:
            check(batch, before)
    ends[0].close()
    ends[1].close()


def test_a_loop_that_keeps_no_batch_reuses_one_segment(
    ends: tuple[BatchSender, BatchReceiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    new_file = shared_batches.new_file

    def counted(num_bytes: int) -> int:
        sizes.append(num_bytes)
        return new_file(num_bytes)

    monkeypatch.setattr(shared_batches, "new_file", counted)
    for number in range(20):
        batch = passed(ends, np.full(100_000 + number, number))
        assert (batch == number).all()
        del batch
    assert len(sizes) == 2  # the first batch is received before its segment is free


def test_kept_batches_hold_few_segments(ends: tuple[BatchSender, BatchReceiver]) -> None:
    batches = [passed(ends, np.full(50_000, number)) for number in range(30)]
    assert len(ends[1]._segments) <= 4  # later batches are copies: a file for each would exceed `ulimit -n`
    assert [int(batch[0]) for batch in batches] == list(range(30))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_batch_that_a_forked_child_may_read_is_never_overwritten(ends: tuple[BatchSender, BatchReceiver]) -> None:
    batch = passed(ends, np.full(50_000, 1))
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.read(told, 1)
        os._exit(0 if (batch == 1).all() else 1)
    del batch
    gc.collect()
    for _ in range(3):
        passed(ends, np.full(50_000, 2))
    os.write(tell, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(told)
    os.close(tell)


def test_a_small_batch_takes_no_segment(ends: tuple[BatchSender, BatchReceiver]) -> None:
    assert passed(ends, {"x": np.arange(10)})["x"].tolist() == list(range(10))
    assert not ends[1]._segments
    assert mmap.PAGESIZE <= shared_batches._LEAST_BYTES
