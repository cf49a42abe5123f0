"""TFRecord framing and ``tf.train.Example``, against messages written field by field."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.writers import COMPRESS, example, feature, field, framed

from shoal.errors import ShardError
from shoal.formats.format_registry import format_named
from shoal.formats.rows.records import CutRecords
from shoal.formats.rows.tfrecord import reader
from shoal.formats.rows.tfrecord.crc32c import crc32c, crc32c_of_rows
from shoal.formats.rows.tfrecord.reader import TFRecord
from shoal.formats.rows.tfrecord.tf_example import NotAnExampleError, parse_example
from shoal.formats.shard_format import Span
from shoal.index.shard_scan import ShardScan

pytest.importorskip("google_crc32c")


INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    st.lists(st.binary(max_size=20), min_size=2, max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), max_size=40).map(lambda items: np.array(items, dtype=np.float32)),
    st.lists(INT64, max_size=40).map(lambda items: np.array(items, dtype=np.int64)),
)


def scan(data: bytes, **options: Any) -> ShardScan:
    return TFRecord(**options).scan(lambda first, end: data[first:end], len(data), shard="a.tfrecord")


def parse(data: bytes, found: ShardScan, *, with_starts: bool = True) -> CutRecords:
    starts = found.sample_starts.tolist() if with_starts else None
    return TFRecord().parse(data, Span("a.tfrecord", 0, found.num_samples, starts, found.head))


def test_checksums_are_the_published_ones() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4, has more
    assert crc32c(bytes(32)) == 0x8A9136AA
    rows = np.frombuffer(b"12345678923456789a", dtype=np.uint8).reshape(2, 9)
    assert crc32c_of_rows(rows).tolist() == [crc32c(b"123456789"), crc32c(b"23456789a")]
    # A record of TensorFlow's: the masked checksums of an empty one.
    assert framed(b"").hex() == "0000000000000000" + "29039807" + "d8ea82a2"


@given(features=st.dictionaries(st.text(max_size=5), VALUES, max_size=5), packed=st.booleans())
def test_an_example_gives_what_was_put_into_it(features: dict[str, Any], packed: bool) -> None:
    found = parse_example(example(features, packed=packed))
    assert list(found) == list(features)
    for name, value in features.items():
        if isinstance(value, list):
            assert found[name] == value
        else:
            assert found[name].dtype == value.dtype
            assert np.array_equal(found[name], value)


def test_one_value_of_bytes_is_no_list_and_no_value_is_empty() -> None:
    data = example({"image": [b"png"], "label": np.array([-3]), "none": np.zeros(0, dtype=np.float32)})
    found = parse_example(data)
    assert found["image"] == b"png"
    assert found["label"].tolist() == [-3]
    assert found["none"].shape == (0,)
    assert parse_example(field(1, field(1, field(1, b"x") + field(2, b"")))) == {"x": None}
    assert parse_example(field(1, b"")) == {}


def sequence_example(context: dict[str, Any], lists: dict[str, list[Any]]) -> bytes:
    entries = [
        field(1, field(1, n.encode()) + field(2, b"".join(field(1, feature(v)) for v in of))) for n, of in lists.items()
    ]
    return (example(context) if context else b"") + field(2, b"".join(entries))


def test_a_sequence_example_has_its_context_and_its_lists() -> None:
    frames = [np.arange(3, dtype=np.float32), np.zeros(0, dtype=np.float32)]
    lists: dict[str, list[Any]] = {"frames": frames, "images": [[b"one"], [], [b"a", b"b"]], "none": []}
    data = sequence_example({"id": [b"video"], "labels": np.array([3, 5])}, lists)
    found = parse_example(data)
    assert list(found) == ["id", "labels", "frames", "images", "none"]
    assert found["id"] == b"video"
    assert found["labels"].tolist() == [3, 5]
    assert [(step.dtype, step.tolist()) for step in found["frames"]] == [(step.dtype, step.tolist()) for step in frames]
    assert found["images"] == [[b"one"], [], [b"a", b"b"]]
    assert found["none"] == []
    assert parse_example(sequence_example({}, {"x": [[b"y"]]})) == {"x": [[b"y"]]}
    with pytest.raises(NotAnExampleError, match="'x' is a feature of its context and a feature list"):
        parse_example(sequence_example({"x": [b"y"]}, {"x": [[b"y"]]}))


def test_a_shard_may_have_examples_with_lists_and_without() -> None:
    records = [example({"n": np.array([0])}), sequence_example({"n": np.array([1])}, {"l": [[b"x"]]}), field(2, b"")]
    data = b"".join(map(framed, records))
    opened = parse(data, scan(data))
    assert [{name: value for name, value in opened.sample(n).items() if name == "l"} for n in range(3)] == [
        {},
        {"l": [[b"x"]]},
        {},
    ]
    assert opened.sample(1)["n"].tolist() == [1]


@pytest.mark.parametrize(
    "unknown",
    [field(3, b"more"), b"\x18\x01", b"\x1d\0\0\0\0", b"\x08\x01"],
    ids=["bytes", "number", "fixed", "of another type"],
)
def test_fields_that_no_example_has_are_not_left_out(unknown: bytes) -> None:
    good = example({"n": np.array([0])})
    with pytest.raises(NotAnExampleError, match="which such a message does not have"):
        parse_example(good + unknown)
    data = framed(good + unknown) + framed(good)
    assert parse(data, scan(data)).sample(0) == {"record": good + unknown}
    data = framed(good) + framed(good + unknown)
    with pytest.raises(ShardError, match="this record is not: a field has the number") as caught:
        parse(data, scan(data)).sample(1)
    assert caught.value.byte == len(framed(good)) + 12 + len(good)
    assert "examples=False" in (caught.value.hint or "")


def test_what_comes_in_several_parts_is_merged_as_protobuf_does() -> None:
    """Fields that are messages are merged, of others, and of the entries of a map, the last counts."""
    one, two, three = (feature(np.array([number])) for number in (1, 2, 3))
    text = feature([b"a"])

    def of(entry: bytes) -> Any:
        return parse_example(field(1, field(1, entry)))

    named = field(1, b"x")
    # A list in two parts, in one feature or in the two halves of one.
    for entry in (field(2, one + two), field(2, one) + field(2, two)):
        assert of(named + entry)["x"].tolist() == [1, 2]
    assert of(named + field(2, text + feature([b"b"])))["x"] == [b"a", b"b"]
    # Another kind takes the place of those before.
    assert of(named + field(2, one + text)) == {"x": b"a"}
    assert of(named + field(2, one + text) + field(2, three))["x"].tolist() == [3]
    # A name that comes twice is two entries.
    twice = field(1, field(1, named + field(2, one)) + field(1, named + field(2, two)))
    assert parse_example(twice)["x"].tolist() == [2]
    # Features and lists in two parts; and a list whose entry has two.
    parts = field(1, field(1, named + field(2, one))) + field(1, field(1, field(1, b"y") + field(2, two)))
    assert {name: value.tolist() for name, value in parse_example(parts).items()} == {"x": [1], "y": [2]}
    steps = field(2, field(1, one)) + field(2, field(1, two))
    assert [step.tolist() for step in parse_example(field(2, field(1, named + steps)))["x"]] == [[1], [2]]


def test_a_huge_first_record_is_told_by_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_HUGE_RECORD_BYTES", 100)
    records = {
        "examples": [example({"x": [bytes(200)]}), sequence_example({"x": [bytes(200)]}, {"y": [[bytes(300)]]})],
        None: [
            bytes(200),
            b"\x0a" + bytes(200),
            example({"x": [bytes(200)]})[:-1],
            example({"x": [bytes(200)]}) + b"\x0a",
        ],
    }
    for kind, chosen in records.items():
        for record in chosen:
            data = framed(record) + framed(record)
            assert scan(data, window_bytes=64).head.get("records") == kind
            packed = COMPRESS["gz"](data)
            found = format_named("tfrecord.gz").scan(lambda a, b, packed=packed: packed[a:b], len(packed), shard="a")
            assert found.head["inner"].get("records") == kind


@given(data=st.binary(max_size=60))
def test_any_bytes_are_an_example_or_refused(data: bytes) -> None:
    try:
        parse_example(data)
    except NotAnExampleError as error:
        assert 0 <= error.byte <= len(data)  # noqa: PT017


@given(records=st.lists(st.binary(max_size=300), max_size=12), window_bytes=st.sampled_from([12, 40, 1000]))
def test_records_are_found_and_given_back(records: list[bytes], window_bytes: int) -> None:
    data = b"".join(map(framed, records))
    found = scan(data, examples=False, window_bytes=window_bytes)
    assert np.diff(found.sample_starts).tolist() == [len(record) + 16 for record in records]
    for with_starts in (True, False):
        opened = parse(data, found, with_starts=with_starts)
        assert opened.layout_crcs().tolist() == found.layout_crcs.tolist()
        assert [opened.sample(number)["record"] for number in range(len(opened))] == records


def test_a_shard_of_examples_gives_their_features() -> None:
    data = b"".join(framed(example({"label": np.array([number, 1])})) for number in range(5))
    found = scan(data)
    assert found.head == {"records": "examples"}
    opened = parse(data, found)
    assert [opened.sample(number)["label"].tolist() for number in range(5)] == [[n, 1] for n in range(5)]
    other = framed(example({"label": np.array([0])})) + framed(b"\x07")
    with pytest.raises(ShardError, match="this record is not") as caught:
        parse(other, scan(other)).sample(1)
    assert caught.value.byte == len(other) - 5


def test_only_headers_of_large_records_are_read() -> None:
    data = b"".join(framed(bytes(400_000)) for _ in range(8))
    num_read = 0

    def read(first: int, end: int) -> bytes:
        nonlocal num_read
        num_read += end - first
        return data[first:end]

    TFRecord(examples=False, window_bytes=65536).scan(read, len(data), shard="a.tfrecord")
    first_record = 400_000 + 16  # looked into for what records of this shard are
    assert num_read <= 65536 + 8 * 12 + first_record


@given(
    records=st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_is_never_a_wrong_sample(records: list[bytes], place: float, bit: int) -> None:
    data = bytearray(b"".join(map(framed, records)))
    found = scan(bytes(data), examples=False)
    at = int(place * len(data))
    data[at] ^= 1 << bit
    opened = parse(bytes(data), found)
    number = int(np.searchsorted(found.sample_starts, at, side="right")) - 1
    with pytest.raises(ShardError) as caught:
        opened.sample(number)
    assert found.sample_starts[number] <= (caught.value.byte or 0) <= at
    assert [opened.sample(i)["record"] for i in range(len(records)) if i != number] == [
        record for i, record in enumerate(records) if i != number
    ]


@pytest.mark.parametrize("cut", [1, 5, 13, 20])
def test_a_truncated_shard_is_refused_with_the_byte_of_its_last_record(cut: int) -> None:
    data = framed(b"whole") + framed(b"cut short")
    with pytest.raises(ShardError) as caught:
        scan(data[:-cut], examples=False)
    assert caught.value.byte == len(framed(b"whole"))


def test_other_files_are_refused() -> None:
    for data in (b"x", b"\x1f\x8b" + bytes(40), b"a" * 4096, bytes(12), struct.pack("<Q", 2**63) + bytes(40)):
        with pytest.raises(ShardError):
            scan(data)
    assert scan(b"").num_samples == 0
