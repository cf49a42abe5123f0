"""The conformance suite finds what is wrong with a format: each mistake here is one that a new format may make."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.formats.compressed.reader import Compressed
from shoal.formats.field_columns import Columns, Kind
from shoal.formats.rows.lines.reader import Text
from shoal.formats.rows.records import CutRecords
from shoal.formats.shard_format import Format, ReadBytes, Records, Sample, Span
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.testing import DAMAGE_KINDS, check_format, damaged

SHARDS: Mapping[str, tuple[bytes, list[Sample]]] = {
    "some.txt": (b"one\ntwo\nthree\n\nfour\n", [{"text": word} for word in ("one", "two", "three", "four")]),
    "none.txt": (b"", []),
}


class Broken(Format):
    """Lines of text, with one mistake."""

    name: str = "broken"
    suffixes: tuple[str, ...] = (".txt",)

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        found = Text().scan(read, num_bytes, shard=shard)
        starts, crcs, head = found.sample_starts, found.layout_crcs, dict[Any, Any]()
        if self.mistake == "a sample is lost" and len(crcs):
            starts, crcs = starts[:-1], crcs[:-1]
        elif self.mistake == "crcs of another type":
            crcs = crcs.astype(np.int64)
        elif self.mistake == "a head that is no JSON":
            head = {"columns": {"a", "b"}}
        elif self.mistake == "a head that JSON changes":
            head = {1: "one"}
        elif self.mistake == "reads beyond the end":
            read(0, num_bytes + 1)
        elif self.mistake == "takes much memory":
            bytearray(100 << 20)
        elif self.mistake == "not all damage is an error of ours" and num_bytes and bytes(read(0, 1)) == b"\xff":
            raise ValueError
        elif self.mistake == "scans differ later":
            self.mistake, head = "", {"first": True}
        return ShardScan(starts, crcs, head)

    def read_sample(self, read: ReadBytes, end_byte: int, span: Span) -> Sample:
        if self.mistake == "a sample read alone is another":
            return {"text": "another"}
        return Text().read_sample(read, end_byte, span)

    def parse(self, buffer: Buffer, span: Span) -> Records:
        shard, first_byte, num_samples, sample_starts, head = span
        if self.mistake == "needs starts" and sample_starts is None:
            raise TypeError
        if self.mistake == "needs bytes" and not isinstance(buffer, bytes):
            raise TypeError
        if self.mistake == "takes any count" and sample_starts is None:
            found = Text().scan(lambda first, end: buffer[first:end], len(buffer), shard=shard)
            sample_starts, num_samples = [0, *found.sample_starts[1:].tolist()], found.num_samples
        place = first_byte if self.mistake != "bytes of errors count from elsewhere" else 10_000
        records = Text().parse(buffer, Span(shard, place, num_samples, sample_starts, head))
        return BrokenRecords(records, buffer, sample_starts, self.mistake, first_byte)


class BrokenRecords:
    def __init__(
        self, records: CutRecords, buffer: Buffer, starts: Sequence[int] | None, mistake: str, first_byte: int
    ) -> None:
        self.records, self.buffer, self.starts = records, buffer, starts
        self.mistake, self.first_byte = mistake, first_byte
        self.next = 0

    def __len__(self) -> int:
        return len(self.records)

    def layout_crcs(self) -> Any:
        return self.records.layout_crcs() + np.uint32(self.mistake == "other crcs")

    def sample(self, number: int) -> Sample:
        sample = self.records.sample(number)
        if self.mistake == "the first of a later span is another" and self.first_byte and not number:
            return {"text": "another"}
        if self.mistake == "samples only in order":
            number, self.next = self.next, self.next + 1
            return self.records.sample(min(number, len(self) - 1))
        return sample

    def columns(self) -> Any:
        if self.mistake == "columns are others":
            return Columns((("text", Kind("array")),), (np.array(["x"] * len(self)),))
        return None


MISTAKES = {
    "a sample is lost": "finds 3 samples instead of 4",
    "crcs of another type": "layout_crcs are uint32",
    "a head that is no JSON": "is not JSON",
    "a head that JSON changes": "after JSON",
    "reads beyond the end": r"bytes \[0, 21\) are requested, but the shard has 20",
    "takes much memory": "are allowed",
    "not all damage is an error of ours": "raises ValueError instead of ShardError",
    "scans differ later": "head of two scans differ",
    "a sample read alone is another": "read alone, sample",
    "takes any count": "samples instead of 4",
    "bytes of errors count from elsewhere": "the error names byte 100",
    "the first of a later span is another": "should be",
    "samples only in order": "sample 1 is",
    "other crcs": "layout CRCs",
    "columns are others": "row 0 of its columns",
}


def test_a_format_without_a_mistake_passes() -> None:
    report = check_format(Broken(""), SHARDS, num_damaged=60)
    assert (report.num_shards, report.num_samples, report.num_spans) == (2, 4, 10)
    assert report.damage.num_tried == 60
    assert 0 < report.damage.num_refused < 60


class Plain:
    """A format that does not inherit from `Format`, with the least that it needs."""

    name = "plain"
    suffixes = (".txt",)

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        return Text().scan(read, num_bytes, shard=shard)

    def parse(self, buffer: Buffer, span: Span) -> Records:
        return Text().parse(buffer, span)


def test_a_plain_class_is_a_format(tmp_path: Path) -> None:
    data, samples = SHARDS["some.txt"]
    (tmp_path / "some.txt").write_bytes(data)
    (tmp_path / "some.txt.gz").write_bytes(gzip.compress(data))
    plain: Any = Plain()
    assert check_format(plain, SHARDS, num_damaged=60).num_samples == 4
    for path, reader in (("some.txt", plain), ("some.txt.gz", Compressed(plain, "gz"))):
        assert list(shoal.open(tmp_path / path, format=reader)) == samples


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str) -> None:
    with pytest.raises(AssertionError, match=MISTAKES[mistake]):
        check_format(Broken(mistake), SHARDS, num_damaged=2000)


@pytest.mark.parametrize("mistake", ["needs starts", "needs bytes"])
def test_what_a_format_raises_for_good_shards_is_not_hidden(mistake: str) -> None:
    with pytest.raises(TypeError):
        check_format(Broken(mistake), SHARDS)


def test_formats_that_should_find_the_same_are_compared() -> None:
    with pytest.raises(AssertionError, match="differ"):
        check_format(Broken(""), SHARDS, same_as=[Broken("scans differ later")])


def test_where_damage_must_be_noticed_a_wrong_sample_is_an_error() -> None:
    with pytest.raises(AssertionError, match="is returned as"):
        check_format(Broken(""), SHARDS, detects_damage=True)


def test_damage_is_the_same_every_time_and_of_every_kind() -> None:
    data = bytes(range(100))
    found = list(damaged(data, 600))
    assert {damage.kind for damage in found} == {*DAMAGE_KINDS}
    assert found == list(damaged(data, 600))
    assert found != list(damaged(data, 600, seed=1))
    assert sum(damage.data == data for damage in found) < 30
    for damage in found:
        assert damage.data[: damage.byte] == data[: damage.byte]
        assert (damage.kind != "cut") or len(damage.data) == damage.byte
    assert list(damaged(b"", 5)) == []
