"""`shoal pack --tokenize` makes the same token shards of JSON Lines, Parquet and plain text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.calls import Calls
from tests.pipeline.tokenizers_of_tests import TEXTS, write_tokenizer
from tokenizers import Tokenizer

import shoal
from shoal.errors import ShardError

DOCUMENTS = [f"{TEXTS[number % 2]} é {number}" * (1 + number % 5) for number in range(60)]


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    return Calls(capsys)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer.json")


def write(raw: Path, kind: str) -> None:
    raw.mkdir()
    if kind == "jsonl":
        (raw / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    elif kind == "parquet":
        pq.write_table(pa.table({"text": DOCUMENTS}), raw / "a.parquet")
    elif kind == "file":
        for number, text in enumerate(DOCUMENTS):
            (raw / f"{number // 10}").mkdir(exist_ok=True)
            (raw / f"{number // 10}" / f"{number:03d}.txt").write_text(text)
    else:
        (raw / "a.txt.gz").write_bytes(gzip.compress("\n\n".join(DOCUMENTS).encode()))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "file", "line"])
def test_tokens_are_those_of_the_library(calls: Calls, tmp_path: Path, tokenizer: Path, kind: str) -> None:
    write(tmp_path / "raw", kind)
    words = ("--documents", kind) if kind == "line" else ()
    said = calls.json("pack", tmp_path / "raw", tmp_path / "tokens", "--tokenize", tokenizer, *words)
    assert (said["format"], said["num_samples"]) == ("mds", len(DOCUMENTS))
    library = Tokenizer.from_file(str(tokenizer))
    expected = [library.encode(text).ids for text in DOCUMENTS]
    ds = shoal.open(tmp_path / "tokens")
    assert [sample["tokens"].tolist() for sample in ds] == expected
    assert ds.index_column("num_tokens").tolist() == list(map(len, expected))
    assert ds[7].get("__key__") == ("0/007" if kind == "file" else None)
    packed = ds.shuffle(seed=0).pack_sequences(64)
    num_tokens = sum(int((sequence["segment_ids"] > 0).sum()) for sequence in packed)
    assert num_tokens == sum(map(len, expected))


def test_one_file_and_another_field_and_format(calls: Calls, tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "book.txt").write_text("\n".join(DOCUMENTS))
    said = calls.json("pack", tmp_path / "book.txt", tmp_path / "a", "--tokenize", tokenizer)
    assert said["num_samples"] == 1
    said = calls.json("pack", tmp_path / "book.txt", tmp_path / "b", "--tokenize", tokenizer, "--documents", "line")
    assert said["num_samples"] == len(DOCUMENTS)
    (tmp_path / "a.jsonl").write_text('{"body": "the quick"}\n')
    words = ("--text-field", "body", "--format", "parquet")
    said = calls.json("pack", tmp_path / "a.jsonl", tmp_path / "c", "--tokenize", tokenizer, *words)
    assert (said["format"], said["num_samples"]) == ("parquet", 1)


def test_what_does_not_apply_is_refused(calls: Calls, tmp_path: Path, tokenizer: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write(raw, "jsonl")
    assert "--documents line was requested" in calls.refused(
        "pack", raw, out, "--tokenize", tokenizer, "--documents", "line"
    )
    assert "--group, --shuffle does not apply" in calls.refused(
        "pack", raw, out, "--tokenize", tokenizer, "--group", "--shuffle"
    )
    assert "--tokenize is not given" in calls.refused("pack", raw, out, "--documents", "line")
    (raw / "a.txt").write_text("a")
    assert "plain text, as" in calls.refused("pack", raw, out, "--tokenize", tokenizer)
    (raw / "a.jsonl").unlink()
    (raw / "b.txt.gz").write_bytes(gzip.compress(b"b"))
    assert "each file is to be a document" in calls.refused("pack", raw, out, "--tokenize", tokenizer)
    (tmp_path / "none").mkdir()
    assert "plain text (.txt)" in calls.refused("pack", tmp_path / "none", out, "--tokenize", tokenizer)


@pytest.mark.parametrize("kind", ["mds", "parquet"])
def test_a_file_that_is_not_utf_8_is_an_error_that_names_it_and_may_be_skipped(
    calls: Calls, tmp_path: Path, tokenizer: Path, kind: str
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write(raw, "file")
    (raw / "zz.txt").write_bytes("über".encode("latin-1"))
    words = ("pack", raw, out, "--tokenize", tokenizer, "--format", kind)
    assert calls.text(*words, code=1) == ""
    refused = calls.complaints
    assert "zz.txt" in refused
    assert "byte 0" in refused
    assert "UTF-8" in refused
    assert "--on-error skip" in refused
    said = calls.json(*words, "--on-error", "skip")
    assert (said["num_samples"], said["num_skipped"]) == (len(DOCUMENTS), 1)
    ds = shoal.open(raw, format=shoal.formats.Folder(labels=False, suffixes=[".txt"])).tokenize(tokenizer, field="txt")
    with pytest.raises(ShardError, match=r"field 'txt' \(4 bytes\) of the sample with id 60"):
        list(ds)
    skipping = ds.reading(on_error="skip")
    assert len(list(skipping)) == len(DOCUMENTS)
    assert skipping.stats()["num_skipped"] == 1


def test_what_is_left_out_or_done_already_is_said(calls: Calls, tmp_path: Path, tokenizer: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    write(raw, "file")
    for number in range(3):
        (raw / f"empty{number}.txt").write_bytes(b"")
    words = ("pack", raw, out, "--tokenize", tokenizer)
    calls.text(*words)
    assert "note: left out 3 empty files" in calls.complaints
    assert "nothing was done" not in calls.complaints
    again = calls.text(*words)
    assert "was already finished; nothing was done" in calls.complaints
    assert "0.0/s" not in again
    (tmp_path / "a.jsonl").write_text('{"body": "the quick"}\n')
    assert "--text-field" in calls.refused("pack", tmp_path / "a.jsonl", tmp_path / "c", "--tokenize", tokenizer)


def test_files_of_other_suffixes_are_counted_and_taken_by_a_glob(calls: Calls, tmp_path: Path, tokenizer: Path) -> None:
    write(tmp_path / "raw", "file")
    for number, text in enumerate(DOCUMENTS[:7]):
        (tmp_path / "raw" / f"{number}.md").write_text(text)
    (tmp_path / "raw" / "LICENSE").write_text("none")
    said = calls.json("pack", tmp_path / "raw", tmp_path / "texts", "--tokenize", tokenizer)
    assert (said["num_samples"], said["left_out"]) == (len(DOCUMENTS), {".md": 7, "LICENSE": 1})
    calls.text("pack", tmp_path / "raw", tmp_path / "again", "--tokenize", tokenizer)
    assert "note: left out by their suffixes: 7 x .md, 1 x LICENSE; a glob includes these files" in calls.complaints
    expected = [shoal.open(tmp_path / "texts")[number]["tokens"].tolist() for number in range(7)]
    pages = tmp_path / "raw" / "**" / "*.md"
    for number, words in enumerate(((), ("--documents", "file"))):
        said = calls.json("pack", pages, tmp_path / f"pages{number}", "--tokenize", tokenizer, *words)
        assert (said["num_samples"], said.get("left_out")) == (7, None)
        assert [sample["tokens"].tolist() for sample in shoal.open(tmp_path / f"pages{number}")] == expected
    said = calls.json("pack", pages, tmp_path / "lines", "--tokenize", tokenizer, "--documents", "line")
    assert said["num_samples"] == sum(len(text.splitlines()) for text in DOCUMENTS[:7])
    both = calls.json("pack", tmp_path / "raw" / "**" / "*.{md,txt}", tmp_path / "both", "--tokenize", tokenizer)
    assert both["num_samples"] == 67


@pytest.mark.parametrize(("name", "documents"), [("text", "line"), ("folder", "file")])
def test_a_format_that_is_only_read_is_that_of_the_texts(
    calls: Calls, tmp_path: Path, tokenizer: Path, name: str, documents: str
) -> None:
    write(tmp_path / "raw", "file")
    (tmp_path / "raw" / "a.md").write_text("first line\nsecond line")
    for number, source in enumerate((tmp_path / "raw", tmp_path / "raw" / "*.md")):
        outs: list[Path] = []
        for words in (("--format", name), ("--documents", documents), ("--format", name, "--documents", documents)):
            outs.append(tmp_path / f"{number}-{len(outs)}")
            said = calls.json("pack", source, outs[-1], "--tokenize", tokenizer, *words)
            assert said["format"] == "mds"
        tokens = [[sample["tokens"].tolist() for sample in shoal.open(out)] for out in outs]
        assert tokens[0] == tokens[1] == tokens[2]
        assert number == 0 or len(tokens[0]) == (2 if name == "text" else 1)
    other = "file" if documents == "line" else "line"
    request = ("--tokenize", tokenizer, "--format", name, "--documents", other)
    refused = calls.refused("pack", tmp_path / "raw", tmp_path / "out", *request)
    assert f"--format {name} takes each {documents} for a document, but --documents {other} does not" in refused
    assert "there is no format 'text' to write" in calls.refused(
        "pack", tmp_path / "raw", tmp_path / "out", "--format", "text"
    )


def test_a_directory_of_other_texts_says_how_to_have_them(calls: Calls, tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.md").write_text("text")
    complaint = calls.refused("pack", tmp_path / "raw", tmp_path / "texts", "--tokenize", tokenizer)
    assert "found 1 x .md" in complaint
    assert "'DIR/**/*.md'" in complaint
