"""Shards of shards hold the same samples, in the same order or in the one that was planned."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pack.contents import contents_of
from tests.pack.files import make_files
from tests.samples import write_jsonl, write_tar, write_tar_shards

import shoal
from shoal.errors import ShardError, UsageError
from shoal.index.table import locate
from shoal.pack import pack
from shoal.pack.from_shards.mixing_gain import POSITION, mixedness
from shoal.pack.from_shards.repacking import repack
from shoal.pack.writer import Writer
from shoal.quality.metrics import chunk_correlation, variance_ratio
from shoal.verify.open_to_verify import open_to_verify, verify

ROWS = ["jsonl", "jsonl.gz", "mds", "parquet", "arrow"]
FORMATS = [*ROWS, "tar", "tfrecord"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def write(url: Path, samples: Iterable[dict[str, Any]], name: str, **options: Any) -> Path:
    with Writer(url, format=name, shard_bytes=60_000 if name == "tar" else 3000, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return url


def row(number: int) -> dict[str, Any]:
    return {"text": f"document {number} " * (number % 5 + 1), "label": number % 4, "score": number / 8}


def sample_of(number: int, name: str) -> dict[str, Any]:
    if name == "tar":
        return {"__key__": f"k/{number:04d}", "txt": f"text {number}", "json": {"label": number % 4}, "bin": b"\0" * 9}
    return row(number)


def all_of(url: Path) -> list[dict[str, Any]]:
    ds = shoal.open(url)
    return [ds[number] for number in range(ds.num_samples)]


def assert_same(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            assert type(value) is type(other[name])
            assert np.array_equal(value, other[name])


@pytest.mark.parametrize("name", FORMATS)
def test_values_types_keys_and_order_stay(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "a", (sample_of(number, name) for number in range(120)), name)
    made = repack(source, tmp_path / "b", shard_bytes="200KB" if name == "tar" else "5000", num_workers=1)
    assert made.summary.format == name
    assert 1 < len(made.summary.shards) < len(list(source.iterdir()))
    assert_same(all_of(source), all_of(tmp_path / "b"))


@pytest.mark.parametrize("target", ROWS)
@pytest.mark.parametrize("source", ["jsonl", "mds", "parquet"])
def test_rows_go_from_any_format_to_any_other(tmp_path: Path, source: str, target: str) -> None:
    first = write(tmp_path / "a", map(row, range(60)), source)
    repack(first, tmp_path / "b", format=target, shard_bytes="2000", num_workers=1)
    found = all_of(tmp_path / "b")
    assert [{name: np.ravel(value)[0] for name, value in sample.items()} for sample in found] == list(
        map(row, range(60))
    )


def test_files_become_rows_and_files_again(tmp_path: Path) -> None:
    write_tar_shards(tmp_path / "a", num_shards=2, samples_per_shard=20)
    for target in ("mds", "parquet", "arrow"):
        repack(tmp_path / "a", tmp_path / target, format=target, num_workers=1)
        repack(tmp_path / target, tmp_path / f"{target}-tar", format="tar", num_workers=1)
        assert_same(all_of(tmp_path / "a"), all_of(tmp_path / f"{target}-tar"))
    repack(tmp_path / "a", tmp_path / "lines", format="jsonl", decode=True, num_workers=1)
    assert all_of(tmp_path / "lines")[7] == {"__key__": "0007", "txt": "sample 0007", "cls": 0}
    with pytest.raises(UsageError, match="JSON cannot hold a value of type bytes"):
        repack(tmp_path / "a", tmp_path / "none", format="jsonl", num_workers=1)


def test_rows_without_keys_get_some_in_tars(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", num_docs=30)
    repack(tmp_path / "a.jsonl", tmp_path / "b", format="tar", num_workers=1)
    assert [sample["__key__"] for sample in all_of(tmp_path / "b")] == [f"{number:09d}" for number in range(30)]


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.text(max_size=9)
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=st.lists(st.dictionaries(st.text(min_size=1, max_size=5), VALUES, min_size=1), min_size=1, max_size=20))
def test_any_rows_stay_what_they_are(tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("rows")
    write(folder / "a", samples, "jsonl")
    repack(folder / "a", folder / "b", format="jsonl.zst", shard_bytes=50, num_workers=1)
    repack(folder / "b", folder / "c", format="jsonl", shard_bytes=3000, num_workers=1)
    assert_same(all_of(folder / "a"), all_of(folder / "c"))
    shards = [sorted((folder / name).glob("*.jsonl")) for name in "ac"]
    assert b"".join(path.read_bytes() for path in shards[0]) == b"".join(path.read_bytes() for path in shards[1])


@pytest.mark.parametrize("mix", [False, pytest.param(True, marks=pytest.mark.drill)])
def test_processes_make_the_same_bytes(tmp_path: Path, mix: bool) -> None:
    source = write(tmp_path / "a", map(row, range(200)), "jsonl")
    for workers in (1, 2):
        repack(source, tmp_path / str(workers), shard_bytes="2KiB", mix=mix, seed=3, memory="8KiB", num_workers=workers)
    assert contents_of(tmp_path / "1") == contents_of(tmp_path / "2")


def test_equal_input_gives_equal_shards_wherever_it_lies(tmp_path: Path) -> None:
    source = write(tmp_path / "a", map(row, range(100)), "jsonl")
    shutil.copytree(source, tmp_path / "copy")
    made = [repack(tmp_path / name, tmp_path / f"{name}-b", format="mds", num_workers=1) for name in ("a", "copy")]
    assert made[0].summary.digest == made[1].summary.digest
    # And shards that shoal has written come out as they are, if they are cut the same.
    one = repack(source, tmp_path / "one", shard_bytes="1MiB", num_workers=1)
    two = repack(tmp_path / "one", tmp_path / "two", shard_bytes="1MiB", num_workers=1)
    assert one.summary.digest == two.summary.digest


def mixed_order(source: Path, *, memory: str, seed: int) -> list[int]:
    order = shoal.open(source).shuffle(seed=seed, window=memory, num_canonical_nodes=1)
    ids: list[int] = order.ids().tolist()
    return ids


def test_mixed_samples_come_in_the_order_of_one_shuffle(tmp_path: Path) -> None:
    samples = [row(number) for number in range(1200)]
    source = write(tmp_path / "a", samples, "jsonl", extent_bytes=512)
    made = repack(source, tmp_path / "b", shard_bytes="16KiB", mix=True, seed=4, memory="20KiB", num_workers=1)
    ids = mixed_order(source, memory="20KiB", seed=4)
    assert sorted(ids) == list(range(1200))
    assert ids != sorted(ids)
    assert all_of(tmp_path / "b") == [samples[number] for number in ids]
    other = repack(source, tmp_path / "c", shard_bytes="16KiB", mix=True, seed=5, memory="20KiB", num_workers=1)
    assert made.summary.digest != other.summary.digest
    assert "Window(chunks=" in str(made.source)


def sorted_lines(url: Path, *, num_samples: int, num_labels: int) -> Path:
    """Lines of 64 bytes, sorted by label, in extents of 16 lines."""
    run = num_samples // num_labels
    samples = ({"text": "x" * 40, "label": 100 + number // run} for number in range(num_samples))
    with Writer(url, format="jsonl", shard_bytes="1MiB", columns=["label"], extent_bytes=1024) as writer:
        for sample in samples:
            writer.write(sample)
    return url


def test_mixing_makes_chunks_unlike_as_was_predicted(tmp_path: Path) -> None:
    """h_D - 1 falls by the number of chunks in the window; VR after is what a shuffle of the new shards then has."""
    source = sorted_lines(tmp_path / "a", num_samples=8192, num_labels=64)
    made = repack(source, tmp_path / "b", mix=True, memory="64KiB", shard_bytes="256KiB", extent_bytes=1024)
    chunks = made.source.order.parameters["chunks"]
    position, label = mixedness(made.source, made.index, batch=64, window="16KiB")
    assert (position.key, label.key) == (POSITION, "label")
    assert position.rho_before is not None
    assert label.rho_before is not None
    assert label.rho_after is not None
    assert label.rho_before > 0.95
    assert position.rho_before > 0.99
    assert label.rho_after < label.rho_before / 4
    assert label.vr_after < label.vr_before / 2
    # What was reported is what is found in the new shards.
    ds = shoal.open(tmp_path / "b").shuffle(seed=1, window="16KiB")
    labels = np.array([sample["label"] for sample in all_of(tmp_path / "b")])
    sizes = np.diff(ds.resolved.order_borders)
    assert label.rho_after == pytest.approx(chunk_correlation(labels, sizes))
    measured = [
        variance_ratio(labels[shoal.open(tmp_path / "b").shuffle(seed=seed, window="16KiB").ids()], 64)
        for seed in range(4)
    ]
    assert np.mean(measured) == pytest.approx(label.vr_after, rel=0.25)
    # Corgi^2: among neighbours, of n chunks that mix, one in n comes from the same one.
    assert label.rho_after == pytest.approx(1 / chunks, abs=2 / chunks)


def test_columns_of_the_index_go_with_their_samples(tmp_path: Path) -> None:
    samples = [
        {"text": f"t{number}", "label": number % 7, "kind": "even" if number % 2 else "odd"} for number in range(200)
    ]
    source = write(tmp_path / "a", samples, "jsonl", columns=["label", "kind"], extent_bytes=512)
    made = repack(
        source, tmp_path / "b", mix=True, memory="4KiB", columns=["length"], num_workers=1, shard_bytes="1KiB"
    )
    found = all_of(tmp_path / "b")
    words = made.index.metadata["texts"]["kind"]
    assert made.index.columns["label"].tolist() == [sample["label"] for sample in found]
    assert [words[code] for code in made.index.columns["kind"].tolist()] == [sample["kind"] for sample in found]
    assert made.index.columns["length"].tolist() == [len(sample["text"]) + len(sample["kind"]) for sample in found]
    chosen = shoal.open(tmp_path / "b").select(label=3)
    assert all(sample["label"] == 3 for sample in chosen)
    even = shoal.open(tmp_path / "b").select(kind="even", label={1, 2})
    assert sorted(sample["text"] for sample in even) == sorted(
        sample["text"] for sample in samples if sample["kind"] == "even" and sample["label"] in (1, 2)
    )
    with pytest.raises(UsageError, match="no sample has 'Odd' in the column 'kind'; it holds 2 texts: 'even', 'odd'"):
        shoal.open(tmp_path / "b").select(kind="Odd")
    with pytest.raises(UsageError, match="the column 'label' holds numbers"):
        shoal.open(tmp_path / "b").select(label="even")


def test_names_of_classes_go_along_with_their_numbers(tmp_path: Path) -> None:
    pack(make_files(tmp_path / "in"), tmp_path / "a", num_workers=1)
    repack(tmp_path / "a", tmp_path / "b", mix=True, memory="1MiB", num_workers=1)
    zebras = shoal.open(tmp_path / "b").select(cls="zebra")
    assert sorted(sample["__key__"] for sample in zebras) == [f"zebra/{number:03d}" for number in range(5)]
    made = repack(tmp_path / "a", tmp_path / "c", columns=["cls=length"], num_workers=1)
    assert "classes" not in made.index.metadata  # the column of that name holds something else


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    source = write(tmp_path / "a", map(row, range(50)), "jsonl")
    repack(source, tmp_path / "b", shard_bytes="2KiB", num_workers=1)
    before = contents_of(tmp_path / "b")
    again = repack(source, tmp_path / "b", shard_bytes="2KiB", num_workers=1)  # the same: done before
    assert all(shard.done_before for shard in again.summary.shards)
    with pytest.raises(UsageError, match="there is a dataset already"):
        repack(source, tmp_path / "b", shard_bytes="3KiB", num_workers=1)
    for inside in (source, source / "deep" / "er", source.as_uri() + "/deep"):
        with pytest.raises(UsageError, match="everything there is input"):
            repack(source, inside, shard_bytes="3KiB", num_workers=1)
    with pytest.raises(UsageError, match=r"s3://bucket/a/b lies in s3://bucket/a, and everything there is input"):
        repack(["s3://other/a", "s3://bucket/a"], "s3://bucket/a/b?secret=1")
    assert contents_of(tmp_path / "b") == before


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [lambda path: flip(path, 2000), lambda path: flip(path, 512)])
def test_damage_of_the_source_ends_it(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    source = write(tmp_path / "a", map(row, range(200)), "jsonl")
    harm(sorted(source.glob("*.jsonl"))[2])
    with pytest.raises(ShardError, match="shard-000002"):
        repack(source, tmp_path / "b", shard_bytes="2KiB", num_workers=1)
    assert not (tmp_path / "b" / "shoal.index").exists()


def test_a_source_that_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "a" / "a.tar"
    path.parent.mkdir()

    def written(letter: bytes) -> None:
        texts = [{"__key__": b"%d" % number, "txt": letter * 100} for number in range(40)]
        write_tar(path, [*texts, {"__key__": b"last", "bin": b"no text"}])

    def repacked() -> None:
        repack(path, tmp_path / "b", format="jsonl", decode=True, shard_bytes="8KiB", num_workers=1)

    written(b"x")
    index = shoal.open(path).resolved.index
    # Stopped in the middle, by a sample that cannot be written.
    with pytest.raises(UsageError, match="JSON cannot hold a value of type bytes"):
        repacked()
    written(b"y")
    assert shoal.open(path).resolved.index.fingerprint == index.fingerprint
    with pytest.raises(UsageError, match=r"another packing was begun here.*source \(times\): not the same"):
        repacked()
    with pytest.raises(UsageError, match=r"mix was False, is True; seed was not given, is 3"):
        repack(path, tmp_path / "b", format="jsonl", decode=True, shard_bytes="8KiB", mix=True, seed=3, num_workers=1)


def test_memory_stays_near_the_window(tmp_path: Path) -> None:
    """The source is read once for all shards: as many chunks as there are, whatever the number of shards."""
    source = sorted_lines(tmp_path / "a", num_samples=8192, num_labels=8)
    reads: list[int] = []
    store = type(shoal.open(source).stream.opened.store)
    original = store.read_range

    def counted(self: Any, path: str, first_byte: int, end_byte: int) -> bytes:
        if path.endswith(".jsonl"):
            reads.append(end_byte - first_byte)
        return original(self, path, first_byte, end_byte)

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(store, "read_range", counted)
        made = repack(source, tmp_path / "b", mix=True, memory="64KiB", shard_bytes="32KiB", num_workers=1)
    assert len(made.summary.shards) > 8
    size = sum(path.stat().st_size for path in source.glob("*.jsonl"))
    assert size <= sum(reads) < 1.2 * size


@pytest.mark.parametrize(("workers", "mix"), [(1, False), pytest.param(2, False, marks=pytest.mark.drill), (1, True)])
def test_damaged_samples_are_left_out_and_listed(tmp_path: Path, workers: int, mix: bool) -> None:
    samples = [{"__key__": f"{number:04d}", "txt": f"text {number}", "label.cls": number} for number in range(200)]
    source = write(tmp_path / "a", samples, "tar", columns=["label=label.cls"], extent_bytes=2000)
    index = shoal.open(source).resolved.index
    shards, starts, _ = (part.tolist() for part in locate(index, np.arange(200)))
    names = sorted(path.name for path in source.glob("*.tar"))
    lost = [0, 77, 78, 199]
    for number in lost:
        path = source / names[shards[number]]
        times = path.stat().st_mtime_ns
        flip(path, starts[number] + 512)
        os.utime(path, ns=(times, times))  # nobody but the checksums can know
    with pytest.raises(ShardError, match="checksum"):
        repack(source, tmp_path / "none", shard_bytes="100KiB", num_workers=workers, mix=mix, memory="60KiB")
    made = repack(
        source,
        tmp_path / "b",
        shard_bytes="100KiB",
        num_workers=workers,
        mix=mix,
        memory="60KiB",
        on_error="skip",
    )
    extents = np.searchsorted(index.extent_first_sample, lost, side="right")
    gone = [number for number in range(200) if np.searchsorted(index.extent_first_sample, number, "right") in extents]
    assert sorted(int(name.removeprefix("sample ")) for name, _ in made.summary.skipped) == gone
    assert all("do not have the checksum in the index" in reason for _, reason in made.summary.skipped)
    found = all_of(tmp_path / "b")
    assert sorted(sample["__key__"] for sample in found) == [f"{n:04d}" for n in range(200) if n not in gone]
    assert made.index.columns["label"].tolist() == [int(sample["label.cls"]) for sample in found]
    assert mixedness(made.source, made.index) == []


def test_what_a_format_cannot_hold_is_left_out_and_listed(tmp_path: Path) -> None:
    samples = [
        {"__key__": f"{number}", "bin": b"x"} if number % 5 == 0 else {"__key__": f"{number}", "cls": number}
        for number in range(50)
    ]
    source = write(tmp_path / "a", samples, "tar", columns=["length"])
    made = repack(source, tmp_path / "b", format="jsonl", decode=True, on_error="skip", num_workers=1)
    assert [name for name, _ in made.summary.skipped] == [f"sample {number}" for number in range(0, 50, 5)]
    assert [sample["cls"] for sample in all_of(tmp_path / "b")] == [number for number in range(50) if number % 5]
    assert len(made.index.columns["length"]) == 40


@pytest.mark.parametrize("group_bytes", [1, 200, 1 << 20])
@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_rows_that_are_no_columns_are_left_out_and_listed(tmp_path: Path, name: str, group_bytes: int) -> None:
    bad = {7: "no number", 8: [1], 30: {"a": 1}, 40: True, 59: "last"}
    samples = [{"value": bad.get(number, number), "meta": {"n": number}} for number in range(60)]
    source = write(tmp_path / "a", samples, "jsonl", columns=["length=meta.n"] if group_bytes < 1 << 20 else [])
    options = {"group_bytes": group_bytes}
    with pytest.raises(UsageError, match=r"the column 'value'.* cannot hold 'no number'"):
        repack(source, tmp_path / "none", format=name, options=options, num_workers=1)
    for columns in ([], ["mine=meta.n"]):
        out = tmp_path / f"b{len(columns)}"
        made = repack(source, out, format=name, on_error="skip", num_workers=1, options=options, columns=columns)
        assert {where for where, _ in made.summary.skipped} == {f"sample {number}" for number in (7, 8, 30, 40, 59)}
        kept = [number for number in range(60) if number not in (7, 8, 30, 40, 59)]
        assert_same(all_of(out), [samples[number] for number in kept])
        assert made.index.num_samples == 55
        for column in made.index.columns.values():
            assert column.tolist() == kept


def test_types_of_columns_stay_between_tables(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    count = 80
    day, moment = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    columns = {
        "i8": pa.array([i % 100 for i in range(count)], pa.int8()),
        "u64": pa.array([2**64 - 1 - i for i in range(count)], pa.uint64()),
        "f16": pa.array([i / 4 for i in range(count)], pa.float32()).cast(pa.float16()),
        "f32": pa.array([i / 3 for i in range(count)], pa.float32()),
        "ns": pa.array([1577836800000000000 + i for i in range(count)], pa.timestamp("ns")),
        "zone": pa.array([moment] * count, pa.timestamp("ms", "Europe/Berlin")),
        "day": pa.array([day] * count),
        "price": pa.array([decimal.Decimal("1.50")] * count, pa.decimal128(10, 4)),
        "large": pa.array(["x"] * count, pa.large_string()),
        "four": pa.array([b"abcd"] * count, pa.binary(4)),
        "vector": pa.array([[1.5, 2.5]] * count, pa.list_(pa.float32(), 2)),
        "struct": pa.array([{"a": 1, "b": [{"c": 2}]}] * count,
                           pa.struct([("a", pa.int16()), ("b", pa.list_(pa.struct([("c", pa.int8())])))])),
        "map": pa.array([[("k", 1)]] * count, pa.map_(pa.string(), pa.int32())),
        "none": pa.array([None] * count, pa.string()),
        "late": pa.array([None] * (count - 1) + ["x"]),
        "kind": pa.array(["a", "b"] * (count // 2)).dictionary_encode(),
    }  # fmt: skip
    table = pa.table(columns)
    (tmp_path / "source" / "year=2020").mkdir(parents=True)
    pq.write_table(table, tmp_path / "source" / "year=2020" / "a.parquet", row_group_size=20)
    for number, (source, name) in enumerate([("source", "arrow"), ("out0", "parquet"), ("out1", "arrow")]):
        out = tmp_path / f"out{number}"
        made = repack(tmp_path / source, out, format=name, shard_bytes="4KiB", num_workers=1)
        assert len(made.summary.shards) > 2
        assert_same(all_of(out), all_of(tmp_path / "source"))
        for path in out.glob("shard-*"):
            schema = pq.read_schema(path) if name == "parquet" else pa.ipc.open_stream(path).schema
            expected = {field.name: field.type for field in table.schema} | {"kind": pa.string(), "year": pa.string()}
            assert {field.name: field.type for field in schema} == expected


def test_what_hugging_face_says_of_columns_goes_along(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    features = json.dumps({"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}).encode()
    said = {b"huggingface": features, b"where": b"/home/me/secret"}
    table = pa.table({"label": pa.array([0, 1] * 20, pa.int64())}).replace_schema_metadata(said)
    (tmp_path / "a").mkdir()
    pq.write_table(table, tmp_path / "a" / "a.parquet")
    repack(tmp_path / "a", tmp_path / "b", format="arrow", num_workers=1)
    (shard,) = (tmp_path / "b").glob("shard-*")
    assert pa.ipc.open_stream(shard).schema.metadata == {b"huggingface": features}
    assert shoal.open(tmp_path / "b").decode("hf")[1] == shoal.open(tmp_path / "a").decode("hf")[1]


def image_file(number: int, kind: str) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number % 255, 0, 0)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("name", ["mds", "mds.gz"])
def test_images_of_mds_are_written_as_their_files(tmp_path: Path, name: str) -> None:
    pytest.importorskip("PIL")
    encodings = {"image": "jpeg", "mask.png": "png", "label": "uint8", "number": "str_int", "x": "ndarray:float32:2"}
    rows = [
        {
            "image": image_file(number, "JPEG"),
            "mask.png": image_file(number, "PNG"),
            "label": number,
            "number": number,
            "x": np.full(2, number, np.float32),
        }
        for number in range(20)
    ]
    source = write(tmp_path / "a", rows, name, options={"columns": encodings})
    again = repack(source, tmp_path / "mds", format="mds", mix=True, num_workers=1)
    assert json.loads((tmp_path / "mds" / "index.json").read_text())["shards"][0]["column_encodings"] == list(
        encodings.values()
    )
    assert dict(again.index.shard_heads[0]["columns"]) == encodings
    found = sorted(all_of(tmp_path / "mds"), key=lambda row: row["number"])
    assert [type(value) for value in found[3].values()] == [type(value) for value in all_of(source)[3].values()]
    repack(source, tmp_path / "tar", format="tar", num_workers=1)
    sample = shoal.open(tmp_path / "tar").decode()[3]
    assert sample.pop("x.npy").tolist() == [3, 3]
    assert (sample["image.jpg"], sample["mask.png"]) == (rows[3]["image"], rows[3]["mask.png"])
    if name == "mds":
        for other in ("parquet", "tfrecord"):
            if other == "parquet":
                pytest.importorskip("pyarrow")
            repack(source, tmp_path / other, format=other, num_workers=1)
            assert shoal.open(tmp_path / other)[3]["image"] == rows[3]["image"]


def test_all_shards_of_mds_have_the_columns_of_the_first_sample(tmp_path: Path) -> None:
    rows = [{"value": None if number == 0 else number} for number in range(300)]
    source = write(tmp_path / "a", rows, "jsonl")
    made = repack(source, tmp_path / "b", format="mds", shard_bytes="1KiB", num_workers=1)
    assert len(made.summary.shards) > 2
    assert all_of(tmp_path / "b") == rows


def test_formats_that_are_only_read_say_what_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("number\n1\n2\n")
    with pytest.raises(UsageError, match=r"shoal reads shards of csv, but cannot write them"):
        repack(tmp_path / "a.csv", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_single_files_become_a_tar(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        (tmp_path / "files" / kind).mkdir(parents=True)
        (tmp_path / "files" / kind / "a.txt").write_text(kind)
    files = shoal.formats.Folder(suffixes=[".txt"])
    made = repack(tmp_path / "files", tmp_path / "b", source_format=files, columns=["cls"])
    assert all_of(tmp_path / "b") == [
        {"__key__": "cat/a", "txt": b"cat", "cls": b"0"},
        {"__key__": "dog/a", "txt": b"dog", "cls": b"1"},
    ]
    assert shoal.open(tmp_path / "b").classes == ("cat", "dog")
    assert made.index.columns["cls"].tolist() == [0, 1]
    index = tmp_path / "elsewhere.index"
    (tmp_path / "b" / "shoal.index").rename(index)
    assert repack(tmp_path / "b", tmp_path / "c", index=index).index.columns["cls"].tolist() == [0, 1]


def test_columns_of_mds_come_from_the_first_sample_that_can_be_read(tmp_path: Path) -> None:
    samples = [{"__key__": f"{number:04d}", "value.cls": number} for number in range(30)]
    source = write(tmp_path / "a", samples, "tar", extent_bytes=1)
    path = source / "shard-000000.tar"
    times = path.stat().st_mtime_ns
    flip(path, 512)
    os.utime(path, ns=(times, times))
    made = repack(source, tmp_path / "b", format="mds", on_error="skip", num_workers=1)
    assert [name for name, _ in made.summary.skipped] == ["sample 0"]
    assert all_of(tmp_path / "b")[0] == {"__key__": "0001", "value.cls": b"1"}


def test_where_things_lie_is_not_written_down(tmp_path: Path) -> None:
    source = write(tmp_path / "secret-home" / "a", map(row, range(50)), "jsonl")
    repack(source, tmp_path / "b", shard_bytes="1KiB", num_workers=1)
    for path in (tmp_path / "b").rglob("*"):
        assert b"secret-home" not in path.read_bytes()


def test_too_little_memory_for_a_mix_is_called_memory(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "docs" / "docs.jsonl")
    with pytest.raises(UsageError, match="memory=2000 is too little to mix") as refused:
        repack(source, tmp_path / "out", mix=True, memory=2000)
    assert refused.value.hint.startswith("memory=")
    assert "window" not in refused.value.hint
    enough = int(refused.value.hint.partition("=")[2].partition(" ")[0])
    assert repack(source, tmp_path / "out", mix=True, memory=enough).summary.num_samples == 200


def test_one_is_spoken_of_as_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(UsageError, match=r"^1 shard without a single sample"):
        repack(tmp_path / "a.jsonl", tmp_path / "b")
    with pytest.raises(UsageError, match=r"a\.jsonl: 1 shard without a single sample"):
        shoal.open(tmp_path / "a.jsonl")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"the only input was left out, 'a\.txt' since"):
        pack(tmp_path / "in", tmp_path / "out", on_error="skip")


def test_samples_of_one_key_from_several_tars_are_not_made_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(4):
        write_tar(tmp_path / "a" / f"{number}.tar", [{"__key__": b"same", "txt": b"%d" % number}])
    made = repack(tmp_path / "a", tmp_path / "b", num_workers=1)
    assert [(sample["__key__"], sample["txt"]) for sample in all_of(tmp_path / "b")] == [
        ("same", b"0"),
        ("same~2", b"1"),
        ("same", b"2"),
        ("same~2", b"3"),
    ]
    assert made.summary.num_renamed == 2
    assert not verify(open_to_verify(str(tmp_path / "b"))).damages
    assert repack(tmp_path / "a", tmp_path / "b", num_workers=1).summary.num_renamed == 2
    skipped = repack(tmp_path / "a", tmp_path / "c", on_error="skip", num_workers=1)
    assert (skipped.summary.num_renamed, skipped.summary.skipped, skipped.summary.digest) == (
        2,
        (),
        made.summary.digest,
    )
    repack(tmp_path / "a", tmp_path / "d", format="mds", num_workers=1)
    assert [sample["txt"] for sample in all_of(tmp_path / "d")] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("num_workers", [1, pytest.param(3, marks=pytest.mark.drill)])
def test_shards_whose_keys_begin_anew_are_mixed(num_workers: int, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for shard in range(12):
        samples = [{"__key__": b"%03d" % number, "txt": b"%d %d" % (shard, number)} for number in range(9)]
        write_tar(tmp_path / "a" / f"{shard:02d}.tar", samples)
    made = repack(tmp_path / "a", tmp_path / "b", mix=True, seed=3, shard_bytes="20KiB", num_workers=num_workers)
    assert made.summary.num_renamed > 0
    assert not verify(open_to_verify(str(tmp_path / "b"))).damages
    found = all_of(tmp_path / "b")
    assert sorted(sample["txt"] for sample in found) == sorted(
        b"%d %d" % (shard, number) for shard in range(12) for number in range(9)
    )
    kept = [sample for sample in found if sample["__key__"] == f"{int(sample['txt'].split()[1]):03d}"]
    assert len(found) - len(kept) == made.summary.num_renamed
