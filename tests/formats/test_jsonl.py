"""JSON Lines against a plain split at newlines."""

from __future__ import annotations

import zlib
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shoal
from shoal.errors import ShardError
from shoal.formats.rows.lines import line_borders
from shoal.formats.rows.lines.reader import JsonLines
from shoal.formats.rows.records import CutRecords
from shoal.formats.shard_format import Span
from shoal.index.shard_scan import ShardScan

BOM = b"\xef\xbb\xbf"


def scan(data: bytes, **options: int) -> ShardScan:
    return JsonLines(**options).scan(lambda first, end: data[first:end], len(data), shard="docs.jsonl")


def parse(data: bytes, *, with_starts: bool = True) -> CutRecords:
    starts = scan(data).sample_starts
    part = data[int(starts[0]) : int(starts[-1])]
    given_starts = starts - starts[0] if with_starts else None
    first_byte = int(starts[0])
    return JsonLines().parse(part, Span("docs.jsonl", first_byte, len(starts) - 1, given_starts))


def reference_starts(data: bytes) -> list[int]:
    position = 3 if data.startswith(BOM) else 0
    starts: list[int] = []
    for line in data[position:].split(b"\n"):
        end = min(position + len(line) + 1, len(data))
        if line.strip():
            starts += [end] if starts else [position, end]
        position = end
    return starts or [0]


PIECES = [b"\n", b" ", b"{}", b"\r\n", b'{"a": "\xc3\xa9"}', b"\t", b"1", BOM, b"    ", b"[1, 2]", b"\0", b"\x0b"]


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=14),
    window_bytes=st.sampled_from([1, 2, 3, 7, 100]),
    few=st.sampled_from([0, 256]),
)
@example(pieces=[b"\n", b"\n", b"1", b"\n"], window_bytes=3, few=0)  # a window that ends inside of a line
def test_lines_are_those_of_a_split(pieces: list[bytes], window_bytes: int, few: int) -> None:
    data = b"".join(pieces)
    with mock.patch.object(line_borders, "_FEW", few):  # how many lines are looked at one by one
        found = scan(data, window_bytes=window_bytes)
    starts = reference_starts(data)
    assert found.sample_starts.tolist() == starts
    crcs = [zlib.crc32(data[starts[i] : starts[i + 1]]) for i in range(len(starts) - 1)]
    assert found.layout_crcs.tolist() == crcs
    for with_starts in (True, False):
        assert parse(data, with_starts=with_starts).layout_crcs().tolist() == crcs


def test_samples() -> None:
    data = BOM + b'\n{"id": 1, "t": "\xc3\xa9"}\r\n \n[1]\n"s"\nNaN\n  {"id": 2}'
    for with_starts in (True, False):
        records = parse(data, with_starts=with_starts)
        samples = [records.sample(number) for number in range(len(records))]
        assert repr(samples[3]) == "{'json': nan}"
        del samples[3]
        assert samples == [{"id": 1, "t": "\u00e9"}, {"json": [1]}, {"json": "s"}, {"id": 2}]
    assert scan(data).notes == {"blank_lines": 2}


@pytest.mark.parametrize(
    ("line", "byte", "match"),
    [
        (b'{"a": }', 6, "not JSON"),
        (b'{"\xc3\xa9": }', 7, "not JSON"),
        (b'{"a": "\xff"}', 7, "not UTF-8"),
        (b"\0\0", 0, "not JSON"),
        (b"{}{}", 2, "not JSON"),
        (b"[" * 100_000, None, "Python cannot read|not JSON"),
        (b"1" * 5000, 0, "Python cannot read"),
    ],
)
def test_malformed_lines_are_named_with_their_byte(line: bytes, byte: int | None, match: str) -> None:
    before = b'\n{"ok": "\xc3\xa9"}\n'
    gap = b"  \n "
    records = parse(before + gap + line + b"\n{}\n")
    assert records.sample(0) == {"ok": "\u00e9"}
    assert records.sample(2) == {}
    with pytest.raises(ShardError, match=match) as caught:
        records.sample(1)
    if byte:
        assert caught.value.byte == len(before) + len(gap) + byte
    assert caught.value.hint


def test_long_lines() -> None:
    data = b"{}\n" + b'"' + b"x" * 100_000 + b'"\n{}\n'
    assert scan(data, window_bytes=1000).num_samples == 3
    for window_bytes in (1000, 1 << 20):
        with pytest.raises(ShardError, match="longer than 50000 bytes") as caught:
            scan(data, window_bytes=window_bytes, line_limit_bytes=50_000)
        assert caught.value.byte == 3


@pytest.mark.parametrize("starts", [[0, 4, 6], [0, 3, 7], [0, 3], [3, 0, 6], [-3, 3, 6], None])
def test_an_index_of_another_file_is_noticed(starts: list[int] | None) -> None:
    data = b"{}\n{}\n" if starts is not None else b"{}\n"
    with pytest.raises(ShardError, match="index"):
        JsonLines().parse(data, Span("s", 100, 2, starts))


def test_empty() -> None:
    for data in (b"", BOM, b"\n \n"):
        assert scan(data).num_samples == 0
    assert len(parse(b"")) == 0


def test_an_object_over_several_lines_is_called_that() -> None:
    with pytest.raises(ShardError, match=r"one JSON object over several lines.*\n.*jq -c \. FILE") as caught:
        scan(b'{\n  "a": [1, 2]\n}\n')
    assert (caught.value.shard, caught.value.byte) == ("docs.jsonl", 0)


@pytest.mark.parametrize("data", [b'[{"a": 1}, {"a": 2}]\n[3]\n', b'{"a": 1}\n[\n', b"[", b"{}\n{}"])
def test_values_of_one_line_are_samples(data: bytes) -> None:
    assert len(scan(data).sample_starts) > 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "a.csv"])
def test_the_hint_of_a_broken_line_says_how_to_leave_it_out(name: str, tmp_path: Path) -> None:
    broken = {"a.jsonl": b'{"a": x}\n{}', "a.json": b'[{"a": x}, {}]', "a.txt": b"\xff\n", "a.csv": b"a\n\xff\n"}
    (tmp_path / name).write_bytes(broken[name])
    with pytest.raises(ShardError) as caught:
        shoal.open(tmp_path / name)[0]
    assert 'reading(on_error="skip")' in caught.value.hint
