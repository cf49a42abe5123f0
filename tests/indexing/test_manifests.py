"""Directories whose index.json says which shards they hold: what Streaming's and LitData's own writers made."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.formats.writers import COMPRESS

import shoal
from shoal.cli.main import main
from shoal.errors import IndexFileError, ShardError, SourceError, StorageError
from shoal.formats.compressed.codecs import decompress
from shoal.formats.format_registry import format_named, options_of
from shoal.formats.metadata.manifests import Expected, read_manifest
from shoal.formats.metadata.scanning import checked_scan
from shoal.indexing.manifests_beside import compare_hashes
from shoal.indexing.open_source import described_shards, wanted_suffixes
from shoal.storage.files.local_store import LocalStore
from shoal.storage.memory_store import MemoryStore
from shoal.storage.sources.source import expand

MADE = Path(__file__).parents[1] / "formats" / "data"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def copied(name: str, to: Path) -> Path:
    shutil.copytree(MADE / name, to)
    return to


def changed(directory: Path, **changes: Any) -> None:
    """Change what the index.json says of the first shard."""
    path = directory / "index.json"
    found = json.loads(path.read_text())
    found["shards"][0].update(changes)
    path.write_text(json.dumps(found))


LINES = [{"n": n, "s": f"row {n}"} for n in range(7)]


@pytest.mark.parametrize("kind", ["json", "csv", "tsv"])
def test_split_shards_of_streaming_are_found_by_their_index(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    ds = shoal.open(copied(f"mds/{kind}", tmp_path / "data"))
    found = [ds[number] for number in range(ds.num_samples)]
    assert len(found) == 7
    assert all(isinstance(sample["n"], int) and isinstance(sample["s"], str) for sample in found)
    assert sorted(sample["n"] for sample in ds.shuffle(seed=1)) == sorted(sample["n"] for sample in found)


def test_litdata_is_found_by_its_index_and_by_the_cached_one(tmp_path: Path) -> None:
    directory = copied("litdata", tmp_path / "d \u00e9")
    expected = [item["i"] for item in map(dict, shoal.open(directory))]
    assert len(expected) == 7
    for source in (directory, directory / "index.json", [directory]):
        assert [item["i"] for item in shoal.open(source)] == expected
    opened = shoal.open(directory)
    assert sorted(item["i"] for item in opened.shuffle(seed=1, window="1MiB")) == sorted(expected)


def test_an_index_file_says_how_litdata_is_read(tmp_path: Path) -> None:

    directory = copied("litdata", tmp_path / "data")
    assert main(["index", str(directory)]) == 0
    (directory / "index.json").unlink()
    assert shoal.open(directory / "shoal.index").num_samples == 7
    assert len(list(shoal.open(directory / "shoal.index"))) == 7
    with pytest.raises(IndexFileError, match="was made with"):
        shoal.open(directory / "shoal.index", format=changed_litdata(directory))


def changed_litdata(directory: Path) -> Any:
    index = json.loads((MADE / "litdata" / "index.json").read_text())
    one = json.dumps([1, {"type": None, "context": None, "children_spec": []}])
    return shoal.formats.LitData({"config": {**index["config"], "data_format": ["int"], "data_spec": one}})


def test_chunks_of_litdata_compressed_as_wholes(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    directory = copied("litdata", tmp_path / "data")
    index = json.loads((directory / "index.json").read_text())
    expected = [item["i"] for item in shoal.open(directory)]
    for about in index["chunks"]:
        path = directory / about["filename"]
        about["filename"] = path.stem + ".zstd.bin"
        (directory / about["filename"]).write_bytes(zstandard.compress(path.read_bytes()))
        path.unlink()
    index["config"] |= {"compression": "zstd", "compression_level": "chunk"}
    (directory / "index.json").write_text(json.dumps(index))
    assert [item["i"] for item in shoal.open(directory)] == expected
    # LitData's reader leaves each chunk that it has read decompressed, in place of the other.
    for about in index["chunks"]:
        path = directory / about["filename"]
        path.with_name(about["filename"].replace(".zstd", "")).write_bytes(zstandard.decompress(path.read_bytes()))
        path.unlink()
    assert [item["i"] for item in shoal.open(directory)] == expected
    index["config"]["compression"] = "lz4"
    (directory / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=r"index\.json: these chunks have compression 'lz4'"):
        shoal.open(directory)


@pytest.mark.parametrize("of", ["tokens", "pickles"])
def test_a_given_format_reads_chunks_in_the_order_of_their_index(of: str, tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    item = [1, {"type": None, "context": None, "children_spec": []}]
    config = {"data_format": ["no_header_numpy:5" if of == "tokens" else "int"], "data_spec": json.dumps(item)}
    config["item_loader"] = "TokensLoader" if of == "tokens" else "PyTreeLoader"
    data = tmp_path / "data"
    data.mkdir()
    chunks = []
    for number in range(12):
        value = struct.pack("<HH", number, 0) if of == "tokens" else struct.pack("<Iq", 8, number)
        chunk = struct.pack("<3I", 1, 12, 12 + len(value)) + value
        name = f"chunk-0-{number}.bin"
        chunks.append({"filename": name, "chunk_bytes": len(chunk), "chunk_size": 1, "dim": 2})
        (data / name).write_bytes(chunk)
    index = {"config": config, "chunks": chunks}
    (data / "index.json").write_text(json.dumps(index))
    formats = shoal.formats
    given = formats.LitDataTokens(index, block_size=2) if of == "tokens" else formats.LitData(index, allow_pickle=True)
    found = [int(next(iter(sample.values())) if of == "pickles" else sample["tokens"][0])
             for sample in shoal.open(data, format=given)]  # fmt: skip
    assert found == list(range(12))

    (data / "chunk-0-12.bin").write_bytes(b"")
    with pytest.raises(SourceError, match="does not name 1 of the shards beside it"):
        shoal.open(data, format=given)
    (data / "chunk-0-12.bin").unlink()
    (data / "chunk-0-5.bin").unlink()
    with pytest.raises(StorageError, match=r"names .*chunk-0-5\.bin, which does not exist"):
        shoal.open(data, format=given)


def test_merged_shards_of_streaming_keep_their_order_where_a_format_is_given(tmp_path: Path) -> None:
    data = copied("found/merged", tmp_path / "data")
    merged = json.loads((data / "index.json").read_text())
    merged["shards"].reverse()
    (data / "index.json").write_text(json.dumps(merged))
    expected = [sample["n"] for sample in shoal.open(data)]
    assert expected != sorted(expected)
    assert [sample["n"] for sample in shoal.open(data, format="mds")] == expected
    assert [sample["n"] for sample in shoal.open(data, format=shoal.formats.Mds(allow_pickle=True))] == expected


def test_both_forms_of_a_shard_are_one_shard(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    packed = copied("mds/zstd", tmp_path / "data")
    before = shoal.open(packed)
    expected = list(before)
    index = json.loads((packed / "index.json").read_text())

    for about in index["shards"]:
        inside = decompress("zst", (packed / about["zip_data"]["basename"]).read_bytes(), limit_bytes=1 << 20)
        (packed / about["raw_data"]["basename"]).write_bytes(inside)
    both = shoal.open(packed)
    assert both.num_samples == before.num_samples
    assert repr(list(both)) == repr(expected)
    assert json.loads(json.dumps(both.num_samples)) == sum(about["samples"] for about in index["shards"])


def test_several_streams_in_one_tree_and_a_merged_index(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    for name in ("a", "b c/d"):
        copied("mds/all", tmp_path / "tree" / name)
    one = shoal.open(tmp_path / "tree" / "a").num_samples
    assert shoal.open(tmp_path / "tree").num_samples == 2 * one
    shards = []
    for name in ("b c/d", "a"):
        for about in json.loads((tmp_path / "tree" / name / "index.json").read_text())["shards"]:
            about["raw_data"]["basename"] = f"{name}/{about['raw_data']['basename']}"
            shards.append(about)
    (tmp_path / "tree" / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    merged = shoal.open(tmp_path / "tree")
    assert merged.num_samples == 2 * one
    copied("mds/json", tmp_path / "tree" / "c")
    with pytest.raises(SourceError, match=r"describe different formats"):
        shoal.open(tmp_path / "tree")


def test_what_an_index_says_and_shards_do_not_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    directory = copied("mds/all", tmp_path / "data")
    about = json.loads((directory / "index.json").read_text())["shards"][0]
    name = about["raw_data"]["basename"]
    for changes, match in (
        ({"samples": about["samples"] + 1}, f"samples, but index.json says {about['samples'] + 1}"),
        ({"raw_data": {**about["raw_data"], "bytes": 7}}, "bytes, but index.json says 7"),
        ({"raw_data": {**about["raw_data"], "basename": "shard.9.mds"}}, "does not name 1 of the shards"),
        ({"format": "lance"}, "the format 'lance'"),
        ({"raw_data": {**about["raw_data"], "basename": "../x.mds"}}, "names a shard"),
        ({"version": 3}, "version 3"),
    ):
        changed(directory, **{**about, **changes})
        if "basename" in str(changes) and "shard.9" in str(changes):
            with pytest.raises(StorageError, match="1 do not exist"):
                shoal.open(directory)
            (directory / "shard.9.mds").write_bytes((directory / name).read_bytes())
        with pytest.raises((ShardError, SourceError), match=match):
            shoal.open(directory)
        (directory / "shard.9.mds").unlink(missing_ok=True)
    changed(directory, **about)
    assert shoal.open(directory).num_samples > 0


@pytest.mark.parametrize("kind", ["all", "gz"])
def test_hashes_are_compared_where_all_bytes_are_read(kind: str, tmp_path: Path) -> None:
    directory = copied(f"mds/{kind}", tmp_path / "data")
    index = json.loads((directory / "index.json").read_text())
    for about in index["shards"]:
        place = about["zip_data"] or about["raw_data"]
        digest = hashlib.sha1((directory / place["basename"]).read_bytes(), usedforsecurity=False).hexdigest()
        place["hashes"] = {"sha1": digest, "of our own": "0123"}
    (directory / "index.json").write_text(json.dumps(index))
    store = LocalStore()
    found = expand(directory, suffixes=wanted_suffixes(), store=store)
    assert compare_hashes(described_shards(found, None, store), store) == len(index["shards"])
    assert shoal.open(directory).num_samples > 0
    place["hashes"] = {"sha1": "00"}
    (directory / "index.json").write_text(json.dumps(index))
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(ShardError, match=r"the sha1 of the shard is .*, but index.json says 00"):
        compare_hashes(described_shards(found, None, LocalStore()), store)
    if kind == "gz":
        with pytest.raises(ShardError, match=r"the sha1 of the shard is .*, but index.json says 00"):
            shoal.open(directory)


@pytest.mark.parametrize("window_bytes", [7, 1 << 20])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_hashes_are_those_of_all_bytes_in_however_many_reads(mark: bytes, window_bytes: int) -> None:
    """Some of which are read twice, as the start is where a byte order mark can be."""
    data = mark + b'{"a": 1}\n{"a": 2}\n'

    def scanned(digest: str) -> int:
        expected = Expected(len(data), 2, {"sha1": digest})
        reader = shoal.formats.JsonLines(window_bytes=window_bytes)
        return checked_scan(reader, lambda a, b: data[a:b], len(data), shard="a", expected=expected).num_samples

    assert scanned(hashlib.sha1(data, usedforsecurity=False).hexdigest()) == 2
    with pytest.raises(ShardError, match=r"the sha1 of the shard is .*, but index.json says 00"):
        scanned("00")


@pytest.mark.parametrize("codec", ["zstd", "gz"])
def test_hashes_of_xxhash_are_compared_where_it_is_installed(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for library in ("xxhash", "zstandard"):
        pytest.importorskip(library)
    directory = copied(f"mds/{codec}", tmp_path / "data")
    index = json.loads((directory / "index.json").read_text())
    for about in index["shards"]:
        assert about["zip_data"]["hashes"].pop("sha1")  # those of xxh64 stay, as Streaming wrote them
    (directory / "index.json").write_text(json.dumps(index))
    command = ["index", str(directory), "--checksum", "--output", str(tmp_path / "a.index")]
    assert main(command) == 0
    assert "not compared" not in capsys.readouterr().err
    damaged = directory / index["shards"][0]["zip_data"]["basename"]
    whole = damaged.read_bytes()
    about = index["shards"][0]["zip_data"]["hashes"]
    about["xxh64"], right = "0" * 16, about["xxh64"]
    (directory / "index.json").write_text(json.dumps(index))
    with pytest.raises(ShardError, match=f"the xxh64 of the shard is {right}, but index.json says 0000000000000000"):
        shoal.open(directory)
    assert damaged.read_bytes() == whole
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert main(command) == 0
    said = capsys.readouterr().err
    assert f"the hashes of {len(index['shards'])} of {len(index['shards'])} shards (xxh64) were not compared" in said
    assert "pip install xxhash (or 'shoal[formats]')" in said


def test_a_shard_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    directory = copied("mds/all", tmp_path / "data")
    index = json.loads((directory / "index.json").read_text())
    index["shards"].append(index["shards"][0])
    (directory / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=r"names 1 shard more than once; the first is .*00000\.mds"):
        shoal.open(directory)


def test_other_json_is_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"x": 1}\n')
    for text in ('{"version": 1}', "[1, 2]", '{"shards": []}', '{"chunks": 3, "config": {}}'):
        (tmp_path / "data" / "index.json").write_text(text)
        assert shoal.open(tmp_path / "data").num_samples == 1
    (tmp_path / "data" / "a.jsonl").unlink()
    with pytest.raises(SourceError, match=r"not the index\.json of a dataset"):
        shoal.open(tmp_path / "data")


@pytest.mark.parametrize(
    "text",
    [
        '{"shards": [{}]}',
        '{"shards": [7]}',
        '{"shards": [{"format": "mds", "version": 2, "samples": "x"}]}',
        '{"shards": [{"format": "xsv", "version": 2, "newline": "\\n", "column_names": 1}]}',
        '{"chunks": [], "config": {}}',
        '{"chunks": [{}], "config": {"data_format": ["int"], "data_spec": "x"}}',
        '{"shards": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_damaged_manifests_are_refused(text: str) -> None:
    with pytest.raises(SourceError, match=r"index\.json"):
        read_manifest(text.encode(), path="index.json")


@pytest.mark.parametrize("num_bytes", [0, 1, 40, -1])
def test_a_manifest_that_was_cut_short_is_not_passed_over(num_bytes: int, tmp_path: Path) -> None:
    directory = copied("litdata", tmp_path / "data")
    whole = (directory / "index.json").read_bytes()
    (directory / "index.json").write_bytes(whole[:num_bytes])
    with pytest.raises(SourceError, match="not JSON") as caught:
        shoal.open(directory)
    assert "cut short" in (caught.value.hint or "")
    (directory / "index.json").write_bytes(whole)
    assert len(shoal.open(directory)) > 0


def test_xsv_has_its_separator() -> None:
    about = {"format": "xsv", "version": 2, "newline": "\n", "column_names": ["a", "b"], "samples": 1, "zip_data": None}
    about |= {"column_encodings": ["str", "float"], "separator": ";", "raw_data": {"basename": "s.xsv", "bytes": 9}}
    found = read_manifest(json.dumps({"shards": [about]}).encode(), path="index.json")
    assert found is not None
    options = {"delimiter": ";", "quoted": False, "newline": "\n", "types": {"b": "float"}}
    assert options_of(found.format) == options
    assert format_named("csv", options_of(found.format)) is found.format
    about["separator"] = "::"
    found = read_manifest(json.dumps({"shards": [about]}).encode(), path="index.json")
    assert found is not None
    assert options_of(found.format) == {**options, "delimiter": "::"}


@pytest.mark.parametrize("codec", ["", "gz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("separator", "rows"),
    [
        (";", [{"a": "x", "b": "carriage\r"}, {"a": "", "b": "\r"}, {"a": "a\rb", "b": '"'}, {"a": " ", "b": " "}]),
        ("::", [{"a": ":x", "b": "y"}, {"a": "", "b": ""}, {"a": "z", "b": "\r"}]),
        ("é|", [{"a": "|", "b": "é"}, {"a": "x", "b": ""}]),
        (",", [{"a": ""}, {"a": "x"}, {"a": ""}, {"a": " \t"}, {"a": ""}]),
    ],
)
def test_lines_of_streaming_are_what_its_writer_was_given(
    separator: str, rows: list[dict[str, str]], newline: str, codec: str, tmp_path: Path
) -> None:
    """As its XSVWriter writes them: names, then values, between separators, each line with the newline behind it."""
    names = [*rows[0]]
    lines = [separator.join(values) + newline for values in [names, *([*row.values()] for row in rows)]]
    raw = "".join(lines).encode()
    data = COMPRESS[codec](raw) if codec else raw
    name = f"shard.00000.xsv.{codec}" if codec else "shard.00000.xsv"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(data)
    about: dict[str, Any] = {"format": "xsv", "version": 2, "newline": newline, "separator": separator}
    about |= {"column_names": names, "column_encodings": ["str"] * len(names), "samples": len(rows), "zip_data": None}
    about["raw_data"] = {"basename": "shard.00000.xsv", "bytes": len(raw)}
    if codec:
        about |= {"compression": codec, "zip_data": {"basename": name, "bytes": len(data)}}
    (tmp_path / "data" / "index.json").write_text(json.dumps({"shards": [about]}))
    assert list(shoal.open(tmp_path / "data")) == rows


def test_far_away_a_manifest_is_found_too() -> None:
    store = MemoryStore()
    for path in (MADE / "litdata").glob("*"):
        store.put(f"memory://made/{path.name}", path.read_bytes())
    found = expand("memory://made", suffixes=wanted_suffixes(), store=store)
    what = described_shards(found, None, store)
    assert what.format is not None
    assert what.format.name == "litdata"
    assert [path.rsplit("/", 1)[1] for path in what.source.paths] == [f"chunk-0-{n}.bin" for n in range(3)]


@pytest.mark.parametrize(("name", "count"), [("merged", 100), ("xsv", 50), ("tsv_zstd", 50)])
def test_what_streaming_wrote_is_found(name: str, count: int, tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    ds = shoal.open(copied(f"found/{name}", tmp_path / "data"))
    assert list(ds) == [{"n": 100 * (n // 50) + n % 50, "t": f"row {n % 50} \u00e9"} for n in range(count)]
    assert main(["index", str(tmp_path / "data"), "--checksum"]) == 0  # hashes are compared on the way


def test_what_litdata_compressed_is_found(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    items = list(shoal.open(copied("found/litdata_zstd", tmp_path / "data")))
    assert [(item["i"], item["s"], item["a"].tolist()) for item in items] == [
        (n, f"item {n}", list(range(n % 5))) for n in range(30)
    ]


@pytest.mark.parametrize("name", ["litdata", "mds/csv", "mds/json", "peers/litdata/batch", "peers/litdata/chunk"])
def test_shards_that_an_index_json_names_are_verified(name: str, tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    made = Path(__file__).parents[1] / "formats" / "data" / name
    data = tmp_path / "data"
    shutil.copytree(made, data)
    assert main(["verify", str(data)]) == 0
    assert main(["index", str(data)]) == 0
    for source in (data, data / "index.json", data / "shoal.index"):
        assert main(["verify", str(source)]) == 0
    shard = data / shoal.open(data).stream.opened.index.shard_names[-1]
    shard.write_bytes(shard.read_bytes()[:-1])
    assert main(["verify", str(data)]) == 1
