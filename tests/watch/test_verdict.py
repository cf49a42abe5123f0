"""Is the job waiting, and why: the word, the sentence and the remedy for runs of every kind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import shoal
from shoal.watch.run_meter import Measured, Pace, counts_of, pace_between
from shoal.watch.verdict import Circumstances, verdict_of
from shoal.watch.watched_object import watched

REMOTE = Circumstances(is_remote=True)


def pace(inside: float, wait: float = 0.0, *, make: float | None = None, seconds: float = 10.0, **counts: Any) -> Pace:
    """The pace of a run whose consumer was so many of ten seconds inside ``next()``."""
    every = {"num_samples": 640, "num_batches": 10, "num_requests": 20, "requested_bytes": 20 << 22, **counts}
    call = {name: every.pop(name) for name in ("call_seconds", "away_seconds", "is_waiting") if name in every}
    end = Measured(seconds, counts_of(every), inside, inside if make is None else make, wait, **call)
    return pace_between(Measured(0.0, counts_of({})), end)


@pytest.mark.parametrize(
    ("run", "facts", "grade", "word", "sentence", "remedy"),
    [
        (
            pace(0.1),
            REMOTE,
            "good",
            "NOT WAITING",
            "Training waits for data 1.0% of its time: training sets the pace.",
            "",
        ),
        (
            pace(6.3, 6.1),
            REMOTE,
            "bad",
            "WAITING FOR STORAGE",
            "63% of its time: 61% for the storage, 2.0% for functions, decoding",
            "window=",
        ),
        (
            pace(6.3, 6.1),
            Circumstances(),
            "bad",
            "WAITING FOR STORAGE",
            "61% for local reads",
            "The disk is slow",
        ),
        (
            pace(6.0, 0.6),
            REMOTE,
            "bad",
            "WAITING FOR STAGES",
            "60% of its time: 54% for functions, decoding and building batches, 6.0% for",
            "shoal.torch.DataLoader",
        ),
        (
            pace(1.5, 0.3),
            REMOTE,
            "fair",
            "SOMETIMES WAITING FOR STAGES",
            "15% of its time: 12% for functions",
            "DataLoader",
        ),
        (
            pace(6.0, 6.0, num_throttled=3),
            REMOTE,
            "bad",
            "WAITING FOR STORAGE",
            "for the storage",
            "throttled 3 requests",
        ),
        (pace(6.0, 6.0, num_retries=5), REMOTE, "bad", "WAITING FOR STORAGE", "for the storage", r"fail (5 retries in"),
        (pace(6.0, 6.0, num_rereads=5), REMOTE, "bad", "WAITING FOR STORAGE", "for the storage", "memory_limit="),
        (
            pace(6.0, 6.0, index_wait_seconds=5.0),
            REMOTE,
            "bad",
            "WAITING FOR STORAGE",
            "for the storage",
            "shoal index",
        ),
        (
            pace(6.0, 6.0, requested_bytes=20 << 16),
            REMOTE,
            "bad",
            "WAITING FOR STORAGE",
            "storage",
            "A request has 64.0 KiB",
        ),
        (
            pace(6.0, 6.0),
            Circumstances(is_live=True),
            "bad",
            "WAITING FOR ITS SOURCE",
            "new samples of its source",
            "producers",
        ),
    ],
)
def test_the_answer_fits_the_run(
    run: Pace, facts: Circumstances, grade: str, word: str, sentence: str, remedy: str
) -> None:
    found = verdict_of(run, facts)
    assert (found.grade, found.word) == (grade, word)
    assert sentence in found.sentence
    assert remedy in found.remedy
    assert bool(remedy) == bool(found.remedy)


def test_a_stall_is_seen_while_it_lasts() -> None:
    stalled = pace(7.0, 7.0, call_seconds=40.0, is_waiting=True, seconds=60.0)
    assert verdict_of(stalled, REMOTE)[:2] == ("bad", "STALLED")
    assert "no batch has come for 40.0 s, because bytes are missing" in verdict_of(stalled, REMOTE).sentence
    # Batches that take four seconds each are slow, and not stalled.
    assert verdict_of(pace(40.0, 40.0, call_seconds=5.5, seconds=40.0), REMOTE).word == "WAITING FOR STORAGE"


def test_a_loop_that_requests_nothing_is_no_wait_for_data() -> None:
    found = verdict_of(pace(0.1, away_seconds=45.0, seconds=50.0, num_batches=40), REMOTE)
    assert found[:2] == ("unknown", "NO REQUEST")
    assert "has not requested a batch for 45.0 s" in found.sentence


def test_the_first_batch_and_the_end() -> None:
    nothing = {"num_samples": 0, "num_batches": 0, "num_requests": 0, "requested_bytes": 0}
    assert verdict_of(pace(0.0, **nothing), REMOTE).word == "STARTING"
    early = pace(3.0, 3.0, call_seconds=3.0, is_waiting=True, seconds=3.0, **nothing)
    assert verdict_of(early, REMOTE)[:2] == ("unknown", "FIRST BATCH")
    late = pace(30.0, 30.0, call_seconds=30.0, is_waiting=True, seconds=30.0, **nothing)
    assert verdict_of(late, REMOTE)[:2] == ("bad", "FIRST BATCH")
    assert verdict_of(pace(5.0), REMOTE._replace(is_over=True, epoch=3)).sentence.startswith("Epoch 3 is over")


def test_a_live_source_without_new_samples_is_named() -> None:
    live = Circumstances(is_live=True)
    assert verdict_of(pace(0.1, 0.1, call_seconds=9.0, seconds=20.0), live).word == "NO NEW SAMPLES"
    assert verdict_of(pace(0.1, 0.1, call_seconds=1.0), live).word == "NOT WAITING"


def test_a_slow_source_and_slow_stages_of_a_live_stream_are_told_apart() -> None:
    def slowly() -> Iterator[int]:
        for number in range(40):
            time.sleep(0.01)
            yield number

    def work(number: int) -> int:
        time.sleep(0.01)
        return number

    found = {}
    for name, live in {
        "source": shoal.from_iterable(slowly, replay=True),
        "stages": shoal.from_iterable(range(40)).map(work),
    }.items():
        run = watched(live)
        before = run.measure()
        assert len(list(live)) == 40
        found[name] = verdict_of(pace_between(before, run.measure()), Circumstances(is_live=True))
    assert found["source"].word == "WAITING FOR ITS SOURCE"
    assert found["stages"].word == "WAITING FOR STAGES"
