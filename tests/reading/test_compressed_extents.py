"""Compressed shards whose frames end inside samples, below a dataset: extents that share bytes, and all of the laws."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.writers import in_frames, mds_of, recordio_record, seekable_zstd, tar_of
from tests.stream.faraway import Distant, far_away, local_store
from tests.stream.made import described

import shoal
from shoal.errors import IndexFileError, ShardError
from shoal.formats.format_registry import format_named
from shoal.index.assembly import ScannedShard, assemble, fingerprint, validate
from shoal.index.table import Index, own_bytes
from shoal.indexing.build import build_index
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.index_files import load_index, save_index
from shoal.storage.files.local_store import LocalStore
from shoal.stream.dataset import Dataset
from shoal.verify.index_repair import repair_index
from shoal.verify.open_to_verify import open_to_verify, verify

pytest.importorskip("zstandard")

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

COUNTS = (120, 40, 100)
FRAME_BYTES = 8192


@cache
def value(number: int) -> bytes:
    """What only this sample has, of 3 to 7 KB."""
    return random.Random(number).randbytes(3000 + number * 37 % 4001)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "shoal"))


@cache
def shards_of(kind: str) -> list[bytes]:
    """Three shards in frames of 8 KiB, the second of which is a single frame."""
    shards, first = [], 0
    for shard, count in enumerate(COUNTS):
        inside = tar_of({f"{number:05d}.bin": value(number) for number in range(first, first + count)})
        sizes = [1 << 20] if shard == 1 else [FRAME_BYTES]
        shards.append(seekable_zstd(inside, sizes) if kind == "tar.zst" else b"".join(in_frames(inside, sizes, "gz")))
        first += count
    return shards


@pytest.fixture(params=["tar.zst", "tar.gz"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    for shard, stored in enumerate(shards_of(request.param)):
        (directory / f"{shard}.{request.param}").write_bytes(stored)
    return directory


def number_of(sample: dict[str, Any]) -> int:
    """The id of a sample whose bytes are right."""
    number = int(sample["__key__"])
    assert sample["bin"] == value(number)
    return number


def index_of(ds: Dataset) -> Index:
    return ds.stream.opened.index


def overlapping(index: Index) -> np.ndarray[Any, Any]:
    """Whether each extent but the last shares bytes with the next one."""
    same = index.extent_shard[1:] == index.extent_shard[:-1]
    shared: np.ndarray[Any, Any] = same & (index.extent_first_byte[1:] < index.extent_end_byte[:-1])
    return shared


@pytest.mark.parametrize(("far", "extents"), [(False, 1), (True, 1), (True, 2), (False, 3), (False, 50), (True, 50)])
def test_each_sample_once_whatever_a_chunk_is(data: Path, far: bool, extents: int) -> None:
    ds = shoal.open(data)
    mean = float(index_of(ds).extent_decoded_bytes.mean())
    assert overlapping(index_of(ds)).sum() >= 8
    ds = (far_away(ds) if far else ds).shuffle(seed=4, window="2MiB", chunk=int(extents * mean))
    got = [number_of(sample) for sample in ds]
    assert got == ds.ids().tolist()
    assert sorted(got) == list(range(sum(COUNTS)))
    stats = ds.stats()
    whole = sum(path.stat().st_size for path in data.iterdir())
    assert whole - 2000 <= stats["read_bytes"] <= whole * 9 / 8


def test_the_order_as_a_call_gives_it_again(tmp_path: Path) -> None:
    """Also where bytes in memory are many times those that are read."""
    lines = b"".join(b'{"n": %d, "x": "%s"}\n' % (n, b"the same " * (n % 50)) for n in range(5000))
    (tmp_path / "a.jsonl.zst").write_bytes(seekable_zstd(lines, [FRAME_BYTES]))
    ds = shoal.open(tmp_path / "a.jsonl.zst")
    one = ds.shuffle(seed=0, window="1MiB", chunk="300KB")
    assert one.resolved.extents_per_chunk > 1
    again = eval(f"ds.{one.resolved}")  # which is what people do with it
    assert str(again.resolved) == str(one.resolved)
    assert again.ids().tolist() == one.ids().tolist()


def test_ranks_and_states(data: Path) -> None:
    def opened(rank: int, world_size: int) -> Dataset:
        ds = shoal.open(data).shuffle(seed=2, window="1MiB", chunk="100KB")
        return ds.batch(8).partition(rank=rank, world_size=world_size)

    seen: list[int] = []
    for world_size in (1, 3):
        parts = [[number_of(row) for row in _rows(opened(rank, world_size))] for rank in range(world_size)]
        assert sorted(chain.from_iterable(parts)) == list(range(sum(COUNTS)))
        seen = seen or parts[0]
    begun = opened(0, 1)
    batches = iter(begun)
    first = [number_of(row) for _ in range(7) for row in _rows_of(next(batches))]
    rest = opened(0, 1)
    rest.load_state_dict(begun.state_dict())
    assert first + [number_of(row) for row in _rows(rest)] == seen


def _rows(ds: Dataset) -> list[dict[str, Any]]:
    return [row for batch in ds for row in _rows_of(batch)]


def _rows_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    pads = batch.get("__pad__", [False] * len(batch["__key__"]))
    pairs = zip(batch["__key__"], batch["bin"], pads, strict=True)
    return [{"__key__": key, "bin": data} for key, data, is_pad in pairs if not is_pad]


def test_samples_by_their_ids(data: Path) -> None:
    ds = shoal.open(data)
    index = index_of(ds)
    for number in [0, 259, *index.extent_first_sample[1:-1].tolist(), *(index.extent_first_sample[1:] - 1).tolist()]:
        assert number_of(ds[int(number)]) == number
    assert [number_of(sample) for sample in ds.shuffle("full", seed=1)] == ds.shuffle("full", seed=1).ids().tolist()


def test_neighbours_that_are_wanted_together_share_a_request(data: Path) -> None:
    store = Distant()
    ds = far_away(shoal.open(data), store).shuffle("none", chunk="100KB")
    assert [number_of(sample) for sample in ds] == list(range(sum(COUNTS)))
    sizes = {str(path): path.stat().st_size for path in data.iterdir()}
    for path, size in sizes.items():
        assert sum(end - first for name, first, end in store.requests if name == path) <= 1.02 * size


def test_chunks_that_are_spilled(data: Path, tmp_path: Path) -> None:
    """Those of the shard that is one frame, and is too large for the window; and pieces that share frames."""
    for window, num_spilled in ((300_000, 1), (100_000, 18)):
        cache = {"directory": tmp_path / str(window), "budget": "64MiB"}
        ds = shoal.open(data, cache=cache).shuffle(seed=1, window=window)
        assert sorted(number_of(sample) for sample in ds) == list(range(sum(COUNTS)))
        assert ds.stats()["num_spills"] == num_spilled == (2 * index_of(ds).extent_decoded_bytes > window).sum()


INSIDE = {
    "csv": b"n,x\n" + b"".join(b"%d,%s\n" % (n, value(n).hex().encode()) for n in range(60)),
    "text": b"".join(b"%d %s\n" % (n, value(n).hex().encode()) for n in range(60)),
    "mds": mds_of({"n": ("int", 8), "x": ("bytes", None)}, [[n.to_bytes(8, "little"), value(n)] for n in range(60)]),
    "recordio": b"".join(recordio_record(struct.pack("<IfQQ", 0, 1.0, n, 0) + value(n)) for n in range(60)),
}


@pytest.mark.parametrize("kind", INSIDE)
@pytest.mark.parametrize("at_ends", [False, True])
def test_pieces_of_every_format_are_spilled(kind: str, at_ends: bool, tmp_path: Path) -> None:
    """Also of those whose front says what follows it."""
    inside, name = INSIDE[kind], f"{kind}.gz"
    sizes: list[int] = [FRAME_BYTES]
    if at_ends:
        plain = format_named(kind).scan(lambda first, end: inside[first:end], len(inside), shard="a").sample_starts
        borders = [0, *plain[12:-1:12].tolist(), len(inside)]
        sizes = [end - first for first, end in pairwise(borders)]
    path = tmp_path / "a.gz"
    path.write_bytes(b"".join(in_frames(inside, sizes, "gz")))
    expected = sorted(map(repr, shoal.open(path, format=name)))
    cache = {"directory": tmp_path / "spilled", "budget": "64MiB"}
    ds = shoal.open(path, format=name, cache=cache).shuffle(seed=1, window="80KB")
    assert sorted(map(repr, ds)) == expected
    assert ds.stats()["num_spills"] == index_of(ds).num_extents > 2


def with_checksums(ds: Dataset) -> Dataset:
    opened = ds.stream.opened
    done: list[tuple[int, int]] = []
    found = extent_checksums(
        opened.index, opened.paths, store=opened.store, check=lambda _: None, progress=lambda *told: done.append(told)
    )
    whole = sum(Path(path).stat().st_size for path in opened.paths)
    assert done[-1] == (whole, whole)
    return described(ds, source=replace(opened, index=replace(opened.index, extent_checksum=found)))


@pytest.mark.parametrize("checksums", [False, True])
def test_a_damaged_frame_is_told_and_costs_the_extents_that_need_it(data: Path, checksums: bool) -> None:
    ds = with_checksums(shoal.open(data)) if checksums else shoal.open(data)
    index, path = index_of(ds), Path(ds.stream.opened.paths[0])
    shared = int(np.flatnonzero(overlapping(index))[1])
    at = int(index.extent_first_byte[shared + 1])
    lost = set(range(*index.extent_first_sample[[shared, shared + 2]].tolist()))
    stored = bytearray(path.read_bytes())
    stored[at] ^= 255
    path.write_bytes(stored)
    ds.stream.opened.store.close()
    ds.stream.opened.check._accepted[:3] = b"\1\1\1"
    verifying = "always" if checksums else "arrival"
    ds = ds.shuffle(seed=1, window="2MiB", chunk="300KB")
    with pytest.raises(ShardError, match=r"0\.tar\.\w+, byte \d+: ") as caught:
        list(ds.reading(verify=verifying))
    assert caught.value.byte is not None
    assert int(index.extent_first_byte[shared]) <= caught.value.byte <= at
    got = [number_of(sample) for sample in ds.reading(on_error="skip", verify=verifying)]
    assert set(got) == set(range(sum(COUNTS))) - lost


def test_the_index_file_holds_them_and_lies_are_found(data: Path, tmp_path: Path) -> None:
    index = index_of(shoal.open(data))
    path = tmp_path / "a.index"
    save_index(index, path, store=LocalStore())
    loaded = load_index(str(path), store=LocalStore())
    assert loaded.extent_end_byte.tolist() == index.extent_end_byte.tolist()
    assert int(own_bytes(index).sum()) == int(index.shard_bytes.sum())
    assert int((index.extent_end_byte - index.extent_first_byte).sum()) > int(index.shard_bytes.sum())
    extent = int(np.flatnonzero(overlapping(index))[1])
    first, end = index.extent_first_byte, index.extent_end_byte
    for column, value_there in (
        ("extent_first_byte", int(first[extent])),  # two extents begin at one byte
        ("extent_first_byte", int(end[extent]) + 1),  # a gap
        ("extent_end_byte", int(end[extent + 1])),  # two end at one byte
    ):
        changed = getattr(index, column).copy()
        changed[extent + (column == "extent_first_byte")] = value_there
        with pytest.raises(IndexFileError, match="contradicts itself"):
            validate(_with(index, column, changed))
    with pytest.raises(IndexFileError, match="does not end where the next one begins"):
        sizes = np.ones(index.num_samples, dtype=np.uint32)
        validate(replace(index, sample_bytes=sizes))


def _with(index: Index, column: str, values: np.ndarray[Any, Any]) -> Index:
    changed = replace(index, **{column: values})  # type: ignore[arg-type]
    rows = (changed.extent_shard, changed.extent_first_byte, changed.extent_end_byte, changed.extent_num_samples)
    return replace(changed, fingerprint=fingerprint(changed.shard_names, *rows))


def test_worker_processes_and_threads_find_the_same(data: Path) -> None:
    asked = open_to_verify(data)
    here = build_index(asked.source, store=LocalStore(), format=asked.format, workers=0)
    for store, workers in ((LocalStore(), 1), (local_store(), None)):
        there = build_index(asked.source, store=store, format=asked.format, workers=workers)
        assert here.fingerprint == there.fingerprint
        assert here.extent_layout_crc.tolist() == there.extent_layout_crc.tolist()
        assert here.shard_heads == there.shard_heads


def test_verify_and_mend(data: Path) -> None:
    asked = open_to_verify(data)
    index = build_index(asked.source, store=asked.store, format=asked.format, workers=0)
    sums = extent_checksums(index, asked.source.paths, store=LocalStore(), check=lambda _: None)
    done: list[tuple[int, int]] = []
    for made in (index, replace(index, extent_checksum=sums)):
        save_index(made, data / "shoal.index", store=LocalStore())
        found = verify(open_to_verify(data), progress=lambda *told: done.append(told))
        assert found.damages == []
        assert done[-1] == (found.num_bytes, found.num_bytes)
        assert found.num_bytes == int(index.shard_bytes.sum())
    # The index is damaged, and is made again: the same.
    stored = bytearray((data / "shoal.index").read_bytes())
    stored[-5] ^= 1
    (data / "shoal.index").write_bytes(stored)
    asked = open_to_verify(data)
    mended, damages = repair_index(asked, verify(asked))
    assert damages == []
    assert mended.fingerprint == index.fingerprint
    assert mended.extent_checksum is not None
    assert mended.extent_checksum.tolist() == sums.tolist()
    assert sorted(number_of(sample) for sample in shoal.open(data)) == list(range(sum(COUNTS)))
    # A shard is damaged where two extents share a frame: both are told, and the index is left.
    extent = int(np.flatnonzero(overlapping(index))[0])
    path = next(iter(sorted(data.glob("0.*"))))
    at = (int(index.extent_first_byte[extent + 1]) + int(index.extent_end_byte[extent])) // 2
    stored = bytearray(path.read_bytes())
    stored[at] ^= 1
    path.write_bytes(stored)
    told = {(damage.first_byte, damage.end_byte) for damage in verify(open_to_verify(data)).damages if damage.samples}
    both = slice(extent, extent + 2)
    pairs = zip(index.extent_first_byte[both].tolist(), index.extent_end_byte[both].tolist(), strict=True)
    assert told == set(pairs)


def test_an_index_that_was_made_before_still_opens_the_shards(data: Path) -> None:
    """Of whole shards, as it was before frames were shared: also once files were copied, and scanned again for it."""
    shards = []
    for path in sorted(data.iterdir()):
        stored = path.read_bytes()
        reader = format_named(path.name.partition(".")[2])
        scan = reader.scan_as({"inner": {}}, lambda a, b, d=stored: d[a:b], len(stored), shard=path.name)
        shards.append(ScannedShard(path.name, len(stored), "", scan))
    old = assemble(reader.name, shards)
    assert old.num_extents == 3
    save_index(replace(old, shard_versions=("other",) * 3), data / "shoal.index", store=LocalStore())
    for ds in (shoal.open(data), shoal.open(data).shuffle(seed=1)):
        assert sorted(number_of(sample) for sample in ds) == list(range(sum(COUNTS)))
        assert index_of(ds).num_extents == 3
    assert verify(open_to_verify(data)).damages == []
