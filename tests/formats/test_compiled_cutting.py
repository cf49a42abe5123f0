"""The compiled module cuts the samples that its twins in Python cut, or says nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.test_tar_plain import archive, span
from tests.formats.writers import mds_of

from shoal.errors import ShardError
from shoal.formats.compiled_cutting import is_compiled, mds_sample, plain_example, tar_front, tar_sample
from shoal.formats.rows.mds.encodings import encode_value, fixed_bytes_of
from shoal.formats.rows.mds.reader import Mds, _cutter, _decoder
from shoal.formats.rows.records import CutRecords
from shoal.formats.rows.tfrecord.tf_example import encode_example
from shoal.formats.shard_format import Span

IS_LEFT_OUT = os.environ.get("SHOAL_PURE_PYTHON", "0") not in ("", "0")
pytestmark = pytest.mark.skipif(
    IS_LEFT_OUT or (not is_compiled and shutil.which(os.environ.get("CC", "cc")) is None),
    reason="the compiled module is to be left out, or no compiler was there to build it",
)
COLUMNS = {"label": "int", "text": "str", "data": "bytes", "meta": "json", "x": "uint16", "a": "ndarray:int8:3"}
VALUES: dict[str, Any] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "str": st.text(max_size=40),
    "bytes": st.binary(max_size=40),
    "json": st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.lists(st.booleans()), max_size=3),
    "uint16": st.integers(0, 65535),
    "ndarray:int8:3": st.lists(st.integers(-128, 127), min_size=3, max_size=3).map(partial(np.array, dtype=np.int8)),
}


def test_it_is_built_where_a_compiler_is() -> None:
    """Else the tests below would pass without it, and nobody would notice that all samples take longer."""
    assert is_compiled


def shard_of(columns: dict[str, str], rows: list[dict[str, Any]]) -> bytes:
    described = {name: (encoding, fixed_bytes_of(encoding)) for name, encoding in columns.items()}
    return mds_of(described, [[encode_value(columns[name], row[name]) for name in columns] for row in rows])


@st.composite
def shards(draw: st.DrawFn) -> tuple[dict[str, str], list[dict[str, Any]], bytes]:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True))
    columns = {name: COLUMNS[name] for name in names}
    rows = draw(
        st.lists(st.fixed_dictionaries({n: VALUES[kind] for n, kind in columns.items()}), min_size=1, max_size=5)
    )
    return columns, rows, shard_of(columns, rows)


@given(made=shards())
def test_samples_of_mds_are_those_of_the_decoder(made: tuple[dict[str, str], list[dict[str, Any]], bytes]) -> None:
    columns, rows, data = made
    scan = Mds().scan(lambda first, end: data[first:end], len(data), shard="s")
    known = Mds()._columns(scan.head, "s")
    cut, decode, starts = _cutter(known), _decoder(known), scan.sample_starts.tolist()
    assert cut is not None
    assert cut.one is not None
    for number in range(len(rows)):
        start, end = starts[number : number + 2]
        for held in (data, memoryview(data), bytearray(data)):
            found, wanted = cut.one(held, start, end), decode(data[start:end])
            assert found is not None
            assert {n: as_plain(v) for n, v in found.items()} == {n: as_plain(v) for n, v in wanted.items()}
            assert [*found] == sorted(columns)
            assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in wanted.items()}


def as_plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@given(made=shards(), place=st.integers(0, 10**6), byte=st.integers(0, 255), cut_bytes=st.integers(0, 4))
def test_damaged_samples_are_left_to_the_decoder(
    made: tuple[dict[str, str], list[dict[str, Any]], bytes], place: int, byte: int, cut_bytes: int
) -> None:
    columns, _, data = made
    scan = Mds().scan(lambda first, end: data[first:end], len(data), shard="s")
    start, end = scan.sample_starts[:2].tolist()
    damaged = bytearray(data[start : end - cut_bytes])
    if damaged:
        damaged[place % len(damaged)] = byte
    known = Mds()._columns(scan.head, "s")
    cut = _cutter(known)
    assert cut is not None
    assert cut.one is not None
    found = cut.one(bytes(damaged), 0, len(damaged))
    alone = CutRecords(bytes(damaged), [0, len(damaged)], Span("s", 0, 1), decode=_decoder(known), crcs=lambda: None)  # type: ignore[arg-type, return-value]
    try:
        wanted = alone.sample(0)
    except ShardError:
        assert found is None
    else:
        assert found is not None
        assert {n: as_plain(v) for n, v in found.items()} == {n: as_plain(v) for n, v in wanted.items()}
    assert set(columns) >= set(found or {})


@given(
    sizes=st.lists(st.integers(0, 20_000), min_size=1, max_size=6), held=st.integers(0, 6000), first=st.integers(0, 99)
)
def test_members_are_found_front_by_front(sizes: list[int], held: int, first: int) -> None:
    """However few bytes are there at a time; what is not there is named by its place in the shard."""
    data, starts = span(archive([sizes], mtime=1.5))
    end, position, sample = first + int(starts[1]), first, dict[str, Any]()
    while position < end:
        front = data[position - first :][: max(held, 3 * 512)]  # a PAX header, its records, and a header
        found = tar_front(sample, front, position, end)
        assert found is not None
        assert found > position
        position = found
    assert position == end
    for name, value in sample.items():
        if isinstance(value, slice):
            sample[name] = data[value.start - first : value.stop - first]
    assert sample == tar_sample(data, 0, int(starts[1]))


@pytest.mark.parametrize("places", [(-1, 5), (5, 4), (0, 10**9), (3, 3), (2**70, 2**71)])
def test_places_outside_of_the_bytes_hold_nothing(places: tuple[int, int]) -> None:
    data, _ = span(archive([[5]]))
    column = (("n", 8, 1),)
    if places[0] > 2**64:
        with pytest.raises(OverflowError):
            tar_sample(data, *places)
        return
    assert tar_sample(data, *places) is None
    assert mds_sample(column, 0, data, *places) is None


def test_wrong_arguments_are_errors_and_not_crashes() -> None:
    for arguments in [(), (b"", 0), ("", 0, 0), (memoryview(b""), 0, 0), (b"", "0", 0)]:
        with pytest.raises(TypeError):
            tar_sample(*arguments)
    for arguments in [(), ({}, b"", 0), ([], b"", 0, 0), ({}, "", 0, 0), ({}, b"", "0", 0)]:  # type: ignore[assignment]
        with pytest.raises(TypeError):
            tar_front(*arguments)
    for arguments in [(), ((), 0, b"", 0), ((), 0, "", 0, 0)]:  # type: ignore[assignment]
        with pytest.raises(TypeError):
            mds_sample(*arguments)
    for arguments in [(), (b"",), (memoryview(b""), None, None)]:  # type: ignore[assignment]
        with pytest.raises(TypeError):
            plain_example(*arguments)
    for columns in [[("n", 8, 1)], ("n",), (("n",),), ((),), (("n", "8", 1),), (("n", 3, 1),), (("n", 8, "x"),)]:
        assert mds_sample(columns, 0, bytes(8), 0, 8) is None
    for num_sizes in (-1, 0, 3, 2**62):  # where two columns have a size
        assert mds_sample((("a", -1, 3), ("b", -1, 3)), num_sizes, bytes(8), 0, 8) is None


def test_an_interrupt_in_a_decoder_is_not_held_up() -> None:
    def interrupted(data: bytes) -> None:
        raise KeyboardInterrupt

    def refused(data: bytes) -> None:
        raise ValueError

    with pytest.raises(KeyboardInterrupt):
        mds_sample((("n", 8, interrupted),), 0, bytes(8), 0, 8)
    assert mds_sample((("n", 8, refused),), 0, bytes(8), 0, 8) is None


def test_nothing_is_kept_of_what_was_cut() -> None:
    tar, starts = span(archive([[600, 30], [3]], mtime=1.5))
    mds = shard_of({"t": "str", "j": "json"}, [{"t": "text" * 50, "j": {"a": [1]}}])
    known = Mds()._columns(Mds().scan(lambda first, end: mds[first:end], len(mds), shard="s").head, "s")
    cut = _cutter(known)
    assert cut is not None
    cut_one = cut.one
    assert cut_one is not None
    example = encode_example({"image": b"png" * 50, "label": [3, -4], "x": [0.5]})
    assert plain_example(example, bytes, bytes) is not None

    def cut_all() -> None:
        for _ in range(2000):
            tar_sample(tar, int(starts[0]), int(starts[1]))
            tar_sample(tar, 0, 700)  # refused half-way
            tar_front({}, tar[:600], 5, 5 + int(starts[1]))  # the first payload is not there
            cut_one(mds, len(mds) - 230, len(mds))
            plain_example(example, bytes, bytes)
            plain_example(example[:-1], bytes, bytes)

    cut_all()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    cut_all()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 10_000


def test_python_alone_does_the_same() -> None:
    """A process that leaves the module out cuts the same samples, through the same classes."""
    script = """
import hashlib, sys
from tests.formats.test_tar_plain import archive, span
from tests.formats.test_compiled_cutting import shard_of
from shoal.formats.compiled_cutting import is_compiled
from shoal.formats.rows.mds.encodings import encode_value, fixed_bytes_of
from shoal.formats.rows.mds.reader import Mds
from shoal.formats.shard_format import Span
from shoal.formats.rows.tar.reader import Tar
data, starts = span(archive([[600, 30], [3], [0, 5]], mtime=1.5))
found = Tar().parse(data, Span("s", 0, 3, starts.tolist()))
mds = shard_of({"t": "str", "j": "json", "n": "int"}, [{"t": "x" * n, "j": {"a": n}, "n": -n} for n in range(5)])
scan = Mds().scan(lambda first, end: mds[first:end], len(mds), shard="s")
begin = int(scan.sample_starts[0])
others = Mds().parse(mds[begin:], Span("s", begin, 5, (scan.sample_starts - begin).tolist(), scan.head))
told = repr([found.sample(i) for i in range(3)] + [others.sample(i) for i in range(5)])
print(is_compiled, hashlib.sha256(told.encode()).hexdigest())
"""
    told = {}
    for pure in ("0", "1"):
        environment = os.environ | {"SHOAL_PURE_PYTHON": pure, "PYTHONPATH": os.pathsep.join(["src", "."])}
        ran = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        told[pure] = ran.stdout.split()
    assert told["0"][0] == "True"
    assert told["1"][0] == "False"
    assert told["0"][1] == told["1"][1]
