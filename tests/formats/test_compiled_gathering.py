"""The compiled module cuts many samples in one call, makes columns of them and gathers rows, as its twins do."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.formats.test_compiled_cutting import as_plain, shard_of, shards
from tests.formats.test_tar_plain import SIZES, archive, span

from shoal.errors import ShardError
from shoal.formats.compiled_cutting import is_compiled, take_rows, tar_samples, transposed, values_of_rows
from shoal.formats.rows.lines.reader import JsonLines, Text
from shoal.formats.rows.mds.reader import Mds
from shoal.formats.rows.records import Piece
from shoal.formats.rows.tar.reader import Tar
from shoal.formats.shard_format import Format, Span

pytestmark = pytest.mark.skipif(not is_compiled, reason="the compiled module is left out")


TEXTS: list[Format] = [JsonLines(), Text()]


def opened(reader: Format, data: bytes, *, damaged: bytes | None = None) -> Any:
    """Parse all samples of a shard in one unit, perhaps of damaged bytes with the borders of the sound ones."""
    scan = reader.scan(lambda first, end: data[first:end], len(data), shard="s")
    begin, starts = int(scan.sample_starts[0]), scan.sample_starts
    part = (data if damaged is None else damaged)[begin : int(starts[-1])]
    return reader.parse(part, Span("s", begin, len(starts) - 1, (starts - begin).tolist(), scan.head))


def cut_all(records: list[Any], chosen: list[tuple[int, int]], last: list[bool] | None = None) -> list[Any]:
    """Cut samples by unit and number in as few calls as possible; an unusual sample by itself."""
    held, firsts = {}, np.cumsum([0, *map(len, records)]).tolist()
    for unit, (each, first) in enumerate(zip(records, firsts, strict=False)):
        held[unit] = each.piece, first, "anything"
    ids, units = [firsts[unit] + number for unit, number in chosen], [unit for unit, _ in chosen]
    samples: list[Any] = []
    while len(samples) < len(chosen):
        at = len(samples)
        piece = held[units[at]][0]
        cut = piece.cut(held, ids, units, last, at, len(ids)) if piece is not None else []
        samples += cut or [records[units[at]].sample(chosen[at][1])]
        if last is not None and cut:
            assert not any(last[at : len(samples) - 1])
    return samples


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: (type(value), as_plain(value)) for name, value in sample.items()}


def drawn(data: st.DataObject, records: list[Any]) -> tuple[list[tuple[int, int]], list[bool] | None]:
    numbers = [(unit, number) for unit, each in enumerate(records) for number in range(len(each))]
    chosen = data.draw(st.lists(st.sampled_from(numbers), max_size=20))
    last = data.draw(st.none() | st.lists(st.booleans(), min_size=len(chosen), max_size=len(chosen)))
    return chosen, last


@given(sizes=st.lists(SIZES, min_size=1, max_size=3), data=st.data())
def test_many_samples_of_tars_are_those_cut_one_by_one(sizes: list[list[list[int]]], data: st.DataObject) -> None:
    records = [opened(Tar(), span(archive(each, mtime=1.5 * number))[0]) for number, each in enumerate(sizes)]
    chosen, last = drawn(data, records)
    assert cut_all(records, chosen, last) == [records[unit].sample(number) for unit, number in chosen]


@given(made=shards(), data=st.data())
def test_many_samples_of_mds_are_those_cut_one_by_one(made: tuple[Any, Any, bytes], data: st.DataObject) -> None:
    records = [opened(Mds(), made[2]), opened(Mds(), made[2])]
    chosen, last = drawn(data, records)
    wanted = [records[unit].sample(number) for unit, number in chosen]
    assert list(map(plain, cut_all(records, chosen, last))) == list(map(plain, wanted))


LINES = st.lists(
    st.sampled_from([
        b'{"a": 1}', b'{"a": NaN, "b": "\xc3\xa9"}', b' "x"', b"7\r", b'{"a": "\xff"}', b'{"a": 1',
        b"1 2", b"{}", b"nul",
    ]),
    min_size=1,
    max_size=8,
)  # fmt: skip


@given(
    shards=st.lists(LINES, min_size=1, max_size=3), ends=st.booleans(), reader=st.sampled_from(TEXTS), data=st.data()
)
def test_many_lines_are_those_decoded_one_by_one(
    shards: list[list[bytes]], ends: bool, reader: Format, data: st.DataObject
) -> None:
    records = [opened(reader, b"\n\n".join(lines) + b"\n" * ends) for lines in shards]
    chosen, last = drawn(data, records)
    outcomes: list[Any] = []
    for unit, number in chosen:
        try:
            outcomes.append(records[unit].sample(number))
        except ShardError as error:
            outcomes.append(error)
            break
    is_whole = not outcomes or not isinstance(outcomes[-1], ShardError)
    if is_whole:
        assert list(map(repr, cut_all(records, chosen, last))) == list(map(repr, outcomes))
        return
    with pytest.raises(ShardError) as caught:
        cut_all(records, chosen, last)
    assert str(caught.value) == str(outcomes[-1])


def test_samples_before_a_line_that_is_not_json_are_cut_together() -> None:
    records = opened(JsonLines(), b"1\n2\nnul\n4\n")
    samples = records.piece.cut({0: (records.piece, 0)}, [0, 1, 2, 3], [0] * 4, None, 0, 4)
    assert samples == [{"json": 1}, {"json": 2}]


@given(made=shards(), place=st.integers(0, 10**6), byte=st.integers(0, 255), is_tar=st.booleans())
def test_a_damaged_sample_ends_the_list_before_it(
    made: tuple[Any, Any, bytes], place: int, byte: int, is_tar: bool
) -> None:
    reader: Format = Tar() if is_tar else Mds()
    sound = span(archive([[600, 3], [5], [70]]))[0] if is_tar else made[2]
    damaged = bytearray(sound)
    damaged[place % len(damaged)] = byte
    records = opened(reader, sound, damaged=bytes(damaged))
    piece = records.piece
    samples = piece.cut({7: (piece, 0)}, [*range(len(records))], [7] * len(records), None, 0, len(records))
    for number in range(len(records)):
        try:
            wanted = records.sample(number)
        except ShardError:
            assert len(samples) <= number
            return
        if number < len(samples):
            assert plain(samples[number]) == plain(wanted)


def test_a_list_ends_before_units_that_are_missing_or_of_another_kind() -> None:
    tar, mds = opened(Tar(), span(archive([[5], [6]]))[0]), opened(Mds(), shard_of({"n": "str"}, [{"n": "x"}]))
    held: dict[int, tuple[Any, ...]] = {0: (tar.piece, 0), 1: (mds.piece, 2), 2: (None, 3), 3: (tar.piece, 4)}
    for other in (1, 2, 9):
        assert len(tar.piece.cut(held, [0, 1, 2, 1], [0, 0, other, 0], None, 0, 4)) == 2
    assert tar.piece.cut(held, [5, 4], [3, 3], None, 0, 2) == [tar.sample(1), tar.sample(0)]
    others: list[Any] = [(), (3,), ("ab", 0), ((1, 2), 0), ((1, b"", []), 0), [tar.piece, 0], (tar.piece, "0"), 5]
    for wrong in others:
        assert tar_samples({0: wrong}, [0], [0], None, 0, 1) == []
    for number in (-1, 2, 2**60):
        assert tar_samples({0: (tar.piece, 0)}, [number], [0], None, 0, 1) == []


@pytest.mark.parametrize("starts", [[], [0], [-1, 5], [0, 10**9], [5, 4], ["0", "1"], [0, 2**70], None, 7])
def test_wrong_borders_hold_no_samples(starts: Any) -> None:
    assert tar_samples({0: (Piece(tar_samples, bytes(512), starts), 0)}, [0], [0], None, 0, 1) == []


def test_wrong_arguments_are_errors_and_not_crashes() -> None:
    wrong_for: dict[Any, list[Any]] = {
        tar_samples: [(), ({}, [], [], None, 0), ([], [], [], None, 0, 0), ({}, (), [], None, 0, 0)],
        values_of_rows: [(), ([], [], [], 0), ((), np.zeros(0, np.int64), np.zeros(0, np.int64), True)],
        take_rows: [(), (b"", 0, 1, np.zeros(1, np.int8), bytearray(1)), (b"", "0", 1, np.zeros(1, int), bytearray(1))],
    }
    for function, each in wrong_for.items():
        for arguments in each:
            with pytest.raises(TypeError):
                function(*arguments)
    assert tar_samples({}, [], [], None, 0, 5) == []
    with pytest.raises(BufferError):
        take_rows(b"ab", 0, 1, np.zeros(1, np.int64), b"a")


@given(samples=st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3), max_size=5))
def test_columns_are_the_values_of_samples_with_the_same_fields(samples: list[dict[str, int]]) -> None:
    columns = transposed(samples)
    if not samples or any(sample.keys() != samples[0].keys() for sample in samples):
        assert columns is None
    else:
        assert columns == {name: [sample[name] for sample in samples] for name in samples[0]}
        assert [*columns] == [*samples[0]]


def test_only_dicts_with_names_are_transposed() -> None:
    class Other(dict[str, int]):
        pass

    for samples in ([1], [{}, 1], [Other(a=1)], [{1: 2}], ({"a": 1},), None, [{"a": 1}, {"a": 1, "b": 2}]):
        assert transposed(samples) is None


BINARY = st.lists(st.lists(st.text(max_size=8).map(str.encode), min_size=1, max_size=4), min_size=1, max_size=3)


def units_of(columns: list[list[bytes]], dtype: Any) -> list[tuple[NDArray[Any], bytes]]:
    return [(np.cumsum([0, *map(len, column)]).astype(dtype), b"".join(column)) for column in columns]


@given(columns=BINARY, dtype=st.sampled_from([np.int32, np.int64]), data=st.data())
def test_values_of_rows(columns: list[list[bytes]], dtype: Any, data: st.DataObject) -> None:
    numbers = [(unit, row) for unit, column in enumerate(columns) for row in range(len(column))]
    chosen = data.draw(st.lists(st.sampled_from(numbers), max_size=9))
    which, rows = (np.array([pair[side] for pair in chosen], np.int64) for side in (0, 1))
    wanted = [columns[unit][row] for unit, row in chosen]
    assert values_of_rows(units_of(columns, dtype), which, rows, False) == wanted
    assert values_of_rows(units_of(columns, dtype), which, rows, True) == [value.decode() for value in wanted]


@given(
    offsets=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 9), max_size=4),
    which=st.integers(-2, 2) | st.integers(-(2**63), 2**63 - 1),
    row=st.integers(-2, 4) | st.integers(-(2**63), 2**63 - 1),
    is_text=st.booleans(),
)
def test_wrong_offsets_give_no_values(offsets: list[int], which: int, row: int, is_text: bool) -> None:
    data = b"abc\xff"
    values = values_of_rows([(np.array(offsets, np.int64), data)], np.array([which]), np.array([row]), is_text)
    if which == 0 and 0 <= row < len(offsets) - 1 and 0 <= offsets[row] <= offsets[row + 1] <= len(data):
        value = data[offsets[row] : offsets[row + 1]]
        assert values == ((None if b"\xff" in value else [value.decode()]) if is_text else [value])
    else:
        assert values is None


@given(
    num_rows=st.integers(1, 9),
    width=st.integers(1, 700),
    first=st.integers(0, 5),
    gap=st.integers(0, 9),
    data=st.data(),
)
def test_rows_are_those_that_numpy_takes(num_rows: int, width: int, first: int, gap: int, data: st.DataObject) -> None:
    stride = width + gap
    source = np.random.default_rng(width).integers(0, 256, first + num_rows * stride, dtype=np.uint8)
    rows = np.array(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=12)), np.int64)
    out = np.zeros((len(rows), width), np.uint8)
    assert take_rows(source, first, stride, rows, out)
    assert np.array_equal(out, source[first:].reshape(num_rows, stride)[rows, :width])
    for wrong in (-1, num_rows, 2**62, -(2**63)):
        if len(rows):
            bad = rows.copy()
            bad[-1] = wrong
            before = out.copy()
            assert not take_rows(source, first + gap, stride, bad, out)
            assert np.array_equal(out, before)


@pytest.mark.parametrize("place", [(-1, 4), (0, 0), (0, -4), (0, 3), (9, 4), (2**62, 4), (0, 2**62)])
def test_rows_outside_of_the_memory_are_not_taken(place: tuple[int, int]) -> None:
    rows = np.array([0, 1], np.int64)
    assert not take_rows(bytes(8), *place, rows, bytearray(8))
    assert take_rows(bytes(8), 0, 4, rows, bytearray(8))


def test_nothing_is_kept_of_what_was_gathered() -> None:
    tar = opened(Tar(), span(archive([[600, 30], [3]], mtime=1.5))[0])
    rows = [{"t": "text" * 50, "j": {"a": [1]}}, {"t": "", "j": {}}]
    mds = opened(Mds(), shard_of({"t": "str", "j": "json"}, rows))
    broken = opened(Mds(), shard_of({"t": "str"}, [{"t": "ab"}]))
    broken._view = b"\xff" * len(broken._view)
    which = np.array([0, 0], np.int64)

    def gather() -> Iterator[Any]:
        for _ in range(2000):
            for records in (tar, mds, broken):
                yield records.piece.cut({0: (records.piece, 0)}, [0, 1, 5], [0, 0, 0], None, 0, 3)
                yield records.piece.cut({0: (records.piece, 0)}, [0, 1, 5], [0, 0, 4], [True] * 3, 0, 3)
            yield transposed([{"a": 1, "b": 2}, {"a": 1, "c": 2}])
            yield transposed([{"a": 1, "b": 2}, {"a": 1, "b": 2}])
            for text in (True, False):
                yield values_of_rows([(np.array([0, 2, 3]), b"ab\xff")], which, np.array([0, 1]), text)

    for _ in gather():
        pass
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in gather():
        pass
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 10_000
