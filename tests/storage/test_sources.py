from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import SourceError, StorageError
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources import patterns
from shoal.storage.sources.patterns import expand_braces, has_braces
from shoal.storage.sources.source import Source, SourceLike, expand

SUFFIXES = (".tar", ".jsonl")


def named(source: SourceLike) -> Source:
    return expand(source, suffixes=SUFFIXES)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = ["train/000.tar", "train/001.tar", "train/002.tar", "val/000.tar", "README.md", "shoal.index", ".hid/x.tar"]
    for name in names:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def test_one_file(data: Path) -> None:
    for source in ("data/train/000.tar", data / "train/000.tar", f"file://{data}/train/000.tar"):
        found = named(source)
        assert (found.kind, found.root, found.names) == ("file", str(data / "train"), ("000.tar",))
        assert found.paths == (str(data / "train/000.tar"),)
        assert not found.complete


def test_directory_is_recursive_sorted_and_skips_what_is_hidden(data: Path) -> None:
    (data / "linked").symlink_to(data / "val")
    (data / "val" / "circle").symlink_to(data)
    found = named("data")
    assert found.kind == "directory"
    assert found.complete
    assert found.root == str(data)
    assert found.names == ("linked/000.tar", "train/000.tar", "train/001.tar", "train/002.tar", "val/000.tar")
    assert [info.num_bytes for info in found.stat(LocalStore())] == [11, 13, 13, 13, 11]


def test_a_number_behind_the_suffix_is_passed_over(data: Path) -> None:
    for name in ("a.tar-00001-of-00002", "a.tar-00000-of-00002", "a.tar-2", "a.bin-00000-of-00002"):
        (data / "val" / name).write_bytes(b"x")
    assert named("data/val").names == ("000.tar", "a.tar-00000-of-00002", "a.tar-00001-of-00002")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("_delta_log/00000000000000000000.json", "a Delta Lake table"),
        ("_delta_log/00000000000000000010.checkpoint.tar", "a Delta Lake table"),
        ("metadata/00001-abc.metadata.json", "an Iceberg table"),
        ("_temporary/0/task_1/part-0.tar", "not finished"),
    ],
)
def test_tables_that_have_a_log_are_not_taken_for_their_files(name: str, what: str, data: Path) -> None:
    (data / "train" / name).parent.mkdir(parents=True)
    (data / "train" / name).write_bytes(b"x")
    for source in ("data/train", "data", "data/train/*.tar"):
        with pytest.raises(SourceError, match=what) as caught:
            named(source)
        is_below = source == "data" and "not finished" not in what
        assert (f"open the table itself: {data}/train" if is_below else "list of") in (caught.value.hint or "")
    assert named(["data/train/000.tar", "data/train/001.tar"]).names == ("000.tar", "001.tar")


def test_globs(data: Path) -> None:
    assert named("data/train/00[12].tar").names == ("001.tar", "002.tar")
    found = named("data/**/*.tar")
    assert (found.kind, found.root) == ("glob", str(data))
    assert found.names == ("train/000.tar", "train/001.tar", "train/002.tar", "val/000.tar")
    assert named("data/v*/0*").root == str(data)
    assert named("data/*").names == ("README.md",)


def test_braces_keep_their_order(data: Path) -> None:
    found = named("data/{val,train}/{000..000}.tar")
    assert (found.kind, found.root, found.names) == ("braces", str(data), ("val/000.tar", "train/000.tar"))
    assert named("data/train/{002..000}.tar").names == ("002.tar", "001.tar", "000.tar")
    assert named("data/{val,train}").names[:2] == ("val/000.tar", "train/000.tar")
    assert named("data/{val,train}/*.tar").names[:2] == ("val/000.tar", "train/000.tar")


def test_lists(data: Path) -> None:
    sources: list[SourceLike] = [["data/val", Path("data/train/001.tar")], "data/val::data/train/001.tar"]
    for source in sources:
        found = named(source)
        assert (found.kind, found.root) == ("list", str(data))
        assert found.names == ("val/000.tar", "train/001.tar")
    assert named(["data/train"]).kind == "list"
    assert named(("data/train/000.tar",)).root == str(data / "train")


def test_home(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(data))
    assert named("~/val").paths == (str(data / "val/000.tar"),)


def test_index(data: Path) -> None:
    found = named("data/shoal.index")
    assert (found.kind, found.root, found.names) == ("index", str(data), ("shoal.index",))
    with pytest.raises(SourceError, match="cannot be a part of a list"):
        named(["data/shoal.index", "data/val"])


@pytest.mark.parametrize("name", ["a[1].tar", "b{1..3}.tar", "c{x.tar", "d*.tar", "e::f.tar", "s p.tar", "ü%20.tar"])
def test_a_file_of_exactly_that_name_wins(data: Path, name: str) -> None:
    (data / name).write_bytes(b"")
    assert named(f"data/{name}").names == (name,)


def test_file_url_is_decoded(data: Path) -> None:
    (data / "a b?c.tar").write_bytes(b"")
    assert named(f"file://localhost{data}/a%20b%3Fc.tar").names == ("a b?c.tar",)
    assert named(f"file:{data}/train/{{000..001}}.tar").names == ("000.tar", "001.tar")
    with pytest.raises(SourceError, match="names this machine, not elsewhere"):
        named("file://elsewhere/data")


def test_missing_names_the_nearest(data: Path) -> None:
    with pytest.raises(SourceError, match="no such file or directory") as caught:
        named("data/train/00l.tar")
    assert "has no 00l.tar; it holds 00" in caught.value.hint
    with pytest.raises(SourceError) as caught:
        named("data/trian/sub/000.tar")
    assert f"{data} has no trian; it holds train/" in caught.value.hint
    with pytest.raises(SourceError, match="matches nothing"):
        named("data/train/*.tra")
    with pytest.raises(SourceError, match="matches 2 directories"):
        named("data/[tv]*")


def test_empty_directory_says_what_it_saw(data: Path) -> None:
    (data / "other").mkdir()
    for name in ("a.parquet", "b.parquet", "c.txt"):
        (data / "other" / name).touch()
    with pytest.raises(SourceError, match=r"looked for \.tar, \.jsonl, found 2 x \.parquet, 1 x \.txt"):
        named("data/other")


def test_missing_brace_members_are_counted(data: Path) -> None:
    with pytest.raises(SourceError, match=r"3 of the 5 files it names are missing; the first is .*003\.tar"):
        named("data/train/{001..005}.tar")


def test_the_same_file_twice(data: Path) -> None:
    with pytest.raises(SourceError, match=r"names 1 of 3 files more than once; the first is .*001\.tar"):
        named(["data/train", "data/train/001.tar"])


@pytest.mark.parametrize("source", ["", [], 3, None, b"x", [["a"]], {"a"}, [b"x"], "pipe:cat x.tar", "x{1..2.tar"])
def test_what_is_no_source(source: object) -> None:
    with pytest.raises(SourceError):
        named(source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("x", ["x"]),
        ("{a}", ["{a}"]),
        ("{}", ["{}"]),
        ("{a,}", ["a", ""]),
        ("{1..3}", ["1", "2", "3"]),
        ("{01..3}", ["01", "02", "03"]),
        ("{8..10}", ["8", "9", "10"]),
        ("{0..6..3}", ["0", "3", "6"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{a..c}", ["a", "b", "c"]),
        ("{a,b{1..2}}{x,y}", ["ax", "ay", "b1x", "b1y", "b2x", "b2y"]),
        ("{{a,b}}", ["{a}", "{b}"]),
        ("a}b", ["a}b"]),
    ],
)
def test_braces_as_in_the_shell(pattern: str, names: list[str]) -> None:
    assert list(expand_braces(pattern)) == names
    assert has_braces(pattern) == (names != [pattern])


def test_braces_that_multiply_are_counted_before_they_are_expanded() -> None:
    with pytest.raises(SourceError, match="stands for 8,388,608 names; at most 1,000,000 are"):
        next(expand_braces("{a,b}" * 23))
    with pytest.raises(SourceError, match="stands for 1,000,001 names"):
        next(expand_braces("data/{0..1000000}.tar"))
    assert has_braces("{a,b}" * 23)
    names = list(expand_braces("{a,b}" * 16))
    assert names == ["".join(letters) for letters in itertools.product("ab", repeat=16)]


def test_too_many_braces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_NAMES", 1000)
    assert len(list(expand_braces("{0..9}{0..99}"))) == 1000
    with pytest.raises(SourceError, match="stands for 1,000,000,000 names; at most 1,000 are"):
        list(expand_braces("{0..9}{0..99999999}"))


@given(st.integers(0, 10**6), st.integers(0, 40), st.integers(1, 8))
def test_padded_range_is_what_formatting_gives(first: int, extra: int, width: int) -> None:
    numbers = range(first, first + extra + 1)
    pattern = f"{{{first:0{width}d}..{first + extra:0{width}d}}}"
    assert [int(name) for name in expand_braces(pattern)] == list(numbers)
    if width >= len(str(first + extra)):
        assert list(expand_braces(pattern)) == [f"{number:0{width}d}" for number in numbers]


def test_a_directory_that_cannot_be_listed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(SourceError, match="cannot be listed: Permission denied"):
        named("data/train")


def test_what_was_compressed_is_named_with_what_it_is(tmp_path: Path) -> None:
    for name in ("a.jsonl.zst", "b.jsonl.zst", "c.txt"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(SourceError, match=r"found 2 x \.jsonl\.zst, 1 x \.txt"):
        expand(str(tmp_path), suffixes=(".jsonl",))


def test_what_datasets_caches_beside_a_dataset_is_no_shard_of_it(tmp_path: Path) -> None:
    for name in (
        "data-00000-of-00001.arrow",
        "cache-0123456789abcdef.arrow",
        "cache-0123456789abcdef_00001_of_00004.arrow",
    ):
        (tmp_path / name).touch()
    assert expand(tmp_path, suffixes=(".arrow",)).names == ("data-00000-of-00001.arrow",)
    (tmp_path / "data-00000-of-00001.arrow").unlink()
    assert len(expand(tmp_path, suffixes=(".arrow",)).names) == 2  # then they are what was asked for


def test_a_link_that_leads_nowhere_is_an_error_that_names_link_and_target(data: Path) -> None:
    """However the source names it: by a glob, a directory, braces, a list, or itself."""
    link = data / "train" / "003.tar"
    link.symlink_to(data / "gone.tar")
    said = rf"003\.tar: it is a link to {re.escape(str(data))}/gone\.tar, which does not exist"
    for source in ("data/train/*.tar", "data/train", "data/**/*.tar", "data/train/{000..003}.tar", [link], link):
        with pytest.raises(StorageError, match=said):
            named(source).stat(LocalStore())
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(StorageError, match=r"003\.tar: it is a link to .*/003\.tar, .*circle"):
        named("data/train/*.tar").stat(LocalStore())


def test_a_link_to_a_directory_that_is_gone_is_an_error(data: Path) -> None:
    (data / "test").symlink_to("elsewhere/test")
    for source in ("data", "{data,data/train}", "data/*/*.tar", "data/**/*.tar", "data/{train,t*}/*.tar"):
        with pytest.raises(SourceError, match=r"data/test is a link to elsewhere/test, which does not exist"):
            named(source)
    (data / "test").unlink()
    (data / "NOTES.md").symlink_to("elsewhere/NOTES.md")  # no shard, whatever it leads to
    assert len(named("data").names) == len(named("data/**/*.tar").names) == 4
