from __future__ import annotations

import gzip
import os
import re
import warnings
from pathlib import Path

import pytest

import shoal
from shoal.errors import ShuffleWarning
from shoal.orders import Block, Full, Window
from shoal.stream.dataset import Dataset
from shoal.stream.quality.shuffle_quality import rereads, warning_about


def said(ds: Dataset, global_batch: int) -> str:
    return warning_about(ds.resolved, global_batch)


def test_only_windows_are_judged(tars: Dataset) -> None:
    for ds in (tars, tars.shuffle(Full()), tars.shuffle(Block(chunks=2))):
        assert said(ds, 10**6) == ""


def test_a_window_of_everything_is_never_too_small(tars: Dataset) -> None:
    assert said(tars.shuffle(), 10**6) == ""


def test_a_small_window_is_said_to_be_and_the_one_named_would_do(tars: Dataset) -> None:
    small = tars.shuffle(Window(chunks=4, num_canonical_nodes=1), chunk="6KiB")
    assert said(small, 1) == ""
    message = said(small, 32)
    assert "a window of 4 chunks is small for global batches of 32 samples" in message
    named = re.search(r'window="([^"]+)"', message)
    assert named
    assert said(tars.shuffle(window=named[1], chunk="6KiB", num_canonical_nodes=1), 32) == ""


def test_narrow_nodes_are_said_to_be(tars: Dataset) -> None:
    narrow = tars.shuffle(Window(chunks=12, num_canonical_nodes=4), chunk="6KiB")
    assert "each of 4 canonical nodes mixes only 3 chunks" in said(narrow, 2)


def test_the_global_batch_counts_and_not_the_rank_s(tars: Dataset) -> None:
    ds = tars.shuffle(Window(chunks=8, num_canonical_nodes=1), chunk="6KiB").batch(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iter(ds).close()
    with pytest.warns(ShuffleWarning, match="global batches of 16"):
        iter(ds.partition(rank=0, world_size=8)).close()


def test_an_order_that_reads_pieces_again_and_again_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    lines = b"".join(b'{"x": "%s"}\n' % os.urandom(1000).hex().encode() for _ in range(100))
    for number in range(3):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines))
    ds = shoal.open(tmp_path / "*.jsonl.gz")
    factor, more_bytes = rereads(ds.shuffle(Full()).resolved)
    total = sum(path.stat().st_size for path in tmp_path.glob("*.gz"))
    assert (factor, more_bytes) == (100.0, 99 * total)
    with pytest.warns(ShuffleWarning, match=r"'full' reads .* jsonl\.gz .* has 100 samples: .* 100 times its bytes"):
        iter(ds.shuffle("full")).close()
    # Orders that read each piece once, and shards without pieces, give no warning.
    assert said(ds.shuffle(), 10) == said(ds, 10) == ""
    assert rereads(ds.shuffle().resolved) == (1.0, 0)
    (tmp_path / "plain.jsonl").write_bytes(lines)
    assert said(shoal.open(tmp_path / "plain.jsonl").shuffle("full"), 10) == ""
