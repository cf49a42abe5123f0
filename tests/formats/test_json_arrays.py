"""A shard that is one JSON array has the elements of the array as samples, however it is laid out."""

from __future__ import annotations

import json
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats import writers

import shoal
from shoal.errors import ShardError
from shoal.formats.rows.lines.reader import JsonLines
from shoal.formats.shard_format import Span

LEAVES = st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a"\\[]{},\n \u00e9'), max_size=6)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
LAYOUTS: dict[str, Any] = {
    "one line": {},
    "compact": {"separators": (",", ":")},
    "indented": {"indent": 2},
    "ascii": {"ensure_ascii": False},
}


def part_of(data: bytes, first: int, end: int) -> bytes:
    assert 0 <= first < end <= len(data)
    return data[first:end]


def samples_of(data: bytes, *, shard: str = "a.json", window_bytes: int = 1 << 20, step: int = 2) -> list[Any]:
    """Return the samples, opened some at a time, with the borders of an index and without."""
    format_ = JsonLines(window_bytes=window_bytes)
    found = format_.scan(partial(part_of, data), len(data), shard=shard)
    ways = []
    for with_starts in (True, False):
        samples: list[Any] = []
        for first in range(0, found.num_samples, step):
            starts = found.sample_starts[first : first + step + 1]
            borders = (starts - starts[0]).tolist() if with_starts else None
            span = Span(shard, int(starts[0]), len(starts) - 1, borders, found.head)
            records = format_.parse(data[int(starts[0]) : int(starts[-1])], span)
            assert records.layout_crcs().tolist() == found.layout_crcs[first : first + step].tolist()
            samples += [records.sample(number) for number in range(len(records))]
        ways.append(samples)
    assert ways[0] == ways[1]
    return ways[0]


def as_sample(value: Any) -> Any:
    return value if isinstance(value, dict) else {"json": value}


@settings(max_examples=40)
@given(
    values=st.lists(VALUES, max_size=5),
    layout=st.sampled_from(sorted(LAYOUTS)),
    window_bytes=st.sampled_from([1, 2, 7, 64, 1 << 20]),
    around=st.sampled_from([("", ""), ("\ufeff", "\n"), (" \n", " \n\n"), ("", "\r\n")]),
)
def test_elements_are_samples(values: list[Any], layout: str, window_bytes: int, around: tuple[str, str]) -> None:
    data = f"{around[0]}{json.dumps(values, **LAYOUTS[layout])}{around[1]}".encode("utf-8", "surrogatepass")
    assert samples_of(data, window_bytes=window_bytes) == [as_sample(value) for value in values]


@settings(max_examples=20)
@given(
    rows=st.lists(st.lists(VALUES, max_size=2), min_size=2, max_size=3), window_bytes=st.sampled_from([1, 5, 1 << 20])
)
def test_arrays_on_several_lines_are_lines(rows: list[Any], window_bytes: int) -> None:
    """In a shard whose name says that it has lines; in others they may as well be parts of one array."""
    data = "\n".join(map(json.dumps, rows)).encode()
    assert samples_of(data, shard="a.jsonl", window_bytes=window_bytes) == [{"json": row} for row in rows]
    for shard in ("a.json", "a.json.gz", "a"):
        with pytest.raises(ShardError, match="other bytes follow the JSON array here") as caught:
            samples_of(data, shard=shard, window_bytes=window_bytes)
        assert caught.value.byte == data.index(b"\n") + 1
        assert ".jsonl" in caught.value.hint


@pytest.mark.parametrize("shard", ["a.jsonl", "a.ndjson.gz", "b/a.JSONL", "a.jsonl-00000-of-00001"])
def test_the_only_line_of_a_shard_named_for_its_lines_is_a_sample(shard: str) -> None:
    assert samples_of(b'[{"role": "user"}, {"role": "tool"}]\n', shard=shard) == [
        {"json": [{"role": "user"}, {"role": "tool"}]}
    ]
    assert samples_of(b'[\n{"role": "user"},\n{"role": "tool"}\n]', shard=shard) == [{"role": "user"}, {"role": "tool"}]


@pytest.mark.parametrize(
    ("data", "byte", "said"),
    [
        (b'[{"a": 1}, {"a": 2}', 0, "never ends"),
        (b'[\n{"a": 1},\n{"a": "]', 0, "never ends"),
        (b'[\n{"a": 1}\n]\n[{"a": 2}]', 13, "other bytes follow"),
        (b'[{"a": 1}, {"a": 2}]\n[{"a": 3}]\n', 21, "other bytes follow"),
        (b'[{"a": 1}]\n{"a": 2}\n', 11, "other bytes follow"),
        (b'[{"a": 1}] [{"a": 2}]', 11, "other bytes follow"),
        (b'{\n"a": 1\n}', 0, "one JSON object over several lines"),
    ],
)
def test_what_is_neither_an_array_nor_lines(data: bytes, byte: int, said: str) -> None:
    for window_bytes in (3, 1 << 20):
        with pytest.raises(ShardError, match=said) as caught:
            samples_of(data, window_bytes=window_bytes)
        assert caught.value.byte == byte


def test_a_broken_element_is_one_sample(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": 0}, {"a": x}, {"a": 2}, ]')
    ds = shoal.open(tmp_path / "a.json")
    with pytest.raises(ShardError, match="this element is not JSON") as caught:
        ds[1]
    assert caught.value.byte == 17
    assert [sample["a"] for sample in ds.reading(on_error="skip")] == [0, 2]


def test_an_index_of_another_file_is_noticed() -> None:
    data = b"[12, 34, 56]"
    found = JsonLines().scan(partial(part_of, data), len(data), shard="a.json")
    span = Span("a.json", 1, 3, [0, 1, 6, 10], found.head)
    with pytest.raises(ShardError, match="index"):
        JsonLines().parse(data[1:11], span)


@pytest.mark.parametrize("codec", [None, *writers.COMPRESS])
def test_files_are_opened_and_shuffled(codec: str | None, tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    rows = [{"n": number, "text": "\u00e9" * number} for number in range(300)]
    for name, layout in (("0", {}), ("1", {"indent": 1})):
        data = json.dumps(rows, **layout).encode()  # type: ignore[arg-type]
        suffix = "" if codec is None else f".{codec}"
        (tmp_path / f"{name}.json{suffix}").write_bytes(data if codec is None else writers.COMPRESS[codec](data))
    ds = shoal.open(str(tmp_path / "*.json*"))
    assert [sample["n"] for sample in ds] == [*range(300), *range(300)]
    assert sorted(sample["n"] for sample in ds.shuffle(seed=0)) == sorted([*range(300)] * 2)
    assert ds[299] == rows[299]


def test_pieces_of_frames_are_cut_between_elements(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    elements = [json.dumps({"n": number, "x": "x" * 33_000}) for number in range(9)]
    parts = [f"[{elements[0]}", *(f",\n{element}" for element in elements[1:]), "]"]
    compress = zstandard.ZstdCompressor(write_content_size=False).compress
    (tmp_path / "a.json.zst").write_bytes(b"".join(compress(part.encode()) for part in parts))
    ds = shoal.open(tmp_path / "a.json.zst")
    assert [sample["n"] for sample in ds] == [*range(9)]
    assert [ds[number]["n"] for number in (8, 0, 4)] == [8, 0, 4]


def test_memory_does_not_grow_with_the_array() -> None:
    data = b"[" + b", ".join([b'{"text": "' + b"x" * 2000 + b'"}'] * 10_000) + b"]"
    format_ = JsonLines(window_bytes=1 << 16)
    tracemalloc.start()
    found = format_.scan(lambda first, end: memoryview(data)[first:end], len(data), shard="a.json")
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.num_samples == 10_000
    assert held < 4 << 20
