"""Encoders and readers agree about bytes, samples and the index of a shard."""

from __future__ import annotations

import enum
import io
import string
import tarfile
from datetime import datetime
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.read_back import read_back

from shoal.errors import UsageError
from shoal.formats.format_registry import format_named
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import WrittenShard
from shoal.formats.writing.written_formats import encoder_named
from shoal.hints import POINTER_BEGINNINGS
from shoal.index.cutting import cut_extents
from shoal.index.shard_scan import ShardScan
from shoal.storage.memory_store import MemoryStore

NAMES = st.text(string.ascii_lowercase + "_0é", min_size=1, max_size=6).filter(lambda name: name[:2] != "__")
KEYS = st.lists(st.text("abcXYZ01 é-\u200d\udcff", min_size=1, max_size=60), min_size=1, max_size=4).map("/".join)
# A field must not be a pointer of LFS or git-annex, which hypothesis finds among our constants.
CONTENTS = st.binary(max_size=1200).filter(lambda data: not data.startswith(POINTER_BEGINNINGS))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def write(name: str, samples: list[Sample], **options: Any) -> tuple[bytes, WrittenShard]:
    encoder = encoder_named(name, **options)
    shard = encoder.begin()
    parts = [bytes(part) for sample in samples for part in shard.add(encoder.record(sample))]
    parts += [bytes(part) for part in shard.finish()]
    return b"".join(parts), shard.written()


def check(name: str, samples: list[Sample], expected: list[Sample], **options: Any) -> None:
    """The law of every encoder."""
    data, written = write(name, samples, **options)
    assert write(name, samples, **options)[0] == data
    scan = format_named(name).scan(lambda first, end: data[first:end], len(data), shard="x")
    assert written.num_bytes == len(data)
    assert_same_scan(written.scan, scan)
    if expected:  # a dataset without samples is refused when it is opened
        assert read_back(name, data) == expected
    for extent_bytes in (1, 700, 65536):
        extents = cut_extents(scan, extent_bytes=extent_bytes)
        sums = [crc32(data[first:end]) for first, end in zip(extents.first_byte, extents.end_byte, strict=True)]
        assert written.extent_crcs(extent_bytes=extent_bytes).tolist() == sums


def assert_same_scan(written: ShardScan, scan: ShardScan) -> None:
    for what in ("sample_starts", "layout_crcs", "piece_samples", "piece_decoded_bytes"):
        one, other = getattr(written, what), getattr(scan, what)
        assert (one is None) == (other is None), what
        assert one is None or (np.array_equal(one, other) and one.dtype == other.dtype), what
    assert written.head == scan.head
    assert written.notes == scan.notes


@settings(max_examples=15)
@given(st.lists(st.dictionaries(NAMES, JSON, max_size=4), max_size=6))
@pytest.mark.parametrize("name", ["jsonl", "jsonl.zst"])
def test_json_lines(name: str, samples: list[Sample]) -> None:
    check(name, samples, samples)


@settings(max_examples=25)
@given(st.dictionaries(KEYS, st.dictionaries(NAMES, CONTENTS, min_size=1, max_size=3), max_size=5))
@pytest.mark.parametrize("name", ["tar", "tar.gz"])
def test_tar_of_bytes(name: str, fields: dict[str, dict[str, bytes]]) -> None:
    samples = [{"__key__": key, **values} for key, values in fields.items()]
    check(name, samples, samples)
    with tarfile.open(fileobj=io.BytesIO(write(name, samples)[0])) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == [f"{key}.{field}" for key in fields for field in fields[key]]
        assert {(member.mtime, member.uid, member.uname, member.mode) for member in members} <= {(0, 0, "", 0o644)}


def test_values_that_are_no_bytes_get_names_by_which_they_are_decoded() -> None:
    sample = {"__key__": "a", "caption": "hé", "label": 3, "score": 0.5, "x": np.arange(3), "raw.json": {"a": [1]}}
    data, _ = write("tar", [sample])
    fields = read_back("tar", data)[0]
    assert list(fields) == ["__key__", "caption.txt", "label.cls", "score.json", "x.npy", "raw.json"]
    # Numbers of numpy, which rows of narrow columns have, are as good as Python's.
    numbers = {"label": np.int8(3), "score": np.float32(0.5), "raw.json": {"a": [np.uint8(1)]}}
    assert write("tar", [sample | numbers])[0] == data
    assert "y.npy" in read_back("tar", write("tar", [{"__key__": "a", "y.npy": np.int8(3)}])[0])[0]
    MemoryStore().put("memory://encoders/a.tar", data)
    import shoal

    decoded = shoal.open("memory://encoders/a.tar").decode()[0]
    assert decoded["x.npy"].tolist() == [0, 1, 2]
    assert [decoded[name] for name in list(fields)[1:4]] == ["hé", 3, 0.5]
    assert decoded["raw.json"] == {"a": [1]}


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"txt": b""}, "needs a text as '__key__'"),
        ({"__key__": "a"}, "no field but its key"),
        ({"__key__": "a.b", "txt": b""}, "key 'a' and field 'b.txt'"),
        ({"__key__": "/a", "txt": b""}, "begin with a slash"),
        ({"__key__": "x/../a", "txt": b""}, "'..'"),
        ({"__key__": "a\nb", "txt": b""}, "control characters"),
        ({"__key__": "a", "JPG": b"", "jpg": b""}, "'JPG' and 'jpg'"),
        ({"__key__": "a", "x": object()}, "cannot be written"),
    ],
)
def test_what_a_tar_cannot_hold_is_refused(sample: Sample, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write("tar", [sample])


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(UsageError, match=r"JSON cannot hold a value of type bytes \(the fields 'a', 'c'\)") as caught:
        write("jsonl", [{"a": b"x", "b": 1, "c": b""}])
    assert "--decode" in caught.value.hint


# Random schemas: a strategy of values for each kind of column, and the values that change when they are read.
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
FLOAT32 = st.floats(allow_nan=False, width=32)
ARRAYS = st.lists(INT64, min_size=1, max_size=6).map(np.array)
MATRICES = st.integers(0, 3).flatmap(lambda rows: st.just(np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)))
STRUCTS = st.fixed_dictionaries({"a": INT64, "b": TEXTS})
KINDS: dict[str, list[st.SearchStrategy[Any]]] = {
    "mds": [INT64, FLOATS, TEXTS, st.binary(max_size=9), st.booleans(), ARRAYS, MATRICES, st.lists(TEXTS), STRUCTS],
    "parquet": [
        INT64,
        FLOATS,
        TEXTS,
        st.binary(max_size=9),
        st.booleans(),
        ARRAYS,
        st.lists(TEXTS, min_size=1),
        STRUCTS,
    ],
    "tfrecord": [INT64, FLOAT32, TEXTS, st.binary(max_size=9), ARRAYS, st.none(), st.lists(FLOAT32, min_size=2)],
}
KINDS["arrow"] = KINDS["parquet"]


@st.composite
def rows(draw: st.DrawFn, name: str, *, min_size: int) -> list[Sample]:
    columns = draw(st.dictionaries(NAMES, st.sampled_from(KINDS[name]), min_size=1, max_size=4))
    if len(columns) == 1 and "record" in columns:  # to TFRecord the record itself
        columns["other"] = INT64
    row = st.tuples(*columns.values()).map(lambda values: dict(zip(columns, values, strict=True)))
    return draw(st.lists(row, min_size=min_size, max_size=6))


def plain(value: Any) -> Any:
    """A value to be compared, with its type; lists of numbers are read as arrays."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {name: plain(element) for name, element in value.items()}
    value = value.item() if isinstance(value, np.generic) else value
    return (type(value).__name__, value)


def as_feature(value: Any) -> Any:
    """What TensorFlow makes of a value: numbers are lists, texts bytes."""
    if isinstance(value, str):
        return value.encode()
    return [value] if isinstance(value, int | float) else value


def check_rows(name: str, samples: list[Sample], expected: list[Sample], **options: Any) -> None:
    data, written = write(name, samples, **options)
    assert write(name, samples, **options)[0] == data
    scan = format_named(name).scan(lambda first, end: data[first:end], len(data), shard="x")
    assert written.num_bytes == len(data)
    assert_same_scan(written.scan, scan)
    extents = cut_extents(scan)
    sums = [crc32(data[first:end]) for first, end in zip(extents.first_byte, extents.end_byte, strict=True)]
    assert written.extent_crcs(extent_bytes=65536).tolist() == sums
    if samples:
        found_samples = read_back(name, data)
        assert plain(found_samples) == plain(expected)
        assert [list(sample) for sample in found_samples] == [list(sample) for sample in expected]


@settings(max_examples=12)
@given(st.data())
@pytest.mark.parametrize("name", ["mds", "mds.zst", "parquet", "arrow", "tfrecord", "tfrecord.gz"])
def test_random_schemas(name: str, data: st.DataObject) -> None:
    plain_name = name.partition(".")[0]
    samples = data.draw(rows(plain_name, min_size=0 if plain_name == "tfrecord" else 1))
    expected = samples
    if plain_name == "tfrecord":
        expected = [{field: as_feature(value) for field, value in row.items()} for row in samples]
    options = {"group_bytes": data.draw(st.sampled_from([1, 100, 1 << 20]))} if name in ("parquet", "arrow") else {}
    check_rows(name, samples, expected, **options)


def test_numbers_of_numpy_are_numbers_of_examples() -> None:
    sample = {"a": np.uint8(3), "b": np.bool_(True), "c": np.float32(0.5), "d": np.int64(-1)}
    assert plain(read_back("tfrecord", write("tfrecord", [sample])[0])) == plain(
        [{"a": [3], "b": [1], "c": [0.5], "d": [-1]}]
    )


def test_lists_of_lists_are_feature_lists() -> None:
    frames = [np.array([0.5, 1.0], dtype=np.float32), np.zeros(0, dtype=np.float32)]
    sample = {"frames": frames, "id": b"video", "images": ([b"a"], [b"b", "c"], []), "gaps": [None, [1, 2]], "none": []}
    expected = {
        "id": b"video",
        "none": [],
        "frames": frames,
        "images": [[b"a"], [b"b", b"c"], []],
        "gaps": [None, np.array([1, 2])],
    }
    chosen: list[list[Sample]] = [[sample], [{"x": [[1], [2, 3]]}, {"y": 1}]]
    for samples in chosen:
        data, _ = write("tfrecord", samples)
        again, _ = write("tfrecord", read_back("tfrecord", data))
        assert again == data or samples == [sample]  # its lists come last
        assert plain(read_back("tfrecord", again)) == plain(read_back("tfrecord", data))
    assert plain(read_back("tfrecord", write("tfrecord", [sample])[0])) == plain([expected])
    for wrong in ([[1], 2], [[1], "a"], [np.zeros((2, 2))], [[[1]]]):
        with pytest.raises(UsageError, match="'x' is"):
            write("tfrecord", [{"x": wrong}])


def test_raw_records() -> None:
    samples = [{"record": b"no example"}, {"record": b""}]
    check_rows("tfrecord", samples, samples)


def test_many_row_groups_and_large_ones() -> None:
    samples = [{"id": number, "x": bytes(1000 * (number % 200))} for number in range(150)]
    for name in ("parquet", "arrow"):
        check_rows(name, samples, samples, group_bytes=200_000)
        _, written = write(name, samples, group_bytes=200_000)
        assert 30 < len(written.scan.layout_crcs) < 100


@pytest.mark.parametrize("name", ["arrow", pytest.param("parquet", marks=pytest.mark.drill)])
def test_very_many_columns(name: str) -> None:
    """The schema and the head of each batch are larger than the bytes that are kept of other spans."""
    samples: list[Sample] = [{f"column {number:05d}": number + row for number in range(3000)} for row in range(3)]
    check(name, samples, samples, group_bytes=1)


@pytest.mark.parametrize("name", ["arrow", "parquet"])
def test_as_many_lists_in_lists_as_are_written_are_read(name: str) -> None:
    value: Any = [1]
    for _ in range(31):
        value = [value]
    check(name, [{"a": value}], [{"a": value}])
    with pytest.raises(UsageError, match="lists nested more than 32 deep"):
        write(name, [{"a": [[value]]}])


def test_columns_of_other_libraries_are_fields_of_a_tar() -> None:
    samples: list[Sample] = [{"__key__": "a", "__index_level_0__": 7, "__url__": "x", "__id__": 3, "text": "t"}]
    check("tar", samples, [{"__key__": "a", "__index_level_0__.cls": b"7", "text": b"t"}])


def test_a_field_inside_is_never_left_out_silently() -> None:
    inner = [{"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}]
    assert read_back("parquet", write("parquet", inner)[0]) == [{"a": {"b": 1, "c": None}}, inner[1]]
    deep = [{"a": [{"b": [{"c": 1}]}]}, {"a": [{"b": [{"d": 1}]}]}]
    for name in ("parquet", "arrow"):
        with pytest.raises(UsageError, match="no field 'c' in struct<b: int64>"):
            write(name, inner, group_bytes=1)
        with pytest.raises(UsageError, match="no field 'd'"):
            write(name, deep, group_bytes=1)


@pytest.mark.parametrize("name", ["tar", "jsonl", "mds", "tfrecord", "parquet", "arrow"])
def test_what_was_given_may_be_used_again_by_the_caller(name: str) -> None:
    encoder = encoder_named(name)
    sample: Sample = {"__key__": "", "list": [0], "array": np.zeros(2)}
    shard = encoder.begin()
    data = b""
    for number in range(3):
        sample["__key__"], sample["list"][0] = str(number), number
        sample["array"][:] = number
        data += b"".join(map(bytes, shard.add(encoder.record(sample))))
    data += b"".join(map(bytes, shard.finish()))
    fresh = [{"__key__": str(number), "list": [number], "array": np.full(2, float(number))} for number in range(3)]
    assert data == write(name, fresh)[0]


def test_times_of_any_unit_are_columns() -> None:
    import pyarrow as pa

    moments = [np.datetime64("2020-01-01T00:00:00.000000001"), datetime(2021, 1, 1), None]  # noqa: DTZ001  # as columns without a zone have it
    schema = pa.schema([("a", pa.timestamp("ns")), ("b", pa.duration("ns")), ("c", pa.uint64())])
    rows = [{"a": moment, "b": np.timedelta64(5, "ns"), "c": 2**64 - 1} for moment in moments]
    rows_read = read_back("parquet", write("parquet", rows, schema=schema)[0])
    assert [row["a"] for row in rows_read] == moments
    assert [row["b"] for row in rows_read] == [np.timedelta64(5, "ns")] * 3
    assert rows_read[0]["c"] == 2**64 - 1
    assert read_back("arrow", write("arrow", [{"c": 2**64 - 1}])[0]) == [{"c": 2**64 - 1}]
    with pytest.raises(UsageError, match="not a whole number of s"):
        write("parquet", [{"a": moments[0]}], schema=pa.schema([("a", pa.timestamp("s"))]))


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)


@pytest.mark.parametrize(
    ("name", "samples", "message"),
    [
        ("mds", [{"a": 1}, {"b": 1}], r"has the columns \['b'\]"),
        (
            "mds",
            [{"a": 1}, {"a": "x"}],
            "'a' is written as int, which cannot hold this value: str cannot be stored as int64",
        ),
        ("mds", [{"a": 2**63}], "written as int"),
        ("mds", [{"a": b""}, {"a": 3}], "int cannot be stored as bytes"),
        ("mds", [{"a": 0.5}, {"a": None}], "NoneType cannot be stored as float64"),
        ("mds", [{}], "has the columns"),
        ("parquet", [{"a": 1}, {"a": "x"}], "the column 'a' cannot hold 'x'"),
        ("parquet", [{"a": 1, "key": "k"}, {"a": {"b": 1}, "key": "l"}], "the sample 'l': the column 'a' cannot hold"),
        ("parquet", [{"a": {"x", "y"}}], "a set has no order"),
        ("parquet", [{"a": {}}], "no child field"),
        ("parquet", [{"a": RECURSIVE}], "lists nested more than 32 deep"),
        ("arrow", [{"a": "\udc80"}], "surrogates not allowed"),
        ("arrow", [{"\udc80": "a"}], "not valid text"),
        ("mds", [{1: 2}], "name of a field is 1"),
        ("arrow", [{1: 2}], "name of a field is 1"),
        ("tfrecord", [{1: 2}], "name of a field is 1"),
        ("tfrecord", [{"a": "\udc80"}], "'a' is not text"),
        ("tfrecord", [{"\udc80": "a"}], "not text"),
        ("tfrecord", [{"a": RECURSIVE}], "flatten arrays"),
        ("arrow", [{"a": np.zeros((2, 2))}, {"a": np.zeros((2, 3))}], r"shape \(2, 3\)"),
        ("tfrecord", [{"a": {"b": 1}}], "'a' is dict"),
        ("tfrecord", [{"a": 2**63}], "not a 64-bit integer"),
        ("tfrecord", [{"a": np.zeros((2, 2))}], "flatten arrays"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(name: str, samples: list[Sample], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write(name, samples)


def test_a_later_row_group_must_fit_the_first() -> None:
    with pytest.raises(UsageError, match=r"the column 'a', which is int64, cannot hold 'x'"):
        write("parquet", [{"a": 1}, {"a": "x"}], group_bytes=1)
    with pytest.raises(UsageError, match=r"no column 'b' in the shard \(a: int64\)"):
        write("parquet", [{"a": 1}, {"a": 2, "b": 3}], group_bytes=1)


def test_declared_columns_and_schemas() -> None:
    samples = [{"image": b"\xff\xd8", "n": 3, "x": np.zeros(2, np.float32)}]
    data, _ = write("mds", samples, columns={"image": "bytes", "n": "uint8", "x": "ndarray:float32:2"})
    assert plain(read_back("mds", data)) == plain(samples)
    import pyarrow as pa

    schema = pa.schema([("a", pa.int8()), ("b", pa.string())])
    data, _ = write("parquet", [{"a": 1}, {"b": "x"}], schema=schema, compression="none")
    assert read_back("parquet", data) == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_unknown_formats_and_options_are_refused() -> None:
    with pytest.raises(UsageError, match="no format 'zip' to write"):
        encoder_named("zip")
    with pytest.raises(UsageError, match="does not take level="):
        encoder_named("tar", level=3)


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, [{"x": [{None: 1}]}], {"x": {True: 1}}, ({2.5: 1},)])
@pytest.mark.parametrize("name", ["jsonl", "tar", "mds"])
def test_keys_that_json_would_make_text_of_are_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match="keys of JSON are text"):
        encoder_named(name).record({"__key__": "k", "meta": value})


@pytest.mark.parametrize("value", [np.datetime64(5, "ns"), np.timedelta64(5, "ns"), np.datetime64("2020-01-01")])
@pytest.mark.parametrize("name", ["jsonl", "mds", "tfrecord"])
def test_times_of_numpy_do_not_become_numbers(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=r"datetime64|timedelta64"):
        encoder_named(name).record({"time": value})


@pytest.mark.parametrize("value", [3.5e38, -1e300, [1.0, 1e39], np.array([1e39]), np.float64(1e39)])
def test_numbers_beyond_float32_do_not_become_infinite(value: object) -> None:
    with pytest.raises(UsageError, match=r"beyond float32|e\+"):
        encoder_named("tfrecord").record({"x": value})
    if np.ndim(value) == 0:  # type: ignore[arg-type]  # of any type
        with pytest.raises(UsageError, match="which cannot hold this value"):
            encoder_named("mds", columns={"x": "float32"}).record({"x": value})
    for fine in (float("inf"), float("-inf"), float("nan"), 3e38):
        encoder_named("tfrecord").record({"x": fine})
        encoder_named("mds", columns={"x": "float32"}).record({"x": fine})


def test_whole_numbers_that_a_float_does_not_hold_are_no_floats_of_mds() -> None:
    encoder = encoder_named("mds")
    encoder.record({"x": 0.5})
    encoder.record({"x": 2**53})
    with pytest.raises(UsageError, match="9007199254740993 cannot be stored as float64"):
        encoder.record({"x": 2**53 + 1})


class Colour(str, enum.Enum):  # noqa: UP042  # its str() is "Colour.RED", as in Python 3.10
    RED = "red"


class Level(int, enum.Enum):
    LOW = 3


def test_members_of_enumerations_are_written_as_their_values() -> None:
    parts = encoder_named("tar").record({"__key__": "k", "colour": Colour.RED, "level": Level.LOW}).parts
    assert [bytes(part) for part in parts[1::3]] == [b"red", b"3"]
