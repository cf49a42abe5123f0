"""Files into shards: what is a sample, in which order, how often, and what cannot be packed."""

from __future__ import annotations

import json
import os
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pack.contents import contents_of
from tests.pack.files import make_files

import shoal
from shoal.errors import SourceError, StorageError, UsageError
from shoal.index.table import Index
from shoal.indexing.index_files import load_index
from shoal.pack import PackSummary, pack
from shoal.pack.inputs.input_sources import inputs_of
from shoal.pack.requests import PackRequest
from shoal.pack.shards.shard_plan import plan_shards
from shoal.storage.files.local_store import LocalStore


def index_in(directory: Path) -> Index:
    return load_index(str(directory / "shoal.index"), store=LocalStore())


def packed(source: Path | str, out: Path | str, **options: Any) -> PackSummary:
    return pack(source, out, **{"shard_bytes": 40_000, "num_workers": 1, **options})


def test_each_file_is_a_sample_and_its_directory_a_class(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in")
    summary = packed(files, tmp_path / "out")
    assert summary.num_samples == 95
    assert [shard.num_bytes <= 44_000 for shard in summary.shards] == [True] * len(summary.shards)
    index = index_in(tmp_path / "out")
    assert index.metadata["classes"] == ["cat", "dog", "zebra"]
    assert Counter(index.columns["cls"].tolist()) == {0: 30, 1: 60, 2: 5}
    dataset = shoal.open(tmp_path / "out")
    assert dataset[94] == {"__key__": "zebra/004", "txt": b"zebra 4 " * 5, "cls": b"2"}
    assert dataset.select(cls=["zebra", "cat"]).ids().tolist() == dataset.select(cls={0, 2}).ids().tolist()
    assert dataset.select(cls="zebra").num_samples == 5
    assert "cls" not in index_in_of(files, tmp_path / "plain", labelled=False).columns


def index_in_of(files: Path, out: Path, **options: Any) -> Index:
    packed(files, out, **options)
    return index_in(out)


@pytest.mark.parametrize("name", ["mds", "parquet", "arrow", "tfrecord", "jsonl", "jsonl.zst"])
def test_files_into_rows(tmp_path: Path, name: str) -> None:
    files = make_files(tmp_path / "in")
    packed(files, tmp_path / "out", format=name, shard_bytes=3000)
    row = shoal.open(tmp_path / "out")[94]
    assert set(row) == {"key", "text" if "jsonl" in name else "data", "cls", "class"}
    content = row.get("data", row.get("text"))
    assert content == ("zebra 4 " * 5 if "jsonl" in name else b"zebra 4 " * 5)
    assert index_in(tmp_path / "out").columns["cls"].tolist()[94] == 2


def test_files_of_one_name_are_one_sample_if_asked(tmp_path: Path) -> None:
    files = tmp_path / "in"
    files.mkdir()
    for number in range(5):
        (files / f"{number}.jpg").write_bytes(bytes(number))
        (files / f"{number}.meta.json").write_text(json.dumps({"lang": "de", "n": number}))
    with pytest.raises(UsageError, match="grouped=True"):
        (files / "0.png").write_bytes(b"x")
        packed(files, tmp_path / "out")
    (files / "0.png").unlink()
    packed(files, tmp_path / "out", grouped=True, columns=["n=meta.json.n", "lang=meta.json.lang"])
    assert shoal.open(tmp_path / "out")[3] == {"__key__": "3", "jpg": bytes(3), "meta.json": b'{"lang": "de", "n": 3}'}
    index = index_in(tmp_path / "out")
    assert index.columns["n"].tolist() == [0, 1, 2, 3, 4]
    assert index.metadata["texts"] == {"lang": ["de"]}


@pytest.mark.parametrize("name", ["parquet", "jsonl", "mds"])
def test_files_that_are_grouped_have_their_suffixes_also_where_one_is_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    for file in ("1.txt", "1.cap", "2.txt"):
        (tmp_path / "in" / file).write_text(file)
    if name == "mds":
        (tmp_path / "in" / "2.cap").write_text("2.cap")
    packed(tmp_path / "in", tmp_path / "out", format=name, grouped=True)
    first, second = shoal.open(tmp_path / "out")
    assert set(first) == {"key", "txt", "cap"}
    assert second["txt"] in ("2.txt", b"2.txt")
    assert second.keys() <= first.keys()


def test_names_that_become_the_same_are_refused(tmp_path: Path) -> None:
    files = tmp_path / "in"
    files.mkdir()
    (files / "a.b.txt").write_text("")
    (files / "a_b.txt").write_text("")
    with pytest.raises(UsageError, match=r"'a\.b\.txt' and 'a_b\.txt' would both be the sample 'a_b'"):
        packed(files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_shuffle_is_of_all_samples_and_the_same_on_any_number_of_processes(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in")
    options = {"shuffle": True, "seed": 3, "columns": ["length"], "oversample": {"zebra": Fraction(5, 2)}}
    one = packed(files, tmp_path / "one", **options)
    packed(files, tmp_path / "two", num_workers=2, **options)
    assert contents_of(tmp_path / "one") == contents_of(tmp_path / "two")
    labels = index_in(tmp_path / "one").columns["cls"]
    assert np.count_nonzero(np.diff(labels)) > 30
    assert packed(files, tmp_path / "other", **{**options, "seed": 4}).digest != one.digest


def test_repeated_classes_come_exactly_as_often_as_promised(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in")
    packed(files, tmp_path / "over", oversample={"zebra": Fraction(5, 2), "cat": 2})
    assert Counter(index_in(tmp_path / "over").columns["cls"].tolist()) == {0: 60, 1: 60, 2: 13}
    packed(files, tmp_path / "even", balance="cls")
    assert Counter(index_in(tmp_path / "even").columns["cls"].tolist()) == {0: 60, 1: 60, 2: 60}
    keys = [sample["__key__"] for sample in shoal.open(tmp_path / "even")]
    assert len(set(keys)) == 180
    assert {key.partition("~")[0] for key in keys if key.startswith("zebra")} == {f"zebra/{i:03d}" for i in range(5)}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_manifests(tmp_path: Path, suffix: str) -> None:
    files = make_files(tmp_path / "in")
    rows: list[dict[str, Any]] = [
        {"file": f"{name}/{number:03d}.txt", "animal": name, "weight": number / 2, "code": f"0{number}"}
        for name in ("cat", "zebra")
        for number in range(5)
    ]
    rows[3]["file"] = str(files / rows[3]["file"])  # absolute, and yet known by the name below the manifest
    manifest = files / f"list.{suffix}"
    if suffix == "csv":
        manifest.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
    elif suffix == "jsonl":
        manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), manifest)
    packed(manifest, tmp_path / "out", columns=["animal", "weight"], balance="animal")
    found = shoal.open(tmp_path / "out").decode()[3]
    assert found["__key__"] == "cat/003"
    assert found["json"] == {"animal": "cat", "weight": 1.5, "code": "03"}
    index = index_in(tmp_path / "out")
    assert index.columns["weight"].tolist() == [row["weight"] for row in rows]
    assert index.metadata["texts"] == {"animal": ["cat", "zebra"]}
    packed(manifest, tmp_path / "rows", format="parquet", columns=["weight"])
    assert shoal.open(tmp_path / "rows")[3]["code"] == "03"


def test_numbers_of_a_manifest_are_those_that_were_written(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in", classes={"a": 3})
    columns = {
        "exact": ["1", "0.5", "1e3"],
        "whole": ["9007199254740993", "0.5", "1"],
        "large": ["1e400", "0.5", "1"],
        "long": ["99999999999999999999", "2", "3"],
    }
    rows = [",".join(values) for values in zip(*columns.values(), strict=True)]
    lines = [f"file,{','.join(columns)}", *(f"a/{number:03d}.txt,{row}" for number, row in enumerate(rows))]
    (files / "list.csv").write_text("\n".join(lines))
    packed(files / "list.csv", tmp_path / "out", format="jsonl")
    found = list(shoal.open(tmp_path / "out"))
    assert [row["exact"] for row in found] == [1.0, 0.5, 1000.0]
    assert [row["whole"] for row in found] == columns["whole"]
    assert [row["large"] for row in found] == columns["large"]
    assert [row["long"] for row in found] == [99999999999999999999, 2, 3]


def test_paths_of_a_manifest_may_go_up_anywhere(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in", classes={"a": 2, "b": 1})
    (files / "list.csv").write_text(f"file\nb/../a/000.txt\n{files}/b/../a/001.txt\n")
    packed(files / "list.csv", tmp_path / "out")
    assert [sample["__key__"] for sample in shoal.open(tmp_path / "out")] == ["000", "001"]


def test_parts_of_what_a_manifest_says_are_named_alike_for_all_formats(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"path": f"{i}.txt", "meta": {"lang": "en" if i % 2 else "de"}, "a.b": i} for i in range(6)
    ]
    for row in rows:
        (tmp_path / row["path"]).write_text("text")
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("tar", "jsonl"):
        packed(manifest, tmp_path / name, format=name, columns=["lang=meta.lang", "a.b"])
        assert index_in(tmp_path / name).columns["lang"].tolist() == [0, 1, 0, 1, 0, 1]
        assert index_in(tmp_path / name).columns["a.b"].tolist() == list(range(6))
    with pytest.raises(UsageError, match="'lang' is 'lang' of each sample, but the sample '0' has none") as refused:
        packed(manifest, tmp_path / "not", columns=["lang"])
    assert refused.value.message.endswith("; its fields are __key__, txt, json")
    assert refused.value.hint == "numbers and texts go into the index"
    with pytest.raises(UsageError) as refused:
        packed(manifest, tmp_path / "not", format="jsonl", columns=["json.meta.lang"])
    assert refused.value.hint == "did you mean json.meta.lang=meta.lang?"


def test_the_field_that_holds_what_was_meant_is_named(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [{"__key__": "0", "bin": b"{", "odd.json": b"[" * 100_000, "json": {"m": {"n": 3}}}]
    with pytest.raises(UsageError, match=r"the column 'n' is 'm\.n' of each sample") as refused:
        pack(samples, tmp_path / "out", columns=["n=m.n"])
    assert refused.value.hint.startswith("did you mean n=json.m.n?")
    with pytest.raises(UsageError, match="has none there"):
        pack(samples, tmp_path / "deep", columns=["n=odd.json.n"])


def test_columns_of_a_manifest_are_the_same_in_all_shards_of_mds(tmp_path: Path) -> None:
    rows = [{"path": f"{i}.txt", "score": None if i % 3 == 0 else i} for i in range(60)]
    for i in range(60):
        (tmp_path / f"{i}.txt").write_text("x" * 100)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = packed(tmp_path / "rows.jsonl", tmp_path / "out", format="mds", shard_bytes=2000)
    assert len(summary.shards) > 2
    assert [sample["score"] for sample in shoal.open(tmp_path / "out")] == [row["score"] for row in rows]


def test_files_of_this_machine_may_be_named_by_urls(tmp_path: Path) -> None:
    files = make_files(tmp_path / "a b" / "in")
    url = (tmp_path / "a b").as_uri()
    assert "a%20b" in url
    packed(f"{url}/in", f"{url}/out")
    assert shoal.open(f"{url}/out").num_samples == shoal.open(tmp_path / "a b" / "out").num_samples == 95
    (tmp_path / "rows.csv").write_text(f"path\n{url}/in/cat/001.txt\n")
    packed(tmp_path / "rows.csv", tmp_path / "rows")
    assert shoal.open(tmp_path / "rows")[0]["txt"] == (files / "cat" / "001.txt").read_bytes()
    with pytest.raises(UsageError, match="everything there is input"):
        packed(files, f"{url}/in/out")
    (tmp_path / "link").symlink_to(files)
    with pytest.raises(UsageError, match="everything there is input"):
        packed(files, tmp_path / "link" / "out")


def test_rows_that_name_one_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "rows.csv").write_text("path,say\na.txt,one\n./a.txt,two\n")
    with pytest.raises(UsageError, match=r"rows 0 and 1 name the same file, 'a\.txt'"):
        packed(tmp_path / "rows.csv", tmp_path / "out")


def test_what_would_have_no_effect_is_refused(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in")
    (tmp_path / "rows.csv").write_text("path\nin/cat/001.txt\n")
    for source in (files, f"{files}/*/*.txt"):
        with pytest.raises(UsageError, match="path_column= does not apply"):
            packed(source, tmp_path / "out", path_column="x")
    for options in ({"grouped": True}, {"labelled": True}):
        with pytest.raises(UsageError, match=r"a manifest, but (grouped|labelled)= does not apply to it"):
            packed(tmp_path / "rows.csv", tmp_path / "out", **options)
    with pytest.raises(UsageError, match="more than 1099511627776 samples"):
        packed(files, tmp_path / "out", oversample={"cat": 10**400})


def test_python_can_ask_for_what_the_command_line_can(tmp_path: Path) -> None:
    rows = "".join(f"{number}.txt,{'rare' if number < 10 else 'usual'}\n" for number in range(100))
    (tmp_path / "rows.csv").write_text(f"path,kind\n{rows}")
    for number in range(100):
        (tmp_path / f"{number}.txt").write_bytes(bytes(50_000))
    summary = packed(
        tmp_path / "rows.csv",
        tmp_path / "out",
        oversample={"rare": 3},
        oversample_key="kind",
        shard_bytes=None,
        num_readers=4,
        extent_bytes="200KB",
    )
    assert summary.num_samples == 120
    assert len(summary.shards) >= 4
    index = index_in(tmp_path / "out")
    assert index.num_extents < 60  # of 64 KiB there would be one for each sample
    with pytest.raises(UsageError, match="samples from code are packed once each"):
        pack([{"a": 1}], tmp_path / "none", format="jsonl", on_error="skip")


def test_a_manifest_without_paths_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(UsageError, match=r"no column of paths \(.*\) among text"):
        packed(tmp_path / "a.jsonl", tmp_path / "out")
    (tmp_path / "b.jsonl").write_text('{"path": "x.txt"}\n{"path": null}\n')
    with pytest.raises(UsageError, match="row 1 has None where a path should be"):
        packed(tmp_path / "b.jsonl", tmp_path / "out")


def test_globs(tmp_path: Path) -> None:
    make_files(tmp_path / "in")
    assert packed(f"{tmp_path}/in/**/00*.txt", tmp_path / "out").num_samples == 25
    with pytest.raises(SourceError, match="matches no files"):
        packed(f"{tmp_path}/in/*.jpg", tmp_path / "none")
    with pytest.raises(SourceError, match="no such file or directory"):
        packed(tmp_path / "absent", tmp_path / "none")
    with pytest.raises(SourceError, match="files of this machine"):
        packed("s3://bucket/files", tmp_path / "none")


def save_to_disk(directory: Path, columns: dict[str, Any], features: dict[str, Any]) -> None:
    """As `datasets` does it: Arrow streams, and what describes them."""
    import pyarrow as pa

    directory.mkdir()
    table = pa.table(columns)
    names = []
    for number, start in enumerate(range(0, table.num_rows, 40)):
        names.append(f"data-{number:05d}-of-00003.arrow")
        part = table.slice(start, 40)
        with pa.OSFile(str(directory / names[-1]), "wb") as file, pa.ipc.new_stream(file, part.schema) as stream:
            stream.write_table(part, max_chunksize=16)
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (directory / "dataset_info.json").write_text(json.dumps({"features": features}))


def test_datasets_on_disk(tmp_path: Path) -> None:
    images: list[dict[str, Any]] = [
        {"bytes": b"\xff\xd8\xff" + bytes([i]), "path": f"/home/me/{i}"} for i in range(100)
    ]
    columns: dict[str, list[Any]] = {
        "text": [f"t{i}" for i in range(100)],
        "label": [i % 2 for i in range(100)],
        "image": images,
    }
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}, "text": {"_type": "Value"}}
    save_to_disk(tmp_path / "hf", columns, features)
    packed(
        tmp_path / "hf",
        tmp_path / "out",
        columns=["label"],
        shuffle=True,
        oversample={"yes": 2},
        oversample_key="label",
    )
    samples = list(shoal.open(tmp_path / "out").decode())
    assert len(samples) == 150
    assert sorted({s["__key__"].partition("~")[0] for s in samples}) == [f"{i:09d}" for i in range(100)]
    for sample in samples:
        number = int(sample["__key__"].partition("~")[0])
        assert sample["text"] == f"t{number}"
        assert sample["label.cls"] == number % 2
        assert sample["image.jpg"] == images[number]["bytes"]
    index = index_in(tmp_path / "out")
    assert Counter(index.columns["label"].tolist()) == {0: 50, 1: 100}
    assert index.metadata["classes"] == {"label": ["no", "yes"]}
    packed(tmp_path / "hf", tmp_path / "rows", format="parquet")
    assert shoal.open(tmp_path / "rows")[7] == {"text": "t7", "label": 1, "image": images[7]["bytes"]}
    assert_nothing_of(b"/home/me", tmp_path / "out", tmp_path / "rows")


def test_columns_of_datasets_on_disk_keep_their_types(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    columns = {
        "small": pa.array(range(100), pa.int8()),
        "score": pa.array([i / 3 for i in range(100)], pa.float32()),
        "late": pa.array([None] * 99 + ["x"]),
        "image": pa.array([{"bytes": b"x", "path": "/home/me/x"}] * 100),
    }
    save_to_disk(tmp_path / "hf", columns, {"small": {"_type": "Value"}})
    summary = packed(tmp_path / "hf", tmp_path / "out", format="parquet", shard_bytes=800)
    assert len(summary.shards) > 1
    for path in (tmp_path / "out").glob("*.parquet"):
        types = [pa.int8(), pa.float32(), pa.string(), pa.binary()]
        assert [field.type for field in pq.read_schema(path)] == types
    assert_nothing_of(b"/home/me", tmp_path / "out")


def test_images_inside_of_lists_and_structs_are_their_files(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pictures = [[{"bytes": b"%d" % i, "path": f"/home/me/{i}.png"}, None] for i in range(50)]
    columns = {
        "pictures": pictures,
        "large": pa.array(pictures, pa.large_list(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
        "pair": pa.array(pictures, pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]), 2)),
        "scan": [{"page": picture, "number": i} for i, (picture, _) in enumerate(pictures)],
    }
    save_to_disk(tmp_path / "hf", columns, {})
    packed(tmp_path / "hf", tmp_path / "out", format="parquet")
    both = [b"7", None]
    scan = {"page": b"7", "number": 7}
    assert shoal.open(tmp_path / "out")[7] == {"pictures": both, "large": both, "pair": both, "scan": scan}
    assert_nothing_of(b"/home/me", tmp_path / "out")


def test_rows_whose_file_is_not_in_a_dataset_on_disk_are_told_or_left_out(tmp_path: Path) -> None:
    images = [{"bytes": None if i == 3 else b"x", "path": f"/home/me/{i}.png"} for i in range(50)]
    save_to_disk(tmp_path / "hf", {"number": list(range(50)), "image": images}, {})
    with pytest.raises(UsageError, match=r"names a file, '3.png', which is not in the dataset"):
        packed(tmp_path / "hf", tmp_path / "none")
    summary = packed(tmp_path / "hf", tmp_path / "out", on_error="skip")
    assert [name for name, _ in summary.skipped] == ["row 3"]
    keys = [sample["__key__"] for sample in shoal.open(tmp_path / "out")]
    assert keys == [f"{number:09d}" for number in range(50) if number != 3]
    assert_nothing_of(b"/home/me", tmp_path / "out")


@pytest.mark.parametrize(
    ("state", "refused"),
    [
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, "stored the order of the rows"),
        ({"_data_files": [{"name": "x"}]}, "does not say which files"),
    ],
)
def test_what_save_to_disk_says_and_is_not_understood_is_refused(
    tmp_path: Path, state: dict[str, Any], refused: str
) -> None:
    save_to_disk(tmp_path / "hf", {"number": list(range(50))}, {})
    known = json.loads((tmp_path / "hf" / "state.json").read_text())
    (tmp_path / "hf" / "state.json").write_text(json.dumps(known | state))
    with pytest.raises(SourceError, match=refused):
        packed(tmp_path / "hf", tmp_path / "out")


def test_splits_are_packed_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(SourceError, match="splits train, test"):
        packed(tmp_path / "in", tmp_path / "out")


def assert_nothing_of(secret: bytes, *directories: Path) -> None:
    for directory in directories:
        for path in directory.rglob("*"):
            assert path.is_dir() or secret not in path.read_bytes(), path


def test_no_path_of_this_machine_gets_into_shards_or_index(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in")
    unreadable = files / "cat" / "000.txt"
    unreadable.unlink()
    unreadable.symlink_to(files / "nowhere")
    for name in ("tar", "parquet", "mds"):
        summary = packed(files, tmp_path / name, format=name, on_error="skip")
        assert [entry[0] for entry in summary.skipped] == ["cat/000.txt"]
        assert_nothing_of(str(tmp_path).encode(), tmp_path / name)
        assert_nothing_of(os.uname().nodename.encode(), tmp_path / name)


def test_what_cannot_be_read_ends_the_run_or_is_listed(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in")
    os.mkfifo(files / "dog" / "pipe.txt")
    with pytest.raises(StorageError, match=r"dog/pipe\.txt"):
        packed(files, tmp_path / "out")
    assert not (tmp_path / "out" / "shoal.index").exists()
    assert not list((tmp_path / "out").rglob("*.tmp"))
    summary = packed(files, tmp_path / "skipped", on_error="skip")
    assert summary.num_samples == 95
    assert [name for name, _ in summary.skipped] == ["dog/pipe.txt"]
    assert index_in(tmp_path / "skipped").metadata["skipped"][0][0] == "dog/pipe.txt"


def test_what_a_format_cannot_hold_is_listed_too(tmp_path: Path) -> None:
    make_files(tmp_path / "in")
    (tmp_path / "alone").mkdir()
    for files in (tmp_path / "in" / "dog", tmp_path / "alone"):
        (files / "bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="the only input was left out, 'bad' since bad: byte 0 of the file"):
        packed(tmp_path / "alone", tmp_path / "none", format="jsonl", on_error="skip")
    assert list((tmp_path / "none").iterdir()) == []
    with pytest.raises(UsageError, match="byte 0 of the file is not UTF-8"):
        packed(tmp_path / "in", tmp_path / "out", format="jsonl")
    summary = packed(tmp_path / "in", tmp_path / "skipped", format="jsonl", on_error="skip")
    assert [name for name, _ in summary.skipped] == ["dog/bad"]
    assert summary.num_samples == 95


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in")
    inputs = inputs_of(files, PackRequest("tar"))
    (files / "cat" / "001.txt").write_text("longer than before, and by another hand")
    numbers = np.arange(len(inputs))
    found = [sample for sample in inputs.samples(numbers, 0 * numbers) if not isinstance(sample, dict)]
    assert len(found) == 1
    with pytest.raises(StorageError, match="changed while it was being packed: it had"):
        raise found[0].error


def test_shards_are_cut_evenly() -> None:
    sizes = np.random.default_rng(0).integers(1, 100, 10_000)
    plan = plan_shards(sizes, shard_bytes=20_000)
    assert plan.num_shards == -(-int(sizes.sum()) // 20_000)
    assert plan.shard_record_bytes.sum() == sizes.sum()
    assert plan.shard_record_bytes.max() - plan.shard_record_bytes.min() < 200
    assert plan_shards(np.array([5, 10**6, 5]), shard_bytes=10).num_shards <= 3


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    packed(make_files(tmp_path / "in"), tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    done = [count for count, _ in seen]
    assert done == sorted(done)
    assert done[-1] == seen[0][1] > 0


def test_nothing_is_packed_into_what_is_packed(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in")
    for out in (files, files / "cat" / "packed"):
        with pytest.raises(UsageError, match="everything there is input"):
            packed(files, out)


def test_splits_that_are_packed_together_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("train/cat/1.jpg", "test/cat/2.jpg"):
        (tmp_path / "in" / name).parent.mkdir(parents=True)
        (tmp_path / "in" / name).write_bytes(name.encode())
    packed(tmp_path / "in", tmp_path / "out")
    assert "the splits test, train are packed together" in caplog.text
    caplog.clear()
    packed(tmp_path / "in" / "train", tmp_path / "train")
    assert not caplog.text
