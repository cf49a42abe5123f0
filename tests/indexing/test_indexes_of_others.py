"""Indexes that others left spare the scan: of shards far away a fraction of the bytes is read, by each kind of them."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.formats import writers
from tests.formats.test_foreign import KINDS, made
from tests.formats.test_token_files import megatron
from tests.stream.far import FarStore

from shoal.formats.format_registry import format_named
from shoal.formats.shard_format import Format
from shoal.index.table import Index
from shoal.indexing.build import build_index
from shoal.indexing.scan import costs
from shoal.storage.sources.source import Source

NUM_SAMPLES = 1500
SUFFIXES = {"energon": "tar.idx", "wds2idx": "idx", "wds2idx 1.1": "idx", "tfrecord": "idx", "recordio": "idx"}


def index_of(store: FarStore, paths: list[str], form: str | Format) -> Index:
    names = tuple(path.removeprefix("far://") for path in paths)
    chosen = format_named(form) if isinstance(form, str) else form
    return build_index(Source("list", "far", "far://", names, tuple(paths)), store=store, format=chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_an_idx_beside_a_shard_spares_its_scan(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google_crc32c")
    monkeypatch.setattr(costs, "_MOST_REQUEST_BYTES", 1 << 14)  # as if the shards were 64 times as large
    form, data, beside = made(kind, NUM_SAMPLES)
    paths = [f"far://d/{number}.{form}" for number in range(3)]
    bare = FarStore(dict.fromkeys(paths, data))
    scanned = index_of(bare, paths, form)
    assert bare.read_bytes > 0.9 * 3 * len(data)
    indexes = dict.fromkeys([path.removesuffix(form) + SUFFIXES[kind] for path in paths], beside)
    store = FarStore({**dict.fromkeys(paths, data), **indexes})
    found = index_of(store, paths, form)
    assert found.num_samples == scanned.num_samples == 3 * NUM_SAMPLES
    np.testing.assert_array_equal(found.sample_bytes, scanned.sample_bytes)
    of_indexes = sum(end - first for path, first, end in store.requests if path in indexes)
    assert of_indexes == 3 * len(beside)
    assert store.read_bytes - of_indexes < 3 * 12 * (16 << 10) < 3 * len(data) / 4
    assert len(store.requests) <= 3 * 12


def parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"t": [f"{number} " * 300 for number in range(NUM_SAMPLES)]}), out, compression="none")
    return out.getvalue()


def arrow() -> bytes:
    out = io.BytesIO()
    found = pa.table({"t": ["text " * 400] * NUM_SAMPLES})
    with pa.ipc.new_file(out, found.schema) as writer:
        writer.write_table(found, max_chunksize=NUM_SAMPLES // 3)
    return out.getvalue()


def mds() -> bytes:
    return writers.mds_of({"t": ("bytes", None)}, [[bytes(2000)] for _ in range(NUM_SAMPLES)])


@pytest.mark.parametrize(("form", "make"), [("parquet", parquet), ("arrow", arrow), ("mds", mds)])
def test_footers_and_fronts_spare_the_rest(form: str, make: Callable[[], bytes]) -> None:
    data = make()
    paths = [f"far://d/{number}.{form}" for number in range(3)]
    store = FarStore(dict.fromkeys(paths, data))
    assert index_of(store, paths, form).num_samples == 3 * NUM_SAMPLES
    assert store.read_bytes < 3 * 70_000 < 3 * len(data) / 20


def test_the_front_of_a_chunk_of_litdata_spares_the_rest() -> None:
    leaf: dict[str, object] = {"type": None, "context": None, "children_spec": []}
    config = {"data_format": ["bytes"], "data_spec": json.dumps([1, leaf])}
    items = [struct.pack("<I", 2000) + bytes(2000)] * NUM_SAMPLES
    starts = 4 * (NUM_SAMPLES + 2) + np.cumsum([0, *map(len, items)])
    data = struct.pack("<I", NUM_SAMPLES) + starts.astype("<u4").tobytes() + b"".join(items)
    paths = [f"far://d/chunk-0-{number}.bin" for number in range(3)]
    store = FarStore(dict.fromkeys(paths, data))
    assert index_of(store, paths, format_named("litdata", {"config": config})).num_samples == 3 * NUM_SAMPLES
    assert store.read_bytes < 3 * 70_000 < 3 * len(data) / 20


def test_the_idx_of_tokens_spares_the_tokens() -> None:
    documents = [[np.arange(1000, dtype="uint16")] for _ in range(NUM_SAMPLES)]
    tokens, beside = megatron(documents, "uint16")
    store = FarStore({"far://d/a.bin": tokens, "far://d/a.idx": beside})
    found = index_of(store, ["far://d/a.bin"], "tokens")
    assert found.num_samples == NUM_SAMPLES
    assert sum(end - first for path, first, end in store.requests if path == "far://d/a.bin") <= 16 << 10
    assert store.read_bytes < len(tokens) / 20
