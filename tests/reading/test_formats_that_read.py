"""Formats that read by themselves: readers pass no bytes, and threads call `parse` ahead of the use of samples."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import ShardError, StorageError, UsageError
from shoal.formats import JsonLines, Span
from shoal.index.shard_scan import Buffer


class ByItself(JsonLines):
    """Lines that the format reads from the file; ``failures`` are raised first, one for each read of ``broken``."""

    needs_bytes = False

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self.failures: list[Exception] = []
        self.broken = ""
        self.threads: set[str] = set()

    def parse(self, buffer: Buffer, span: Span) -> Any:
        assert len(buffer) == 0
        assert span.sample_starts is not None
        self.threads.add(threading.current_thread().name)
        if span.shard == self.broken and self.failures:
            raise self.failures.pop()
        data = (self._directory / span.shard).read_bytes()
        return super().parse(data[span.first_byte : span.first_byte + span.sample_starts[-1]], span)

    def read_sample(self, read: object, end_byte: int, span: Span) -> dict[str, object]:
        return self.parse(b"", span._replace(sample_starts=[0, end_byte - span.first_byte])).sample(0)


@pytest.fixture
def form(tmp_path: Path) -> ByItself:
    for shard in range(4):
        lines = [json.dumps({"number": shard * 500 + row, "text": "x" * 200}) for row in range(500)]
        (tmp_path / f"{shard}.jsonl").write_text("\n".join(lines) + "\n")
    return ByItself(tmp_path)


def numbers(ds: shoal.Dataset) -> list[int]:
    return [sample["number"] for sample in ds]


ORDERS = [None, shoal.orders.Window(), shoal.orders.Full()]


@pytest.mark.parametrize("order", ORDERS, ids=["stored", "window", "full"])
def test_samples_are_those_of_the_bytes(order: Any, form: ByItself, tmp_path: Path) -> None:
    def opened(**how: Any) -> shoal.Dataset:
        ds = shoal.open(f"{tmp_path}/*.jsonl", **how)
        return ds if order is None else ds.shuffle(order, seed=3)

    by_itself = opened(format=form)
    assert numbers(by_itself) == numbers(opened())
    assert all(name.startswith("shoal-read") for name in form.threads)
    stats = by_itself.stats()
    assert stats["num_reads"] >= stats["num_requests"] > 0
    batches = [batch["number"].tolist() for batch in opened(format=form).batch(30)]
    assert batches == [batch["number"].tolist() for batch in opened().batch(30)]
    assert by_itself[77] == opened()[77]


def test_a_transient_failure_is_retried_and_counted(form: ByItself, tmp_path: Path) -> None:
    ds = shoal.open(f"{tmp_path}/*.jsonl", format=form)
    form.broken, form.failures = "1.jsonl", [StorageError("busy", transient=True)]
    assert numbers(ds) == list(range(2000))
    assert ds.stats()["num_retries"] == 1


@pytest.mark.parametrize("failure", [StorageError("gone"), ShardError("damaged", shard="1.jsonl")])
def test_a_failure_is_raised_at_its_sample(failure: Exception, form: ByItself, tmp_path: Path) -> None:
    ds = shoal.open(f"{tmp_path}/*.jsonl", format=form)
    form.broken, form.failures = "1.jsonl", [failure] * 9
    delivered: list[int] = []
    with pytest.raises(type(failure), match=str(failure).splitlines()[0]):
        delivered.extend(sample["number"] for sample in ds)
    assert delivered == list(range(500))


def test_damage_is_skipped_on_request(form: ByItself, tmp_path: Path) -> None:
    ds = shoal.open(f"{tmp_path}/*.jsonl", format=form).reading(on_error="skip")
    form.broken, form.failures = "1.jsonl", [ShardError("damaged", shard="1.jsonl")] * 99
    kept = numbers(ds)
    assert ds.stats()["num_skipped"] == 2000 - len(kept) > 0
    assert set(range(2000)) - set(kept) <= set(range(500, 1000))


def test_columns_of_the_index_are_read(form: ByItself, tmp_path: Path) -> None:
    ds = shoal.open(f"{tmp_path}/*.jsonl", format=form, index_columns=["number"])
    assert ds.select(number=[3, 700]).num_samples == 2


def test_it_mixes_with_files(form: ByItself, tmp_path: Path) -> None:
    def mixed(other: shoal.Dataset) -> list[int]:
        sources = {"files": shoal.open(f"{tmp_path}/0.jsonl"), "other": other}
        return numbers(shoal.mix(sources, weights={"files": 1, "other": 1}).shuffle(seed=0))

    assert mixed(shoal.open(f"{tmp_path}/1.jsonl", format=form)) == mixed(shoal.open(f"{tmp_path}/1.jsonl"))


def test_a_cache_of_bytes_is_refused(form: ByItself, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cache="):
        shoal.open(f"{tmp_path}/*.jsonl", format=form, cache=True)


@pytest.mark.parametrize("order", ORDERS[:2], ids=["stored", "window"])
@pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
def test_windows_of_its_rows_read_no_bytes(order: Any, form: ByItself, tmp_path: Path) -> None:
    def windows(**how: Any) -> shoal.Dataset:
        ds = shoal.open(f"{tmp_path}/*.jsonl", **how).windows(7, stride=3, by=None).columns("number")
        return ds if order is None else ds.shuffle(order, seed=3)

    by_itself = windows(format=form)
    assert [sample["number"].tolist() for sample in by_itself] == [sample["number"].tolist() for sample in windows()]
    assert by_itself.stats()["num_requests"] > 0
    form.threads.clear()
    batches = [batch["number"].tolist() for batch in windows(format=form).batch(30)]
    assert batches == [batch["number"].tolist() for batch in windows().batch(30)]
    assert all(name.startswith("shoal-read") for name in form.threads)
    with pytest.raises(UsageError, match="cache="):
        shoal.open(f"{tmp_path}/*.jsonl", format=form, cache=True).windows(2, by=None)


def test_windows_beside_its_damaged_rows_are_delivered(form: ByItself, tmp_path: Path) -> None:
    class Damaged(ByItself):
        def parse(self, buffer: Buffer, span: Span) -> Any:
            first = len((self._directory / "1.jsonl").read_bytes()) // 2
            last = span.first_byte + (span.sample_starts or [0])[-1]
            if span.shard == "1.jsonl" and span.first_byte <= first < last:
                raise ShardError("damaged", shard=span.shard)
            return super().parse(buffer, span)

    ds = shoal.open(f"{tmp_path}/*.jsonl", format=Damaged(tmp_path)).windows(3, by=None).reading(on_error="skip")
    kept = [int(sample["number"][0]) for sample in ds]
    assert ds.stats()["num_skipped"] == 3
    assert len(kept) == ds.num_samples - 3
