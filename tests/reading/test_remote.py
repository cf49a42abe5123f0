"""Remote datasets: every way of naming them, and every place for their index."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls
from tests.storage.servers import CAN_LIST, KINDS, Place, moto, place_of_kind
from tests.stream.made import content, ids_of, write_tars

from shoal.errors import IndexFileError, SourceError, StorageError
from shoal.indexing.index_files import save_index
from shoal.storage.files.local_store import LocalStore
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.testing import Fault, RangeServer

COUNTS = [30, 1, 47, 22]
_numbers = itertools.count()


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    with moto() as url:
        yield url


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return write_tars(tmp_path / "data", COUNTS)


@pytest.fixture(params=(*KINDS, "plain http"))
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, local: Path) -> Iterator[Place]:
    """The shards below "d" in a place of each kind."""
    endpoint = request.getfixturevalue("endpoint") if request.param == "s3" else ""
    if request.param == "plain http":
        monkeypatch.setitem(sys.modules, "pycurl", None)
    with place_of_kind(request.param.removeprefix("plain "), f"streamed-{next(_numbers)}", endpoint) as place:
        for path in local.iterdir():
            place.put(f"d/{path.name}", path.read_bytes())
        yield place


def opened(place: Place, source: str | list[str], **more: Any) -> Dataset:
    sources = [f"{place.root}/{text}" for text in ([source] if isinstance(source, str) else source)]
    return open_dataset(sources[0] if isinstance(source, str) else sources, storage_options=place.options, **more)


def test_shards_of_several_buckets_are_one_dataset(local: Path, endpoint: str) -> None:
    """By braces in the place of the bucket, or as a list; also of several hosts of http."""
    first, second, *_ = sorted(local.iterdir())
    bucket = f"several-{next(_numbers)}"
    with place_of_kind("s3", f"{bucket}a", endpoint) as a, place_of_kind("s3", f"{bucket}b", endpoint) as b:
        a.put("d/x.tar", first.read_bytes())
        b.put("d/x.tar", second.read_bytes())
        for source in (
            f"s3://{bucket}{{a,b}}/d/x.tar",
            [f"{a.root}/d/x.tar", f"{b.root}/d"],
            f"s3://{bucket}{{a,b}}/*/*.tar",
        ):
            ds = open_dataset(source, storage_options=a.options)
            assert ids_of(ds) == [*range(31)]
            assert [str(name) for name in ds.stream.opened.index.shard_names] == [
                f"{bucket}a/d/x.tar",
                f"{bucket}b/d/x.tar",
            ]
    with RangeServer({"x.tar": first.read_bytes()}) as one, RangeServer({"x.tar": second.read_bytes()}) as two:
        assert ids_of(open_dataset([f"{one.url}/x.tar", f"{two.url}/x.tar"])) == [*range(31)]


@pytest.mark.parametrize(
    "source",
    ["/top-*.tar", "/top-{0,1}.tar", ["/top-0.tar", "top-1.tar"], "/", "memory://", "/**", ["/top-0.tar", "/d"]],
)
def test_shards_at_the_top_of_a_filesystem(source: Any, local: Path) -> None:
    import fsspec

    filesystem = fsspec.filesystem("memory", skip_instance_cache=True)
    filesystem.store = {}  # of this one; the others share theirs
    filesystem.pseudo_dirs = [""]
    first, second, *_ = sorted(local.iterdir())
    filesystem.pipe("/top-0.tar", first.read_bytes())
    filesystem.pipe("/d/x.tar" if "/d" in source else "/top-1.tar", second.read_bytes())
    ds = open_dataset(source, storage_options={"filesystem": filesystem})
    assert ids_of(ds) == [*range(31)]
    assert ids_of(open_dataset(source, storage_options={"filesystem": filesystem})) == [*range(31)]


@pytest.mark.parametrize(
    "source",
    ["s-00[01].tar", "s-00[01].*", "**/s-00[01].tar", ["s-000.tar", "s-001.tar"], "s-*{0,1}.tar"],
)
def test_names_of_a_filesystem_need_no_directory(source: Any, local: Path) -> None:
    """What comes first in them is no bucket."""
    import fsspec

    filesystem = fsspec.filesystem("dir", path=str(local), fs=fsspec.filesystem("file"))
    assert ids_of(open_dataset(source, storage_options={"filesystem": filesystem})) == [*range(31)]


def test_one_file_of_a_filesystem(local: Path) -> None:
    import fsspec

    filesystem = fsspec.filesystem("dir", path=str(local), fs=fsspec.filesystem("file"))
    assert ids_of(open_dataset("s-000.tar", storage_options={"filesystem": filesystem})) == [*range(30)]
    with pytest.raises(SourceError, match=r"holds .*s-000.tar"):
        open_dataset("s-000", storage_options={"filesystem": filesystem})
    with pytest.raises(StorageError, match=r"could not look at dir://s-000.tar/x.tar: .*Not a directory"):
        open_dataset("s-000.tar/x.tar", storage_options={"filesystem": filesystem})


def test_the_same_stream_from_everywhere(place: Place, local: Path) -> None:
    near = open_dataset(f"{local}/s-{{000..003}}.tar")
    far = opened(place, "d/s-{000..003}.tar")
    assert far.num_samples == sum(COUNTS)
    assert far.stream.opened.index.fingerprint == near.stream.opened.index.fingerprint
    for order in ("none", "full", "window"):
        assert ids_of(far.shuffle(order, seed=2)) == ids_of(near.shuffle(order, seed=2))
    assert far[77]["bin"] == content(77)
    iterator = iter(far.shuffle(seed=2).batch(8))
    for _ in range(3):
        next(iterator)
    state = json.loads(json.dumps(iterator.state_dict()))
    there = near.shuffle(seed=2).batch(8)
    there.load_state_dict(state)
    assert [batch["cls"] for batch in iterator] == [batch["cls"] for batch in there]


def test_every_way_of_naming(place: Place) -> None:
    ways: list[Any] = ["d/s-00{0,1,2,3}.tar", [f"d/s-00{shard}.tar" for shard in range(4)]]
    if place.kind in CAN_LIST:
        ways += ["d", "d/", "", "d/*.tar", "**/*.tar", "d/s-00[0-3].tar"]
    for way in ways:
        assert ids_of(opened(place, way)) == list(range(100)), way
    assert opened(place, "d/s-002.tar").num_samples == 47
    assert opened(place, "d/s-002.tar", format="tar").num_samples == 47
    with pytest.raises((StorageError, SourceError), match=r"s-00[45]\.tar"):
        opened(place, "d/s-00{2..5}.tar")


def test_an_index_beside_the_shards(place: Place, local: Path) -> None:
    index = open_dataset(local).stream.opened.index
    place.put("d/shoal.index", Path(save_index(index, local / "x.index", store=LocalStore())).read_bytes())
    for way in ("d/shoal.index", "d/", "d/s-{000..003}.tar"):
        ds = opened(place, way)
        assert ds.stream.opened.index_path == f"{place.root}/d/shoal.index", way
        assert ids_of(ds) == list(range(100))
    some = opened(place, "d/s-{002..003}.tar")
    assert some.stream.opened.index_path == f"{place.root}/d/shoal.index"
    assert some.num_samples == 69
    place.put("d/s-004.tar", Path(local / "s-000.tar").read_bytes())
    assert opened(place, "d/s-{000..004}.tar").stream.opened.index_path != f"{place.root}/d/shoal.index"
    if place.kind in CAN_LIST:
        with pytest.raises(IndexFileError, match=r"does not know 1 of 5 shards, first .*s-004\.tar"):
            opened(place, "d")


def test_an_index_that_lies_elsewhere(place: Place, local: Path) -> None:
    path = Path(save_index(open_dataset(local).stream.opened.index, local.parent / "kept.index", store=LocalStore()))
    place.put("indexes/kept.index", path.read_bytes())
    shards = "d/s-{000..003}.tar"
    for index in (str(path), path, f"file://{path}", f"{place.root}/indexes/kept.index"):
        assert ids_of(opened(place, shards, index=index)) == list(range(100))
    assert open_dataset(local, index=path).num_samples == 100
    with pytest.raises(SourceError, match="is another"):
        opened(place, "indexes/kept.index", index=path)


def test_an_index_and_shards_behind_a_signature_for_all(local: Path) -> None:
    index = open_dataset(local).stream.opened.index
    data = Path(save_index(index, local / "x.index", store=LocalStore())).read_bytes()
    objects = {f"d/{path.name}": path.read_bytes() for path in local.glob("*.tar")} | {"d/shoal.index": data}
    with RangeServer(objects) as server:
        for source in ("d/?sig=s3cret", "d/shoal.index?sig=s3cret", "d/s-{000..003}.tar?sig=s3cret"):
            ds = open_dataset(f"{server.url}/{source}")
            assert ds.stream.opened.index_path == f"{server.url}/d/shoal.index", source
            assert ids_of(ds) == list(range(100))


@pytest.fixture
def server(local: Path) -> Iterator[RangeServer]:
    with RangeServer({f"d/{path.name}": path.read_bytes() for path in local.iterdir()}) as running:
        yield running


def test_a_second_opening_asks_for_sizes_and_versions_only(server: RangeServer) -> None:
    source = f"{server.url}/d/s-{{000..003}}.tar"
    first = open_dataset(source)
    before = server.num_bytes()
    again = open_dataset(source)
    assert again.stream.opened.index_path == first.stream.opened.index_path is not None
    assert server.num_bytes() - before <= 4 + len(b"there is no d/shoal.index")


def test_a_remote_index_is_fetched_once_for_all_openings(local: Path) -> None:
    index = open_dataset(local).stream.opened.index
    data = Path(save_index(index, local.parent / "x.index", store=LocalStore())).read_bytes()
    objects = {f"d/{path.name}": path.read_bytes() for path in local.glob("*.tar")} | {"i/x.index": data}
    with RangeServer(objects) as other:
        url = f"{other.url}/i/x.index?token=secret"
        for _ in range(3):
            ds = open_dataset(f"{other.url}/d/s-{{000..003}}.tar", index=url)
            assert ds.stream.opened.index_path == f"{other.url}/i/x.index"
        asked = [exchange for exchange in other.exchanges if "x.index" in exchange.path]
        assert sum(exchange.num_bytes for exchange in asked) == len(data) + 3


def test_a_server_that_hides_what_it_does_not_have(local: Path) -> None:
    """As S3 does for who may read and not list: no index is found, and no error either."""
    objects = {f"d/{path.name}": path.read_bytes() for path in local.iterdir()}
    with RangeServer(objects, faults=[Fault("status", status=403, path="*shoal.index", probability=1)]) as server:
        assert ids_of(open_dataset(f"{server.url}/d/s-{{000..003}}.tar")) == list(range(100))


def test_the_command_line(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    if place.kind in ("fsspec", "memory"):
        pytest.skip("they live in one process, and a command line cannot hold an object")
    call = Calls(capsys)
    words = [f"--storage-option={name}={value}" for name, value in place.options.items()]
    assert call.json("info", f"{place.root}/d/s-{{000..003}}.tar", *words)["num_samples"] == 100
    for wrong in ("s3cret", "=s3cret", "nonsense.x=s3cret"):
        complaint = call.refused("info", f"{place.root}/d/s-000.tar?x=s3cret", "--storage-option", wrong, *words)
        assert "storage" in complaint
        assert "s3cret" not in complaint
