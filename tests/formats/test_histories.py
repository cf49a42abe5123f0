"""A shard means the same whatever the process read before: each fast path and its twins, over histories of shards.

What a process keeps (suffixes, headers, columns, footers) begins empty in each history, since the modules that keep it
are loaded anew.
"""

from __future__ import annotations

import importlib.util
import io
import random
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats import writers
from tests.formats.made_shards import made
from tests.formats.tar_reference import reference_groups, scan
from tests.formats.test_conformance import LIBRARIES

from shoal.errors import ShardError
from shoal.formats import compiled_cutting
from shoal.formats.format_registry import FORMATS
from shoal.formats.rows.mds import reader as mds_reader
from shoal.formats.rows.mds.encodings import encode_value, fixed_bytes_of
from shoal.formats.rows.tar.reader import Tar
from shoal.formats.shard_format import Format, Sample, Span
from shoal.index.shard_scan import ShardScan
from shoal.testing.known_shards import same

TWINS = ["python", "python, keeping little", *(["compiled"] if compiled_cutting.is_compiled else [])]
EACH_TWIN = pytest.mark.parametrize("twin", TWINS)


def fresh(name: str) -> Any:
    """Return a new copy of a module, which knows nothing yet."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def fresh_process(twin: str) -> Iterator[None]:
    """Let the readers begin as in a new process, with the compiled module or without it."""
    cutting = fresh("shoal.formats._cutting") if twin == "compiled" else None
    with pytest.MonkeyPatch.context() as patched:
        for reader in ("tar.reader", "mds.reader", "tfrecord.tf_example"):
            patched.setattr(f"shoal.formats.rows.{reader}.is_compiled", cutting is not None)
        for reader, function in [
            ("tar.reader", "tar_sample"),
            ("tar.reader", "tar_front"),
            ("mds.reader", "mds_sample"),
            ("tfrecord.tf_example", "plain_example"),
        ]:
            patched.setattr(f"shoal.formats.rows.{reader}.{function}", getattr(cutting, function, None))
        plain = fresh("shoal.formats.rows.tar.headers_fast_path")
        plain._MOST_KNOWN = 2 if twin.endswith("little") else plain._MOST_KNOWN
        patched.setattr("shoal.formats.rows.tar.reader.read_plain_sample", plain.read_plain_sample)
        for function in ("_known_columns", "_decoder", "_cutter", "_record_of"):
            getattr(mds_reader, function).cache_clear()
        yield


def samples_of(format: Format, data: bytes, found: ShardScan, *, shard: str) -> dict[str, list[Sample]]:  # noqa: A002
    """Return the samples of a shard by each way to read them."""
    ways: dict[str, list[Sample]] = {"parsed": [], "viewed": [], "read alone": []}
    pieces = found.piece_samples
    counts = [1] * found.num_samples if pieces is None else pieces.tolist()
    starts = found.sample_starts.tolist()
    for first, end, count in zip(starts, starts[1:], counts, strict=False):
        span = Span(shard, first, count, [0, end - first] if pieces is None else None, found.head)
        records = format.parse(data[first:end], span)
        ways["parsed"] += [records.sample(number) for number in range(count)]
        if format.has_views:
            views = format.parse_views(data[first:end], memoryview(data)[first:end], span)
            ways["viewed"] += [_as_bytes(views.sample(number)) for number in range(count)]
        if max(counts) == 1:
            ways["read alone"].append(format.read_sample(partial(part_of, data), end, span))
    return {way: samples for way, samples in ways.items() if samples}


def part_of(data: bytes, first: int, end: int) -> bytes:
    return data[first:end]


def _as_bytes(sample: Sample) -> Sample:
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in sample.items()}


STEMS = ["a", "b", "A", "d/a", "d.x/a", "d/", "d/._a", "", "_a", "__a", "\u00e9"]
SUFFIXES = ["x", "cls", "X", "x.y", ".x", "y/z", "__key__", "_a.x", "_a"]
KINDS_OF_MEMBERS = [tarfile.REGTYPE] * 6 + [tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.SYMTYPE]


def tar_history(seed: int) -> list[bytes]:
    """Return some tars whose members have few stems and few suffixes, so that the same ones come again and again."""
    chance = random.Random(seed)  # drawn evenly: short lists, which hypothesis prefers, have little history
    stems, suffixes = chance.choices(STEMS, k=2), [None, "", *chance.sample(SUFFIXES, k=3)]
    stems = stems[: chance.randint(1, 2)]
    names = [stem if suffix is None else f"{stem}.{suffix}" for stem in stems for suffix in suffixes]

    def shard() -> bytes:
        chosen = sorted(chance.sample(names, k=chance.randint(1, 5)), key=lambda name: name.partition(".")[0])
        kinds, times = chance.choices(KINDS_OF_MEMBERS, k=5), chance.choices([0, 1.5], k=5)
        return tar_of(zip(chosen, kinds, times, strict=False))

    return [shard() for _ in range(chance.randint(2, 5))]


def tar_of(members: Iterable[tuple[str, bytes, float]]) -> bytes:
    """Return a tar of members with these names, kinds and times; each holds its name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, mtime in members:
            info = tarfile.TarInfo(name or "unnamed")
            info.type, info.mtime = kind, mtime
            info.size = 0 if kind == tarfile.SYMTYPE else len(name.encode())
            archive.addfile(info, io.BytesIO(name.encode()))
    return out.getvalue()


@EACH_TWIN
@settings(max_examples=80)
@given(history=st.integers(0, 1 << 32).map(tar_history))
def test_members_of_a_tar(twin: str, history: list[bytes]) -> None:
    with fresh_process(twin):
        for data in history:
            try:
                found = scan(data)
            except ShardError:  # a suffix comes twice in a sample
                continue
            groups = reference_groups(data)
            for way, samples in samples_of(Tar(), data, found, shard="train.tar").items():
                assert samples == groups, way


@EACH_TWIN
def test_a_member_without_a_dot_is_none_after_one_that_ends_in_a_dot(twin: str) -> None:
    def shard(*names: str) -> bytes:
        return tar_of((name, tarfile.REGTYPE, 0) for name in names)

    with fresh_process(twin):
        for data in (shard("x."), shard("a.cls", "a", "a.txt")):
            for samples in samples_of(Tar(), data, scan(data), shard="s").values():
                assert samples == reference_groups(data)


KINDS: Mapping[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "str": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
    "uint16": st.integers(0, 65535).map(np.uint16),
    "json": st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.lists(st.booleans()), max_size=3),
    "ndarray:int8:3": st.lists(st.integers(-128, 127), min_size=3, max_size=3).map(partial(np.array, dtype=np.int8)),
    "ndarray": st.lists(st.integers(0, 255), max_size=3).map(partial(np.array, dtype=np.uint8)),
}


@st.composite
def mds_shards(draw: st.DrawFn) -> tuple[bytes, list[Sample], tuple[str, ...] | None]:
    """A shard with few names for columns of any encoding, its samples, and the columns to read."""
    columns = draw(st.dictionaries(st.sampled_from("abc"), st.sampled_from(sorted(KINDS)), min_size=1))
    columns = dict(sorted(columns.items()))
    rows = draw(st.lists(st.fixed_dictionaries({name: KINDS[kind] for name, kind in columns.items()}), max_size=3))
    described = {name: (kind, fixed_bytes_of(kind)) for name, kind in columns.items()}
    data = writers.mds_of(described, [[encode_value(columns[name], row[name]) for name in columns] for row in rows])
    wanted = draw(st.none() | st.lists(st.sampled_from(sorted(columns)), min_size=1, unique=True).map(tuple))
    return data, [{name: row[name] for name in columns if name in (wanted or columns)} for row in rows], wanted


@EACH_TWIN
@given(history=st.lists(mds_shards(), min_size=1, max_size=5))
def test_columns_of_mds(twin: str, history: list[tuple[bytes, list[Sample], tuple[str, ...] | None]]) -> None:
    with fresh_process(twin):
        for data, rows, wanted in history:
            format_ = FORMATS["mds"] if wanted is None else FORMATS["mds"].projected(wanted)
            found = format_.scan(partial(part_of, data), len(data), shard="s")
            for way, samples in samples_of(format_, data, found, shard="s").items():
                assert len(samples) == len(rows), way
                assert all(map(same, samples, rows)), way


@pytest.fixture(scope="module")
def known_shards() -> list[tuple[Format, str, bytes, list[Sample]]]:
    for library in LIBRARIES:
        pytest.importorskip(library)
    kinds = ("tar", "jsonl", "tfrecord", "mds", "recordio", "csv", "tsv", "text", "parquet", "arrow", "jsonl.zst")
    all_made = [made(kind, huge=False) for kind in kinds]
    return [(some.format, name, *known) for some in all_made for name, known in some.shards.items()]


@EACH_TWIN
@given(draw=st.data())
def test_shards_of_all_formats_under_one_name(
    twin: str, known_shards: list[tuple[Format, str, bytes, list[Sample]]], draw: st.DataObject
) -> None:
    history = draw.draw(st.lists(st.sampled_from(known_shards), min_size=1, max_size=8))
    with fresh_process(twin):
        for format_, name, data, known in history:
            found = format_.scan(partial(part_of, data), len(data), shard="s")
            for way, samples in samples_of(format_, data, found, shard="s").items():
                assert len(samples) == len(known), (name, way)
                assert all(map(same, samples, known)), (name, way)
