"""The line of `reading(progress=True)`, whoever makes the batches: written once, by whoever receives them."""

from __future__ import annotations

import io
import itertools
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch.utils.data as torch_data
from tests.integrations import stages

from shoal.stats import live_line
from shoal.stream.dataset import Dataset
from shoal.stream.iterating import batch_maker, progress_line
from shoal.torch import DataLoader, IterableDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def logged(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A log that gets a line with every batch."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(progress_line, "_LOG_EVERY_SECONDS", 1e-9)
    return written


def shares(log: io.StringIO) -> list[str]:
    lines = log.getvalue().splitlines()
    assert all(re.match(r"shoal: epoch \d +\d+%  [\d,.]+ samples/s", line) for line in lines)
    return [line.split()[3] for line in lines]


@pytest.mark.parametrize("options", [{}, {"prefetch_factor": 0}, {"num_workers": 2, "persistent_workers": True}])
def test_the_loader_writes_a_line_of_what_was_received(
    options: dict[str, Any], tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logged(monkeypatch)
    ds = tars.map(stages.plain).batch(50).reading(progress=True)
    loader = DataLoader(ds, **options)
    for epoch in range(2):
        log.truncate(log.seek(0))
        for number, _ in enumerate(loader, 1):
            assert shares(log) == ["25%", "50%", "75%", "100%"][:number]
        assert f"shoal: epoch {epoch}  " in log.getvalue()
    log.truncate(log.seek(0))
    list(DataLoader(ds.partition(rank=1, world_size=2), prefetch_factor=0))
    assert log.getvalue() == ""
    loader.close()


@pytest.mark.parametrize("how", ["to its end", "by length", "closed", "failed"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_log_of_a_short_run_says_how_it_went(
    how: str, num_workers: int, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(live_line, "_SHOW_AFTER_SECONDS", 0.0)
    ds = tars.map(stages.fail_at_100 if how == "failed" else stages.plain).batch(50).reading(progress=True)
    received = iter(DataLoader(ds, num_workers=num_workers))
    if how == "failed":
        with pytest.raises(KeyError):
            list(received)
    else:
        list(itertools.islice(received, 4 if how != "closed" else 2))
        list(received) if how == "to its end" else received.close()
    assert shares(log) == [{"closed": "50%", "failed": "50%"}.get(how, "100%")]


def test_in_loaders_of_others(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logged(monkeypatch)
    source = IterableDataset(tars.batch(50).reading(progress=True))
    assert len(list(torch_data.DataLoader(source, batch_size=None))) == 4
    assert shares(log) == ["25%", "50%", "75%", "100%"]
    for worker, lines in [(0, 2), (1, 0)]:
        log.truncate(log.seek(0))
        info = SimpleNamespace(id=worker, num_workers=2)
        monkeypatch.setattr(torch_data, "get_worker_info", lambda info=info: info)
        monkeypatch.setattr(batch_maker, "end_with_trainer", lambda: None)  # this process is none of a trainer
        assert len(list(source)) == 2
        assert len(shares(log)) == lines
        assert log.getvalue().count("(worker 0 of 2)") == lines
