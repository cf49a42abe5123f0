"""What every remote store does alike."""

from __future__ import annotations

import errno
import pickle
import sys
from typing import Any, ClassVar

import pytest
from tests.storage.servers import CAN_LIST, SECRET, Place

from shoal.errors import ForkError, SourceError, StorageError, UsageError
from shoal.storage.files.local_store import LocalStore
from shoal.storage.memory_store import MemoryStore
from shoal.storage.sources.source import expand
from shoal.storage.store_of_url import in_store, open_store

SUFFIXES = (".tar", ".jsonl")
DATA = bytes(range(256)) * 40


def named(source: Any, place: Place) -> Any:
    return expand(source, suffixes=SUFFIXES, store=place.store())


def fill(place: Place, names: list[str]) -> None:
    for name in names:
        place.put(name, name.encode())


def test_reads_are_exactly_what_was_asked_for(place: Place) -> None:
    place.put("a b%20+ü.tar" if place.kind != "http" else "a.tar", DATA)
    path = f"{place.root}/{'a b%20+ü.tar' if place.kind != 'http' else 'a.tar'}"
    store = place.store()
    for first, end in [(0, 1), (0, len(DATA)), (255, 257), (len(DATA) - 1, len(DATA)), (7, 7)]:
        assert store.read_range(path, first, end) == DATA[first:end]
    reader = store.reader(path)
    assert reader(3, 9) == DATA[3:9]
    reader.confirm()
    assert bytes(store.map(path)) == DATA
    store.advise(path, 0, 10)
    store.close()
    assert store.read_range(path, 0, 3) == DATA[:3]
    with pytest.raises(UsageError, match="not a range"):
        store.read_range(path, 5, 4)


def test_stat_and_find(place: Place) -> None:
    place.put("a.tar", DATA)
    place.put("empty.tar", b"")
    store = place.store()
    info = store.stat(f"{place.root}/a.tar")
    assert (info.path, info.num_bytes) == (f"{place.root}/a.tar", len(DATA))
    assert info.version
    assert '"' not in info.version
    assert store.find(f"{place.root}/a.tar") == info
    assert store.stat(f"{place.root}/empty.tar").num_bytes == 0
    assert store.find(f"{place.root}/nothing.tar") is None
    for ask in (store.stat, lambda path: store.read_range(path, 0, 1)):
        with pytest.raises(StorageError, match=r"nothing\.tar") as caught:
            ask(f"{place.root}/nothing.tar")
        assert caught.value.errno == errno.ENOENT
        assert not caught.value.transient


@pytest.mark.parametrize("first", [5, 10, 400])
def test_a_range_beyond_the_end(first: int, place: Place) -> None:
    place.put("a.tar", b"0123456789")
    with pytest.raises(StorageError, match=rf"\[{first}, 500\)") as caught:
        place.store().read_range(f"{place.root}/a.tar", first, 500)
    if place.kind != "fsspec":  # there, only lengths are known, and only of what was looked at
        assert not caught.value.transient


def test_another_version_is_an_error(place: Place) -> None:
    if place.kind == "fsspec":
        pytest.skip("these filesystems do not say which version a read is of")
    place.put("a.tar", DATA)
    store, path = place.store(), f"{place.root}/a.tar"
    store.read_range(path, 0, 10)
    place.put("a.tar", DATA[::-1])
    with pytest.raises(StorageError, match=r"a\.tar: this object changed while it was being read") as caught:
        store.read_range(path, 0, 10)
    assert not caught.value.transient
    store.close()
    assert store.read_range(path, 0, 10) == DATA[::-1][:10]


def test_a_pickled_store_works(place: Place) -> None:
    place.put("a.tar", DATA)
    store = place.store()
    store.stat(f"{place.root}/a.tar")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.read_range(f"{place.root}/a.tar", 5, 9) == DATA[5:9]
    assert not copy.reads_ahead
    assert SECRET not in repr(store)


def test_put(place: Place) -> None:
    store = place.store()
    if place.kind == "http":
        with pytest.raises(StorageError, match="does not write"):
            store.put(f"{place.root}/new", b"x")
        return
    store.put(f"{place.root}/new", [b"ab", memoryview(b"cd")])
    assert store.read_range(f"{place.root}/new", 0, 4) == b"abcd"
    store.put(f"{place.root}/new", b"efg")
    assert bytes(store.map(f"{place.root}/new")) == b"efg"


NAMES = [
    "train/000.tar",
    "train/001.tar",
    "train/002.tar",
    "train/deep/er/003.tar",
    "val/000.tar",
    "README.md",
    "shoal.index",
    ".hid/x.tar",
    "train/.hid.tar",
]


def test_what_urls_name(place: Place) -> None:
    fill(place, NAMES)
    root = place.root
    one = named(f"{root}/train/000.tar", place)
    assert (one.kind, one.root, one.names) == ("file", f"{root}/train", ("000.tar",))
    assert one.paths == (f"{root}/train/000.tar",)
    index = named(f"{root}/shoal.index", place)
    assert (index.kind, index.root, index.names) == ("index", root, ("shoal.index",))
    braces = named(f"{root}/{{val,train}}/{{000..000}}.tar", place)
    assert (braces.kind, braces.root, braces.names) == ("braces", root, ("val/000.tar", "train/000.tar"))
    both = named([f"{root}/val/000.tar", f"{root}/train/001.tar"], place)
    assert (both.kind, both.root, both.names) == ("list", root, ("val/000.tar", "train/001.tar"))
    assert named(f"{root}/val/000.tar::{root}/train/001.tar", place).names == both.names
    assert [info.num_bytes for info in both.stat(place.store())] == [11, 13]
    with pytest.raises(SourceError, match="names 1 of 1 files more than once"):
        named([f"{root}/val/000.tar"] * 2, place)


def test_what_must_be_listed(place: Place) -> None:
    fill(place, NAMES)
    root = place.root
    if place.kind not in CAN_LIST:
        for source in (f"{root}/train/*.tar", f"{root}/train/00[01].tar", f"{root}/{{val,train}}/*.tar"):
            with pytest.raises(StorageError, match="cannot be listed") as caught:
                named(source, place)
            assert "braces" in caught.value.hint
        with pytest.raises(SourceError, match=r"there is no shoal\.index"):
            named(f"{root}/train/", place)
        beside = named(f"{root}/", place)
        assert (beside.kind, beside.paths) == ("index", (f"{root}/shoal.index",))
        return
    for source in (root, f"{root}/"):
        found = named(source, place)
        assert (found.kind, found.root, found.complete) == ("directory", root, True)
        assert found.names == (
            *("train/000.tar", "train/001.tar", "train/002.tar", "train/deep/er/003.tar"),
            "val/000.tar",
        )
    assert named(f"{root}/train/00[12].tar", place).names == ("001.tar", "002.tar")
    deep = named(f"{root}/**/*.tar", place)
    assert (deep.kind, deep.root) == ("glob", root)
    assert deep.names == named(root, place).names
    assert named(f"{root}/t*/0*", place).root == root
    assert named(f"{root}/*", place).names == ("README.md",)
    assert named(f"{root}/train/?01.tar", place).names == ("001.tar",)
    assert named(f"{root}/{{val,train}}", place).names[:2] == ("val/000.tar", "train/000.tar")
    assert named(f"{root}/{{val,train}}/*.tar", place).names[:2] == ("val/000.tar", "train/000.tar")
    with pytest.raises(SourceError, match="matches nothing") as refused:
        named(f"{root}/train/*.jsonl", place)
    assert "000.tar" in refused.value.hint
    with pytest.raises(SourceError, match="there is no such object") as refused:
        named(f"{root}/tranin", place)
    with pytest.raises(SourceError, match="holds no shards: looked for"):
        expand(root, suffixes=(".parquet",), store=place.store())
    with pytest.raises(SourceError, match=r"found .* x \.tar") as refused:
        expand(root, suffixes=(".jsonl",), store=place.store())
    with pytest.raises(
        SourceError, match=r"7 of the 10 files it names are missing; the first is .*003\.tar"
    ) as refused:
        named(f"{root}/train/{{000..009}}.tar", place)
    assert "002.tar" in refused.value.hint


def test_a_name_without_a_known_suffix(place: Place) -> None:
    place.put("shards/part-0", b"x")
    if place.kind == "http":
        assert named(f"{place.root}/shards/part-0", place).kind == "file"
        return
    for source in (f"{place.root}/shards/part-0", [f"{place.root}/shards/part-0"]):
        assert named(source, place).paths == (f"{place.root}/shards/part-0",)
    assert named(f"{place.root}/shards/part-{{0..0}}", place).names == ("part-0",)


def test_queries_are_kept_by_the_store_alone() -> None:
    secret = "X-Amz-Signature=topsecret"
    url = f"http://user:topsecret@h.example/a/{{0..2}}.tar?{secret}"
    store: Any = open_store(url)
    found = expand(url, suffixes=SUFFIXES, store=store)
    assert found.paths == tuple(f"http://h.example/a/{i}.tar" for i in range(3))
    assert found.names == ("0.tar", "1.tar", "2.tar")
    assert "topsecret" not in repr((found, store))
    assert store._full[found.paths[1]] == f"http://user:topsecret@h.example/a/1.tar?{secret}"


def test_urls_that_differ_in_their_query_alone() -> None:
    url = "http://h.example/get?shard={0..2}.tar"
    store: Any = open_store(url)
    found = expand(url, suffixes=SUFFIXES, store=store)
    assert len(set(found.paths)) == 3
    assert {store._full[path] for path in found.paths} == {f"http://h.example/get?shard={i}.tar" for i in range(3)}
    assert all("shard=" not in path for path in found.paths)


def test_names_of_http_are_those_of_files() -> None:
    url = "http://h.example/a%20b/c%C3%BC.tar"
    found = expand([url, "http://h.example/d.tar"], suffixes=SUFFIXES, store=open_store(url))
    assert found.names == ("a b/cü.tar", "d.tar")
    assert found.paths[0] == url


def test_which_store() -> None:
    assert isinstance(open_store("a.tar"), LocalStore)
    assert isinstance(open_store("file:///a.tar"), LocalStore)
    assert isinstance(open_store("memory://a.tar"), MemoryStore)
    for url in ("s3://b/k", "s3a://b/k", "gs://b/k", "az://c/p", "abfss://c@account.dfs.core.windows.net/p"):
        assert repr(open_store(url)) == "ObjectStore()"
    assert repr(open_store("https://h/x")) == repr(open_store("http://[::1]:80/x")) == "HttpStore()"
    for source in (["http://h/a.tar", "https://h/b.tar"], ["a.tar", "s3://b/k"], "gs://b/k::s3://b/k"):
        with pytest.raises(SourceError, match="mixes"):
            open_store(source)
    with pytest.raises(SourceError, match="no store knows the scheme gopher://") as caught:
        open_store("gopher://u:secret@h/x.tar?secret")
    assert "secret" not in str(caught.value)
    for source in ("a.tar", "memory://a"):
        with pytest.raises(UsageError, match=r"takes? (only max_open_files|none), but key") as refused:
            open_store(source, {"key": "secret"})
        assert "secret" not in str(refused.value)


def test_a_filesystem_that_is_handed_in() -> None:
    import fsspec

    filesystem = fsspec.filesystem("memory", skip_instance_cache=True)
    filesystem.pipe_file("/handed/in/a.tar", b"0123")
    filesystem.pipe_file("/handed/in/deep/b.tar", b"0123")
    options = {"filesystem": filesystem}
    for text in ("handed/in", "/handed/in", "memory://handed/in/", "handed/in/*.tar", "/handed/{in,in/deep}/*.tar"):
        source = in_store(text, options)
        store = open_store(source, options)
        found = expand(source, suffixes=SUFFIXES, store=store)
        assert found.names[0].endswith("a.tar"), text
        assert store.read_range(found.paths[0], 1, 3) == b"12"
    with pytest.raises(SourceError, match="not a filesystem"):
        open_store("x://y", {"filesystem": LocalStore()})


def test_options_are_a_dict() -> None:
    with pytest.raises(UsageError, match="storage_options is a dict, not str") as caught:
        in_store("s3://b/k", "key=s3cret")  # type: ignore[arg-type]
    assert "s3cret" not in str(caught.value)


def test_a_scheme_that_fsspec_knows(tmp_path: Any) -> None:
    (tmp_path / "a.tar").write_bytes(b"0123456789")
    store = open_store(f"local://{tmp_path}/a.tar")
    found = expand(f"local://{tmp_path}/*.tar", suffixes=SUFFIXES, store=store)
    assert found.names == ("a.tar",)
    assert store.read_range(found.paths[0], 1, 3) == b"12"


def test_pipes_that_only_read_a_url() -> None:
    for text, url in [
        ("pipe:aws s3 cp s3://b/t-{00..02}.tar -", "s3://b/t-{00..02}.tar"),
        ("pipe:aws s3 cp --quiet s3://b/t.tar -", "s3://b/t.tar"),
        ("pipe:gsutil cat gs://b/t.tar", "gs://b/t.tar"),
        ("pipe:curl -s -L 'https://h/t.tar?a=1&b=2'", "https://h/t.tar?a=1&b=2"),
    ]:
        found, direct = (expand(source, suffixes=SUFFIXES, store=open_store(source)) for source in (text, url))
        assert found.paths == direct.paths
    for text in (
        "pipe:cat x",
        "pipe:curl -H secret https://h/x",
        "pipe:aws s3 cp s3://b/x - | gunzip",
        "pipe:",
        "pipe:'",
    ):
        with pytest.raises(SourceError, match="runs no commands") as caught:
            open_store(text)
        assert "secret" not in str(caught.value)


def test_a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError, match="needs obstore, which is not installed") as caught:
        open_store("s3://bucket/a.tar").stat("s3://bucket/a.tar")
    assert caught.value.hint == "pip install obstore pycurl (or 'shoal[remote]')"


def test_no_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(SourceError, match="no store knows the scheme hf://"):
        open_store("hf://datasets/a/b/c.tar")


class FailingFileSystem:
    """Has the verbs of fsspec, and raises in each."""

    protocol = ("odd", "other")
    storage_options: ClassVar = {"token": "s3cret"}

    def __init__(self, error: Exception) -> None:
        self.error = error

    def _strip_protocol(self, path: str) -> str:
        return path.removeprefix("odd://")

    def invalidate_cache(self) -> None:
        pass

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise self.error

    cat_file = info = find = pipe_file = _raise


class PlacedFileSystem(FailingFileSystem):
    """What fsspec calls what it was made of where that has no names."""

    storage_options: ClassVar = {}
    storage_args = ("s3cret",)


class StatusError(Exception):
    status = 503


@pytest.mark.parametrize(
    ("error", "transient", "number"),
    [
        (FileNotFoundError("a s3cret"), False, errno.ENOENT),
        (PermissionError("a s3cret"), False, errno.EACCES),
        (NotImplementedError("a s3cret"), False, None),
        (TimeoutError("a s3cret"), True, None),
        (ConnectionResetError("a s3cret"), True, None),
        (StatusError("a s3cret"), True, None),
        (RuntimeError("a s3cret"), True, None),
    ],
)
@pytest.mark.parametrize("kind", [FailingFileSystem, PlacedFileSystem])
def test_what_filesystems_raise(
    kind: type[FailingFileSystem], error: Exception, transient: bool, number: int | None
) -> None:
    store = open_store("odd://a.tar", {"filesystem": kind(error)})
    verbs: list[Any] = [store.stat, lambda path: store.read_range(path, 0, 5), lambda path: store.put(path, b"")]
    if number != errno.ENOENT:
        verbs += [store.find, store.list]
    for verb in verbs:
        with pytest.raises(StorageError, match=r"odd://a\.tar") as caught:
            verb("odd://a.tar")
        assert (caught.value.transient, caught.value.errno) == (transient, number)
        assert "s3cret" not in str(caught.value)


def test_a_filesystem_that_does_not_survive_a_fork() -> None:
    store: Any = open_store(
        "odd://a.tar", {"filesystem": FailingFileSystem(RuntimeError("This class is not fork-safe"))}
    )
    store._made_in -= 1  # as in a forked child
    with pytest.raises(ForkError) as caught:
        store.read_range("odd://a.tar", 0, 5)
    assert "forkserver" in caught.value.hint
    assert not caught.value.transient


def test_a_filesystem_that_sends_fewer_bytes() -> None:
    import fsspec

    filesystem = fsspec.filesystem("memory", skip_instance_cache=True)
    filesystem.pipe_file("/short/a.tar", b"0123456789")
    store = open_store("memory://short/a.tar", {"filesystem": filesystem})
    store.stat("memory:///short/a.tar")
    filesystem.pipe_file("/short/a.tar", b"01234")
    with pytest.raises(StorageError, match="10 bytes, but 5 came") as caught:
        store.read_range("memory:///short/a.tar", 0, 10)
    assert caught.value.transient
