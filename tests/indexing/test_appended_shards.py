"""New shards are appended to an index: known shards are not read, ids and states stay, and generations are recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.calls import Calls

import shoal
from shoal.errors import UsageError
from shoal.formats.folder.reader import Folder
from shoal.index.assembly import validate
from shoal.index.index_generations import appended, first_generation, generations_of
from shoal.index.table import Index
from shoal.indexing.generations.appending import append_shards
from shoal.indexing.index_files import load_index
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import expand


def write(directory: Path, name: str, start: int, langs: str, count: int = 6) -> Path:
    """A shard of JSON lines with numbers and languages."""
    directory.mkdir(exist_ok=True)
    rows = ({"id": i, "lang": langs[i % len(langs)], "text": "x" * (i % 5)} for i in range(start, start + count))
    path = directory / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def index_of(directory: Path) -> Index:
    index = load_index(str(directory / "shoal.index"), store=LocalStore())
    validate(index)
    return index


def test_known_shards_are_not_read_and_keep_their_numbers(tmp_path: Path, calls: Calls) -> None:
    data = tmp_path / "data"
    known = [write(data, "m", 0, "ab"), write(data, "n", 6, "ab")]
    calls.json("index", data, "--columns", "id,lang,text:len", "--checksum")
    before = index_of(data)
    write(data, "a", 12, "zbq"), write(data, "z", 18, "c")
    for path in known:
        path.write_bytes(bytes(path.stat().st_size))  # who read them would fail
    said = calls.json("index", data, "--append")
    assert "2 new shards appended" in calls.complaints
    assert "belong to other shards" not in calls.complaints
    after = index_of(data)
    assert list(after.shard_names) == ["m.jsonl", "n.jsonl", "a.jsonl", "z.jsonl"]
    assert (said["num_samples"], said["checksums"]) == (24, True)
    assert after.columns["id"].tolist() == list(range(24))
    words = after.metadata["texts"]["lang"]
    assert words == sorted(words) == ["a", "b", "c", "q", "z"]
    langs = ["ab"[i % 2] for i in range(12)] + ["zbq"[i % 3] for i in range(12, 18)] + ["c"] * 6
    assert [words[number] for number in after.columns["lang"]] == langs
    assert [line.num_shards for line in generations_of(after)] == [2, 4]
    assert generations_of(after)[0].fingerprint == before.fingerprint == first_generation(after, 2).fingerprint
    assert "generations" not in first_generation(before, 1).metadata


def test_an_appended_index_is_that_of_all_shards_in_its_order(tmp_path: Path, calls: Calls) -> None:
    data = tmp_path / "data"
    for number, name in enumerate("cde"):
        write(data, name, number * 6, "ab")
    calls.json("index", data)
    write(data, "a", 18, "ab")
    calls.json("index", data, "--append")
    grown = index_of(data)
    fresh = shoal.open([data / name for name in grown.shard_names]).stream.opened.index
    assert grown.fingerprint == fresh.fingerprint
    for name in ("extent_first_byte", "extent_decoded_bytes", "extent_layout_crc", "sample_bytes", "shard_bytes"):
        assert np.array_equal(getattr(grown, name), getattr(fresh, name))
    assert list(grown.shard_versions) == list(fresh.shard_versions)
    assert [row["id"] for row in shoal.open(data)] == list(range(24))
    same = (data / "shoal.index").read_bytes()
    calls.json("index", data, "--append")
    assert (data / "shoal.index").read_bytes() == same


def test_missing_shards_are_named_and_left_out_on_request(tmp_path: Path, calls: Calls) -> None:
    data = tmp_path / "data"
    for number, name in enumerate("abcd"):
        write(data, name, number * 6, "ab")
        calls.json("index", data, *(["--append"] if number else []))
    gone = [data / "b.jsonl", data / "c.jsonl"]
    for path in gone:
        path.unlink()
    calls.text("index", data, "--append", code=2)
    assert "lacks 2 shards of the index: b.jsonl, c.jsonl" in calls.complaints
    assert "--drop-missing" in calls.complaints
    calls.json("index", data, "--append", "--drop-missing")
    assert "2 shards left out, first b.jsonl" in calls.complaints
    index = index_of(data)
    assert list(index.shard_names) == ["a.jsonl", "d.jsonl"]
    assert [line.num_shards for line in generations_of(index)] == [1, 2]  # later ones are no prefix any more
    assert [row["id"] for row in shoal.open(data)] == [*range(6), *range(18, 24)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--append", "--extent-bytes", "4KiB"], "--append makes new shards like the shards of the index"),
        (["--append", "--columns", "id"], "--append makes new shards like the shards of the index"),
        (["--drop-missing"], "--drop-missing belongs to --append"),
        (["--append"], "there is no index to append to"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, calls: Calls, words: list[str], message: str) -> None:
    write(tmp_path / "data", "a", 0, "ab")
    calls.text("index", tmp_path / "data", *words, code=2)
    assert message in calls.complaints


def test_a_known_shard_of_another_size_is_refused(tmp_path: Path, calls: Calls) -> None:
    data = tmp_path / "data"
    write(data, "a", 0, "ab")
    calls.json("index", data)
    write(data, "a", 0, "ab", 7), write(data, "b", 7, "ab")
    calls.text("index", data, "--append", code=2)
    assert "1 shard of the index changed" in calls.complaints


def test_other_types_of_values_are_refused(tmp_path: Path, calls: Calls) -> None:
    data = tmp_path / "data"
    write(data, "a", 0, "ab")
    calls.json("index", data, "--columns", "lang")
    (data / "b.jsonl").write_text('{"id": 1, "lang": 7}\n')
    calls.text("index", data, "--append", code=2)
    assert "the column 'lang' holds texts in the index, but numbers in the new shards" in calls.complaints


def test_shards_packed_by_shoal_are_appended_with_the_checksums_of_their_samples(tmp_path: Path, calls: Calls) -> None:
    data = tmp_path / "data"
    shoal.pack.pack(({"id": i} for i in range(9)), data, format="jsonl", columns=["id"])
    more = tmp_path / "more"
    shoal.pack.pack(({"id": i} for i in range(9, 14)), more, format="jsonl")
    (more / "shard-000000.jsonl").rename(data / "new.jsonl")
    before = index_of(data)
    calls.json("index", data, "--append")
    after = index_of(data)
    assert after.columns.keys() == before.columns.keys()
    assert after.columns["id"].tolist() == list(range(14))
    assert [row["id"] for row in shoal.open(data).reading(verify="always")] == list(range(14))


def test_records_of_a_stranger_are_not_trusted(tmp_path: Path) -> None:
    write(tmp_path / "data", "a", 0, "ab"), write(tmp_path / "data", "b", 6, "ab")
    index = shoal.open(tmp_path / "data").stream.opened.index
    records: list[Any] = [
        5, [5], [{"fingerprint": 1}], [{"fingerprint": "f", "num_shards": 9, "num_samples": 1, "created": ""}],
    ]  # fmt: skip
    for record in records:
        strange = replace(index, metadata={**index.metadata, "generations": record})
        assert [line.num_shards for line in generations_of(strange)] == [2]
    with pytest.raises(UsageError, match="in the index already"):
        appended(index, index)


def test_a_folder_of_files_is_listed_again_instead(tmp_path: Path) -> None:
    path = write(tmp_path / "data", "a", 0, "ab")
    index = shoal.open(path).stream.opened.index
    with pytest.raises(UsageError, match="a folder of single files has no shards to append") as caught:
        append_shards(index, expand(path, suffixes=()), store=LocalStore(), format=Folder())
    assert "shoal index" in (caught.value.hint or "")
