"""Columns that `shoal index --columns` reads from the samples: they are what iterating over the dataset gives."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import write_tar

from shoal.errors import ShardError, UsageError
from shoal.formats.column_paths import as_columns, length_of, plain_value
from shoal.formats.writing.written_formats import WRITTEN_FORMATS
from shoal.index.table import Index
from shoal.indexing.open_source import open_source
from shoal.indexing.opened_dataset import Opened
from shoal.pack import Writer
from shoal.pipeline.sample_columns import added_columns, column_scan, kept_parts
from shoal.pipeline.sample_columns.added_columns import add_columns
from shoal.storage.files.local_store import LocalStore
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec

DATA = Path(__file__).parent.parent / "formats" / "data"
GUIDES = Path(__file__).parent.parent / "guides"


def samples_of(opened: Opened) -> list[dict[str, Any]]:
    """All samples in the order of their ids."""
    return list(Dataset(DatasetSpec.of(opened)))


def values_of(index: Index, name: str) -> list[Any]:
    """The values of a column, texts as texts."""
    column, words = index.columns[name].tolist(), index.metadata.get("texts", {}).get(name)
    return column if words is None else [words[code] for code in column]


def added(source: Any, *columns: str, missing: Mapping[str, Any] | None = None, **options: Any) -> tuple[Opened, Index]:
    """The dataset and its index with columns."""
    opened = open_source(source, **options)
    index = add_columns(opened, as_columns(columns), missing=missing)
    assert index.fingerprint == opened.index.fingerprint
    return opened, index


def plain(value: Any) -> Any:
    """A stored value as the number or text that it means: bytes are text, and decimal digits a number."""
    if isinstance(value, np.ndarray):
        return value.item()
    if isinstance(value, bytes):
        text = value.decode()
        return int(text) if text.isdecimal() and (text == "0" or text[0] != "0") else text
    return value


def rows(number: int) -> list[dict[str, Any]]:
    """Samples that every format can hold."""
    return [
        {"label": i % 7, "text": "wörd " * (i % 5) + "end", "score": i / 4, "data": bytes(i % 3)} for i in range(number)
    ]


def stored_as(format_name: str, row: dict[str, Any]) -> dict[str, Any]:
    """A sample as the format takes it."""
    plain_name = format_name.partition(".")[0]
    if plain_name == "tar":
        return {key: value if isinstance(value, bytes) else str(value).encode() for key, value in row.items()}
    return {key: value for key, value in row.items() if plain_name != "jsonl" or key != "data"}


@pytest.mark.parametrize("format_name", WRITTEN_FORMATS)
def test_columns_of_every_written_format_are_those_of_its_samples(format_name: str, tmp_path: Path) -> None:
    if format_name.startswith("parquet") or format_name == "arrow":
        pytest.importorskip("pyarrow")
    options = {"columns": {"label": "int", "text": "str", "score": "float64", "data": "bytes"}}
    options = options if format_name.startswith("mds") else {}
    with Writer(tmp_path / "data", format=format_name, shard_bytes=1500, options=options) as writer:
        for number, row in enumerate(rows(120)):
            key = {"__key__": f"{number:04d}"} if format_name.startswith("tar") else {}
            writer.write(key | stored_as(format_name, row))
    opened, index = added(
        tmp_path / "data", "label", "text", "size=text:len", *(() if "tar" in format_name else ["score"])
    )
    samples = samples_of(opened)
    assert opened.index.num_shards > 1
    for name in ("label", "text"):
        assert values_of(index, name) == [plain(sample[name]) for sample in samples]
    assert values_of(index, "size") == [len(sample["text"]) for sample in samples]
    assert index.columns["label"].dtype == np.int64
    if "tar" not in format_name:
        assert values_of(index, "score") == [plain(sample["score"]) for sample in samples]
        assert index.columns["score"].dtype == np.float64


@pytest.mark.parametrize(
    ("source", "columns", "options"),
    [
        (GUIDES / "litdata", ["id", "text", "text:len"], {}),
        (GUIDES / "mds", ["id", "text", "text:len"], {}),
        (DATA / "hf" / "rows.parquet", ["label"], {}),
        (DATA / "hf" / "saved", ["label"], {}),
    ],
)
def test_columns_of_what_others_wrote(source: Path, columns: list[str], options: dict[str, Any]) -> None:
    if "hf" in str(source):
        pytest.importorskip("pyarrow")
    opened, index = added(source, *columns, **options)
    for sample_id, sample in enumerate(samples_of(opened)):
        for name in columns:
            value = sample[name.removesuffix(":len")]
            expected = len(value) if name.endswith(":len") else plain(value)
            assert values_of(index, name)[sample_id] == expected


def test_class_labels_of_hugging_face_bring_their_names() -> None:
    pytest.importorskip("pyarrow")
    opened, index = added(DATA / "hf" / "rows.parquet", "kind=label")
    named = Dataset(DatasetSpec.of(open_source_with(opened, index)))
    assert named.class_names("kind") == ("cat", "dog")
    assert named.select(kind="dog").num_samples == int((index.columns["kind"] == 1).sum())


def open_source_with(opened: Opened, index: Index) -> Opened:
    """The same dataset with another index."""
    return Opened(opened.store, index, opened.paths, opened.format, None, opened.check)


def test_lines_of_text_and_tables_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo words\n3\n")
    (tmp_path / "b.csv").write_text("label,name\n3,x\n4,y\n")
    _, index = added(tmp_path / "a.txt", "text:len", "text")
    assert (values_of(index, "text:len"), values_of(index, "text")) == ([3, 9, 1], ["one", "two words", "3"])
    opened, index = added(tmp_path / "b.csv", "label", "name")
    assert values_of(index, "label") == [sample["label"] for sample in samples_of(opened)]
    assert values_of(index, "name") == ["x", "y"]


def test_rows_beside_files(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(b"1" * number + b"2")
    (tmp_path / "metadata.jsonl").write_text(
        "".join(json.dumps({"file_name": f"{n}.jpg", "caption": f"c{n % 2}"}) + "\n" for n in range(4))
    )
    _, index = added(tmp_path, "caption", "size=jpg:len", "length", format="folder")
    assert values_of(index, "caption") == ["c0", "c1", "c0", "c1"]
    assert values_of(index, "size") == [1, 2, 3, 4]


def write_json_tar(path: Path, objects: Sequence[Any], **more: bytes) -> Path:
    """A tar whose samples have a JSON member."""
    samples = [
        {"__key__": f"{n:04d}".encode(), "json": json.dumps(each).encode(), **more} for n, each in enumerate(objects)
    ]
    write_tar(path, samples)
    return path


JSON_VALUES = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30),
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=30),
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=9), min_size=1, max_size=30),
)


@settings(max_examples=25)
@given(values=JSON_VALUES)
def test_any_value_is_found_in_any_format(values: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("any")
    objects = [{"a": {"b": value}, "v": value} for value in values]
    (directory / "x.jsonl").write_text("".join(json.dumps(each) + "\n" for each in objects))
    write_json_tar(directory / "x.tar", objects)
    sources = [(directory / "x.jsonl", "v"), (directory / "x.jsonl", "a.b"), (directory / "x.tar", "json.a.b")]
    sources += [(directory / "x.tar", "v"), (directory / "x.tar", "a.b")]
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(objects), directory / "x.parquet", row_group_size=7)
        sources += [(directory / "x.parquet", "v"), (directory / "x.parquet", "a.b")]
    except ImportError:
        pass
    for source, path in sources:
        _, index = added(source, f"c={path}")
        assert values_of(index, "c") == values, (source, path)
        assert index.columns["c"].dtype in (np.int64, np.float64, np.bool_, np.int32)


def test_texts_are_numbered_by_their_sorted_words(tmp_path: Path) -> None:
    path = write_json_tar(tmp_path / "x.tar", [{"lang": word} for word in ["fr", "de", "en", "de"]])
    _, index = added(path, "lang")
    assert index.metadata["texts"]["lang"] == ["de", "en", "fr"]
    assert index.columns["lang"].tolist() == [2, 0, 1, 0]


def test_many_spans_are_joined_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_scan, "_READ_BYTES", 1000)
    for shard in range(3):
        lines = ({"w": f"w{(i * 7 + shard) % 31}", "n": i if shard else i / 2, "pad": "x" * 90} for i in range(3000))
        (tmp_path / f"{shard}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    opened = open_source(tmp_path)
    calls: list[tuple[int, int]] = []
    index = add_columns(opened, as_columns(["w", "n"]), progress=lambda done, total: calls.append((done, total)))
    samples = samples_of(opened)
    assert values_of(index, "w") == [sample["w"] for sample in samples]
    assert values_of(index, "n") == [sample["n"] for sample in samples]
    assert index.columns["n"].dtype == np.float64
    assert len(calls) > 9
    assert calls[-1] == (opened.index.num_bytes, opened.index.num_bytes)
    assert calls == sorted(calls)


# ---- missing values


def test_missing_values_are_counted_and_refused_or_replaced(tmp_path: Path) -> None:
    objects: list[Any] = [{"n": i, "w": f"w{i}", "f": i / 2, "t": True} if i % 3 else {"n": None} for i in range(1, 11)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(each) + "\n" for each in objects))
    for source in (tmp_path / "x.jsonl", write_json_tar(tmp_path / "x.tar", objects)):
        with pytest.raises(UsageError, match="3 of 10 samples lack one, first sample 2") as caught:
            added(source, "n")
        assert 'index_columns={"n": VALUE}' in caught.value.hint
        missing = {"n": "-1", "w": "?", "f": "nan", "t": "false"}
        _, index = added(source, "n", "w", "f", "t", missing=missing)
        assert values_of(index, "n") == [each["n"] if "w" in each else -1 for each in objects]
        assert values_of(index, "w") == [each.get("w", "?") for each in objects]
        assert np.isnan(index.columns["f"]).sum() == 3
        assert values_of(index, "t") == [each.get("t", False) for each in objects]
        assert index.metadata["column_sources"]["n"]["num_missing"] == 3
        with pytest.raises(UsageError, match="'none' was given for missing ones"):
            added(source, "n", missing={"n": "none"})
        with pytest.raises(UsageError, match="is not a requested column"):
            added(source, "n", missing={"m": 0})


def test_a_null_of_parquet_is_missing(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    columns = {"n": [1, None, 3], "w": ["a", None, "b"], "l": [[1, 2], None, []], "b": [True, None, False]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    missing = {"n": -1, "w": "", "l:len": 0, "w:len": -5, "b": True}
    _, index = added(tmp_path / "x.parquet", "n", "w", "l:len", "w:len", "b", missing=missing)
    found = {name: values_of(index, name) for name in missing}
    assert found == {
        "n": [1, -1, 3], "w": ["a", "", "b"], "l:len": [2, 0, 0], "w:len": [1, -5, 1], "b": [True, True, False],
    }  # fmt: skip


# ---- what is refused


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, "a"], "an integer in sample 0 .*, but a text in sample 1 "),
        ([1.5, None, "a"], "a floating number in sample 0 .*, but a text in sample 2 "),
        ([True, 2], "a boolean in sample 0 .*, but an integer in sample 1 "),
        ([0.5, 2**53 + 1], "sample 1 .*the integer 9007199254740993"),
        ([2**64], "an integer beyond 64 bits in sample 0 "),
        ([{"x": 1}], "sample 0 .*has a dict there"),
        ([[1, 2, 3]], "sample 0 .*has a list there"),
    ],
)
@pytest.mark.parametrize("span_bytes", [1, 4 << 20])
def test_values_of_several_kinds_are_refused_with_their_samples(
    values: list[Any], words: str, span_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_scan, "_READ_BYTES", span_bytes)
    for number, value in enumerate(values):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"v": value}) + "\n")
    with pytest.raises(UsageError, match=words):
        added(tmp_path, "v", missing={"v": 0})


def test_numerals_among_the_texts_of_tar_members_are_texts(tmp_path: Path) -> None:
    for shard, words in enumerate((["1", "2"], ["x", "7"], ["3", "2"])):
        write_tar(tmp_path / f"{shard}.tar", [{"__key__": b"%d" % n, "id": w.encode()} for n, w in enumerate(words)])
    _, index = added(tmp_path, "id")
    assert values_of(index, "id") == ["1", "2", "x", "7", "3", "2"]


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [{"__key__": b"1", "jpg": b"\xff\xfe"}])
    with pytest.raises(UsageError, match="has bytes that are not text") as caught:
        added(tmp_path, "jpg")
    assert "jpg:len" in caught.value.hint


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("lable", "'label'"),
        ("lang", ""),
        ("json.lang", ""),
        ("clss", "'cls'"),
        ("lable:len", "'label'"),
    ],
)
def test_a_wrong_name_is_refused_with_what_was_meant(asked: str, meant: str, tmp_path: Path) -> None:
    write_json_tar(tmp_path / "x.tar", [{"label": 1, "meta": {"lang": "de"}}], cls=b"1")
    with pytest.raises(UsageError, match=f"the first samples have no '{asked}'") as caught:
        added(tmp_path, asked)
    assert meant in caught.value.hint
    assert "they have __key__, json, cls, label, meta" in caught.value.hint


def test_a_bare_name_means_one_thing_in_all_samples(tmp_path: Path) -> None:
    one = {"__key__": b"1", "json": b'{"n": 1}'}
    write_tar(tmp_path / "two.tar", [one | {"meta.json": b'{"n": 2}'}])
    with pytest.raises(UsageError, match=r"'n' could be json.n or meta.json.n: sample 0 .* has both"):
        added(tmp_path / "two.tar", "n")
    _, index = added(tmp_path / "two.tar", "n=meta.json.n")
    assert values_of(index, "n") == [2]
    write_tar(tmp_path / "mixed.tar", [one, one | {"__key__": b"2", "n": b"5"}])
    with pytest.raises(UsageError, match=r"found at 'json.n' in some samples, but at 'n' in sample 1"):
        added(tmp_path / "mixed.tar", "n")


def test_a_damaged_sample_is_an_error_with_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"n": i}) + "\n" for i in range(100)))
    opened = open_source(path)
    data = path.read_bytes()
    byte = data.index(b'"n": 20')
    stat = path.stat()
    path.write_bytes(data[:byte] + b"?" + data[byte + 1 :])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(ShardError, match=r"x.jsonl, byte \d+: this line is not JSON") as caught:
        add_columns(opened, as_columns("n"))
    assert caught.value.byte == byte


def test_only_the_pages_of_the_columns_are_read_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rng_bytes = [bytes((i * j) % 251 for j in range(3000)) for i in range(200)]
    table = pa.table({"n": list(range(200)), "blob": rng_bytes, "w": ["a", "b"] * 100})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=50, compression="none", use_dictionary=["w"])
    opened = open_source(tmp_path / "x.parquet")
    num_read = 0
    read_range = LocalStore.read_range

    def counted(store: LocalStore, path: str, first: int, end: int) -> bytes:
        nonlocal num_read
        num_read += end - first
        return read_range(store, path, first, end)

    monkeypatch.setattr(LocalStore, "read_range", counted)
    index = add_columns(opened, as_columns(["n", "w"]))
    assert index.columns["n"].tolist() == list(range(200))
    assert 0 < num_read < opened.index.num_bytes / 50


# ---- the index


def test_columns_are_added_to_those_there_are(tmp_path: Path) -> None:
    path = write_json_tar(tmp_path / "x.tar", [{"a": i, "b": f"b{i}"} for i in range(5)], cls=b"1")
    opened, index = added(path, "a", "b")
    again = open_source_with(opened, index)
    more = add_columns(again, as_columns(["a", "cls"]))
    assert list(more.columns) == ["a", "b", "cls"]
    assert more.columns["a"] is index.columns["a"]
    assert more.metadata["texts"] == {"b": [f"b{i}" for i in range(5)]}
    with pytest.raises(UsageError, match=r"the index has 'a' already, read from 'json.a'") as caught:
        add_columns(again, as_columns("a=cls"))
    assert "NAME=cls" in caught.value.hint
    for name in ("bytes", "shard", "sample_bytes"):
        with pytest.raises(UsageError, match=f"the index has '{name}' already"):
            add_columns(opened, as_columns(f"{name}=json.a"))


def test_texts_that_fit_no_header_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_json_tar(tmp_path / "x.tar", [{"a": f"text {i}"} for i in range(50)])
    monkeypatch.setattr(added_columns, "_MOST_TEXT_BYTES", 100)
    with pytest.raises(UsageError, match=r"'a' has 50 different texts, \d+ bytes in an index file, which may hold 100"):
        added(path, "a")


def test_a_scan_that_ended_early_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_parts, "SMALL_BYTES", 0)
    for shard in range(4):
        objects = [{"a": i / 4, "w": f"w{i % 3}"} | ({"n": i} if i % 5 else {}) for i in range(40)]
        write_json_tar(tmp_path / f"{shard}.tar", objects)
    opened = open_source(tmp_path)
    read_range, was_read = LocalStore.read_range, list[str]()

    def counted(store: LocalStore, path: str, first: int, end: int) -> bytes:
        if end > first:
            if len(was_read) == limit:
                raise KeyboardInterrupt
            was_read.append(Path(path).name)
        return read_range(store, path, first, end)

    columns, limit = as_columns(["a", "w", "n"]), 2
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(LocalStore, "read_range", counted)
    with pytest.raises(KeyboardInterrupt):
        add_columns(opened, columns)
    assert was_read == ["0.tar", "1.tar"]
    limit = 100
    with pytest.raises(UsageError, match="32 of 160 samples lack one"):
        add_columns(opened, columns)
    assert was_read == ["0.tar", "1.tar", "2.tar", "3.tar"]
    index = add_columns(opened, columns, missing={"n": -1})
    assert len(was_read) == 4  # nothing is read again to give missing ones a value
    samples = [json.loads(sample["json"]) for sample in samples_of(opened)]
    assert values_of(index, "a") == [sample["a"] for sample in samples]
    assert values_of(index, "w") == [sample["w"] for sample in samples]
    assert values_of(index, "n") == [sample.get("n", -1) for sample in samples]
    assert not list((tmp_path / "cache").rglob("*.columns"))


@pytest.mark.parametrize("name", ["{:04d}", "{:04d}-a-name-that-is-too-long-for-the-field-of-a-header-" + "x" * 60])
def test_large_members_of_a_tar_are_not_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(20):
            members = {"jpg": bytes(200_000 + number), "json": b'{"label": %d}' % number, "cls": b"%d" % (number % 3)}
            for field, data in members.items():
                member = tarfile.TarInfo(f"{name.format(number)}.{field}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    opened = open_source(tmp_path)
    num_read, pread = 0, os.pread

    def counted(descriptor: int, num_bytes: int, first_byte: int) -> bytes:
        nonlocal num_read
        num_read += num_bytes
        return pread(descriptor, num_bytes, first_byte)

    monkeypatch.setattr(os, "pread", counted)
    index = add_columns(opened, as_columns(["label", "cls", "size=jpg:len", "length"]))
    num_bytes = opened.index.num_bytes
    assert num_read < num_bytes / 50 if name == "{:04d}" else num_read >= num_bytes * 0.9
    monkeypatch.undo()
    samples = samples_of(opened)
    assert values_of(index, "label") == [json.loads(sample["json"])["label"] for sample in samples]
    assert values_of(index, "cls") == [int(sample["cls"]) for sample in samples]
    assert values_of(index, "size") == [len(sample["jpg"]) for sample in samples]
    sizes = [sum(len(value) for key, value in sample.items() if key != "__key__") for sample in samples]
    assert values_of(index, "length") == sizes


def _noted(calls: list[tuple[int, int]], done: int, total: int) -> None:
    calls.append((done, total))


def test_row_groups_that_shrink_much_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": [7] * 200_000}), tmp_path / "x.parquet", row_group_size=10_000)
    opened = open_source(tmp_path)
    for limit_bytes, num_spans in ((160_000, 10), (1, 20), (16 << 20, 1)):
        monkeypatch.setattr(column_scan, "_SPAN_DECODED_BYTES", limit_bytes)
        calls = list[tuple[int, int]]()
        index = add_columns(opened, as_columns("n"), progress=partial(_noted, calls))
        assert len(calls) == num_spans
        assert calls[-1][0] == calls[-1][1] <= opened.index.num_bytes
        assert index.columns["n"].sum() == 7 * 200_000


ARROW_TYPES = (
    *(
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bool",
    ),
    *("string", "large_string", "string_view", "dictionary", "binary", "large_binary", "binary[2]"),
    *("list<int16>", "list<string>", "large_list<float>", "fixed list", "struct"),
)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("kind", ARROW_TYPES)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_every_type_of_arrow(suffix: str, kind: str, gaps: bool, tmp_path: Path) -> None:
    """Columns taken from tables whole are what reading sample by sample gives; so are those inside of structs."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    types: dict[str, Any] = {
        "bool": pa.bool_(), "dictionary": pa.dictionary(pa.int8(), pa.string()), "binary[2]": pa.binary(2),
        "list<int16>": pa.list_(pa.int16()), "list<string>": pa.list_(pa.string()),
        "large_list<float>": pa.large_list(pa.float32()), "fixed list": pa.list_(pa.int32(), 2),
        "struct": pa.struct({"x": pa.int16(), "y": pa.string()}),
    }  # fmt: skip
    arrow = types[kind] if kind in types else getattr(pa, kind)()
    width = 2 if kind in ("binary[2]", "fixed list") else None
    makes: dict[str, Any] = {
        "string": lambda i: f"ü{i % 3}" * (i % 4), "bool": lambda i: i % 2 == 0, "binary": lambda i: b"ab" * (i % 3),
        "list": lambda i: [i] * (i % 4), "list<string>": lambda i: [f"{i}"] * (i % 4),
        "struct": lambda i: {"x": i, "y": f"y{i % 5}"}, "binary[2]": lambda i: b"%02d" % i, "fixed": lambda i: [i, i],
    }  # fmt: skip
    words = ("struct", "list<string>", "binary[2]", "fixed", "list", "binary", "bool", "string")
    make = makes.get(next((word for word in words if word in kind.replace("dictionary", "string")), ""), int)
    values = [None if kind == "null" or (gaps and i % 5 == 1) else make(i) for i in range(40)]
    assert width is None or all(value is None or len(value) == width for value in values)
    table = pa.table({"v": pa.array(values, arrow), "s": pa.array([{"v": v} for v in values], pa.struct({"v": arrow}))})
    if suffix == "parquet":
        sliced = None if kind == "string_view" else 13  # pyarrow cannot slice views
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=sliced)
    else:
        with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=13)
    samples = samples_of(open_source(tmp_path))
    for path, stored in (("v", [s["v"] for s in samples]), ("s.v", [s["s"]["v"] for s in samples])):
        lengths = [None if value is None else length_of(value) for value in stored]
        if all(value is None for value in stored):
            with pytest.raises(UsageError, match=r"the first samples have no|none of the 40"):
                added(tmp_path, path)
        elif any(isinstance(value, list | dict | np.ndarray) for value in stored):
            with pytest.raises(UsageError, match=r"has a (list|dict|ndarray) there"):
                added(tmp_path, path, missing={path: 0})
        else:
            default = {str: "x", bytes: "x", bool: False}.get(type(make(1)), 0)
            _, index = added(tmp_path, path, missing={path: default})
            expected = [default if value is None else plain_value(value) for value in stored]
            if isinstance(make(1), bytes):
                assert list(map(str, values_of(index, path))) == list(map(str, expected))
            else:
                assert values_of(index, path) == expected
        if any(length is not None for length in lengths):
            _, index = added(tmp_path, f"{path}:len", missing={f"{path}:len": -1})
            assert values_of(index, f"{path}:len") == [-1 if length is None else length for length in lengths]
