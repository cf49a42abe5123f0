"""Of equal samples the first is packed, the others are counted: by key, or by content; never silently, always alike."""

from __future__ import annotations

import json
import pickle
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pack.contents import contents_of

import shoal
from shoal.errors import StorageError, UsageError
from shoal.pack import pack, plan
from shoal.pack.inputs import file_samples
from shoal.pack.inputs.duplicates import distinct_digests, sample_digest
from shoal.storage.files.small_files import read_small

FILES = {
    "a/1.txt": b"same",
    "a/2.txt": b"other",
    "a/3.txt": b"same",
    "a/3.md": b"same",
    "b/1.txt": b"same",
    "b/2.txt": b"a size of its own",
    "b/3.txt": b"emas",
}


def make(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def keys(url: Path) -> list[str]:
    return [sample["__key__"] for sample in shoal.open(url)]


def test_by_key_the_first_file_stays(tmp_path: Path) -> None:
    make(tmp_path / "in", FILES)
    with pytest.raises(UsageError, match="would both be the sample 'a/3'"):
        pack(tmp_path / "in", tmp_path / "out")
    made = pack(tmp_path / "in", tmp_path / "out", dedup="key")
    assert made.duplicates is not None
    assert (made.duplicates.by, made.duplicates.num_samples) == ("key", 1)
    assert made.duplicates.first == (("a/3.txt", "a/3.md"),)
    assert keys(tmp_path / "out") == ["a/1", "a/2", "a/3", "b/1", "b/2", "b/3"]
    assert "md" in shoal.open(tmp_path / "out")[2]
    assert pack(tmp_path / "in", tmp_path / "out", dedup="key").duplicates == made.duplicates  # found finished


def test_by_content_all_fields_but_the_key_count(tmp_path: Path) -> None:
    files = {name: data for name, data in FILES.items() if name != "a/3.md"}
    make(tmp_path / "in", {**files, "a/4.md": b"same"})
    made = pack(tmp_path / "in", tmp_path / "out", dedup="content")
    assert made.duplicates is not None
    assert made.duplicates.first == (("a/3.txt", "a/1.txt"),)
    assert keys(tmp_path / "out") == ["a/1", "a/2", "a/4", "b/1", "b/2", "b/3"]
    # Without classes, that of b is equal, too; in rows the suffix is no name of a field.
    for name, kept in (("tar", "1 2 4 2 3"), ("mds", "1 2 2 3")):
        made = pack(tmp_path / "in", tmp_path / name, dedup="content", labelled=False, format=name)
        assert [
            key[-1] for key in (sample.get("__key__") or sample["key"] for sample in shoal.open(tmp_path / name))
        ] == kept.split()
        assert made.duplicates is not None
        assert made.duplicates.num_samples == 7 - len(kept.split())


CONTENTS = st.sampled_from([b"", b"a", b"b", b"ab", b"ba", b"abc", b"abc\0"])


@given(
    given_files=st.lists(
        st.tuples(st.sampled_from("xy"), CONTENTS, st.sampled_from(["txt", "md"])), min_size=1, max_size=30
    ),
    seed=st.integers(0, 3),
    grouped=st.booleans(),
)
@settings(max_examples=10, deadline=None)
def test_the_law(
    tmp_path_factory: pytest.TempPathFactory, given_files: list[tuple[str, bytes, str]], seed: int, grouped: bool
) -> None:
    """What is packed is what would be packed of the first ones alone, by any number of processes and as a job."""
    home = tmp_path_factory.mktemp("law")
    named = {f"{where}/{number:02d}.{suffix}": data for number, (where, data, suffix) in enumerate(given_files)}
    make(home / "in", named)
    seen: set[Any] = set()
    first = {}
    for name, data in sorted(named.items()):
        content = (name[0], name.rpartition(".")[2], data)
        if content not in seen:
            seen.add(content)
            first[name] = data
    made = pack(
        home / "in", home / "out", dedup="content", shuffle=True, seed=seed, grouped=grouped, num_workers=1,
        shard_bytes=2048,
    )  # fmt: skip
    assert made.duplicates is not None
    assert made.duplicates.num_samples == len(named) - len(first)
    make(home / "first", first)
    alone = pack(
        home / "first", home / "alone", shuffle=True, seed=seed, grouped=grouped, num_workers=1, shard_bytes=2048
    )
    assert [shard.digest for shard in made.shards] == [shard.digest for shard in alone.shards]
    job = plan(home / "in", home / "job", dedup="content", shuffle=True, seed=seed, grouped=grouped, shard_bytes=2048)
    for number in job.missing():
        pickle.loads(pickle.dumps(job.task(number)))()
    assert job.finish().duplicates == made.duplicates
    assert contents_of(home / "job") == contents_of(home / "out")


def test_groups_are_equal_if_all_their_files_are(tmp_path: Path) -> None:
    files = {
        "1.jpg": b"x",
        "1.json": b"{}",
        "2.jpg": b"x",
        "2.json": b"[]",
        "3.jpg": b"x",
        "3.json": b"{}",
        "4.jpg": b"x{}",
    }
    make(tmp_path / "in", files)
    made = pack(tmp_path / "in", tmp_path / "out", dedup="content", grouped=True)
    assert keys(tmp_path / "out") == ["1", "2", "4"]
    assert made.duplicates is not None
    assert made.duplicates.first == (("3.jpg", "1.jpg"),)
    assert pack(tmp_path / "in", tmp_path / "by-key", dedup="key", grouped=True).num_samples == 4


def test_processes_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "in", {f"{number:04d}.txt": b"%d" % (number * number % 97) for number in range(500)})
    monkeypatch.setattr("shoal.pack.inputs.dedup_pass._JOB_SAMPLES", 40)
    one, two = (pack(tmp_path / "in", tmp_path / str(n), dedup="content", num_workers=n) for n in (1, 2))
    assert one.duplicates == two.duplicates
    assert one.duplicates is not None
    assert one.num_samples == 49
    assert contents_of(tmp_path / "1") == contents_of(tmp_path / "2")


def test_a_size_of_its_own_needs_no_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "in", {"1.txt": b"a", "2.txt": b"b", "3.txt": b"long", "4.txt": b"longer"})
    read, reader = [], read_small

    def reading(path: str, *arguments: Any) -> bytes:
        read.append(Path(path).name)
        return reader(path, *arguments)

    monkeypatch.setattr(file_samples, "read_small", reading)
    job = plan(tmp_path / "in", tmp_path / "out", dedup="content", num_workers=1)
    assert read == ["1.txt", "2.txt"]
    for number in job.missing():
        job.run(number)
    assert job.finish().num_samples == 4


def test_classes_are_repeated_of_what_is_left(tmp_path: Path) -> None:
    files = {f"a/{number}.txt": b"%d" % (number // 2) for number in range(8)}
    make(tmp_path / "in", {**files, "b/1.txt": b"b"})
    made = pack(tmp_path / "in", tmp_path / "out", dedup="content", balance="cls")
    assert made.num_samples == 8
    assert sorted(keys(tmp_path / "out")) == ["a/0", "a/2", "a/4", "a/6", "b/1", "b/1~2", "b/1~3", "b/1~4"]


def test_rows_of_manifests(tmp_path: Path) -> None:
    make(tmp_path, {"1.txt": b"x", "2.txt": b"x", "3.txt": b"x", "more/1.txt": b"y"})
    rows = [("1.txt", 5), ("2.txt", 5), ("3.txt", 6), ("1.txt", 7), ("more/1.txt", 5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"path": path, "n": n}) + "\n" for path, n in rows))
    made = pack(tmp_path / "rows.jsonl", tmp_path / "by-key", dedup="key")
    assert made.duplicates is not None
    assert made.duplicates.first == (("row 3 (1.txt)", "row 0 (1.txt)"),)
    assert keys(tmp_path / "by-key") == ["1", "2", "3", "more/1"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"path": path, "n": n}) + "\n" for path, n in rows[:3]))
    made = pack(tmp_path / "rows.jsonl", tmp_path / "by-content", dedup="content")
    assert keys(tmp_path / "by-content") == ["1", "3"]
    assert made.duplicates is not None
    assert made.duplicates.first == (("2.txt", "1.txt"),)


def test_rows_of_saved_datasets(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"text": ["a", "b", "a", "c", "b"], "label": [0, 1, 0, 0, 0]})
    (tmp_path / "in").mkdir()
    with pa.OSFile(str(tmp_path / "in" / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "in" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    made = pack(tmp_path / "in", tmp_path / "out", dedup="content", balance="label")
    assert made.duplicates is not None
    assert made.duplicates.first == (("row 2", "row 0"),)
    assert keys(tmp_path / "out")[0] == "000000000"
    texts = [sample["text"] for sample in shoal.open(tmp_path / "out").decode()]
    assert sorted(texts) == ["a", "b", "b", "b", "b", "c"]
    with pytest.raises(UsageError, match="no keys but their numbers"):
        pack(tmp_path / "in", tmp_path / "by-key", dedup="key")


def test_what_cannot_be_read_is_equal_to_nothing(tmp_path: Path) -> None:
    make(tmp_path / "in", {"1.txt": b"x", "4.txt": b"x"})
    for name in ("2.txt", "3.txt"):
        (tmp_path / "in" / name).symlink_to("nowhere")
    with pytest.raises(StorageError, match=r"2\.txt"):
        pack(tmp_path / "in", tmp_path / "out", dedup="content")
    assert not (tmp_path / "out").exists()
    made = pack(tmp_path / "in", tmp_path / "out", dedup="content", on_error="skip")
    assert [name for name, _ in made.skipped] == ["2.txt", "3.txt"]
    assert made.duplicates is not None
    assert made.duplicates.first == (("4.txt", "1.txt"),)


def test_another_dedup_is_another_packing(tmp_path: Path) -> None:
    make(tmp_path / "in", {"1.txt": b"x", "2.txt": b"y"})
    pack(tmp_path / "in", tmp_path / "out", dedup="content")
    for other in (None, "key"):
        with pytest.raises(UsageError, match="there is a dataset already"):
            pack(tmp_path / "in", tmp_path / "out", dedup=other)
    wrong: Any = "contents"
    with pytest.raises(UsageError, match="did you mean 'content'"):
        pack(tmp_path / "in", tmp_path / "wrong", dedup=wrong)
    with pytest.raises(UsageError, match="samples from code"):
        pack([{"a": 1}], tmp_path / "code", dedup="content")


def test_digests_tell_values_apart() -> None:
    values = [
        b"1", "1", 1, 1.0, True, None, [1], [[1]], (), {"a": 1}, {"a": "1"}, {"a": b"1", "b": 1}, np.array([1]),
        np.array([1], np.int8), np.array([[1]]), np.float32(1), -0.0, 0.0, "int 1", "NoneType None",
        ["1", "1"], ["11"], b"", "", {},
    ]  # fmt: skip
    digests = [sample_digest({"x": value}, "content") for value in values]
    for one, two in combinations(range(len(values)), 2):
        assert digests[one] != digests[two], (values[one], values[two])
    records = [np.zeros(2, dtype=kind) for kind in ([("a", "i4"), ("b", "i4")], [("c", "i4"), ("b", "f4")], "V8")]
    assert len({sample_digest({"x": value}, "content") for value in records}) == 3
    every_second = memoryview(b"a-c-")[::2]
    assert sample_digest({"x": every_second}, "content") == sample_digest({"x": b"ac"}, "content")
    assert sample_digest({"a": 1, "b": 2}, "content") == sample_digest({"b": 2, "a": 1, "key": 5}, "content")
    assert sample_digest({"a": b"x"}, "content") == sample_digest({"a": bytearray(b"x"), "__key__": "k"}, "content")
    assert sample_digest({"__key__": "k", "key": 1}, "content") != sample_digest({"__key__": "k", "key": 2}, "content")
    assert sample_digest({"key": "k"}, "key") == sample_digest({"__key__": "k", "x": 1}, "key")
    with pytest.raises(UsageError, match="neither __key__ nor key"):
        sample_digest({"x": 1}, "key")
    with pytest.raises(UsageError, match="object of object"):
        sample_digest({"x": object()}, "content")


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(0, 9))
def test_the_first_of_equal_digests_stays(numbers: list[int], more: int) -> None:
    among = np.arange(len(numbers)) + more
    digests = np.array([[number, 0] for number in numbers], dtype=np.uint64).reshape(-1, 2)
    found = distinct_digests(digests, among, len(numbers) + more)
    expected = list(range(more))
    expected += [i + more for i, n in enumerate(numbers) if n == 0 or n not in numbers[:i]]
    assert found.kept.tolist() == expected
    assert [numbers[i - more] for i in found.left_out] == [numbers[i - more] for i in found.equals]
    assert sorted([*found.kept.tolist(), *found.left_out.tolist()]) == list(range(len(numbers) + more))
