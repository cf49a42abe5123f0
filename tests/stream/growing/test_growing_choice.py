"""What `shoal.open` chooses where no index= decides, and what it says of that."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stream.growing.growing_data import COUNTS, WINDOW, growing

import shoal
from shoal.indexing import indexing_estimate
from shoal.stream.states import growing_states


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="shoal")


@pytest.fixture
def _takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing_estimate, "LONG_SECONDS", 0.0)


@pytest.mark.usefixtures("_takes_long")
def test_one_process_begins_early_where_indexing_takes_long(shards: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = shoal.open(shards).shuffle(seed=5, window=WINDOW).batch(4)
    assert "order growing" in repr(dataset)
    assert "shuffle() begins with the first shards, in a growing order" in caplog.text
    assert 'index="wait" waits for all' in caplog.text
    first = next(iter(dataset))["key"]
    assert f"the first batch comes when 5 of {len(COUNTS)} shards are indexed" in caplog.text
    keys = [batch["key"] for batch in dataset]
    assert keys[0] == first
    assert keys == [batch["key"] for batch in growing(shards).batch(4)]


@pytest.mark.usefixtures("_takes_long")
def test_ranks_of_a_job_wait_and_say_what_does_not(
    shards: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert "order window" in repr(shoal.open(shards).shuffle(seed=5, window=WINDOW))
    assert 'all ranks wait for the index; index="grow" begins with the first shards' in caplog.text


def test_a_short_wait_is_not_spoken_of(shards: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "order window" in repr(shoal.open(shards).shuffle(seed=5, window=WINDOW))
    assert "begins with the first shards" not in caplog.text


@pytest.mark.parametrize(("index", "is_told"), [(None, True), ("wait", False)])
def test_a_wait_that_was_longer_than_expected_names_what_is_sooner(
    shards: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, index: str | None, *, is_told: bool
) -> None:
    monkeypatch.setattr(growing_states, "LONG_SECONDS", 0.0)
    shoal.open(shards, index=index)
    assert ('s for the index; index="grow" begins with the first shards' in caplog.text) == is_told
    caplog.clear()
    shoal.open(shards)  # the index is there
    assert "begins with" not in caplog.text
