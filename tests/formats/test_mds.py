"""MDS shards that MosaicML Streaming wrote, and damaged ones."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import zlib
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.writers import mds_of

from shoal.errors import ShardError, UsageError
from shoal.formats.format_registry import format_of
from shoal.formats.rows.mds.encodings import ENCODINGS, decoder_of, fixed_bytes_of
from shoal.formats.rows.mds.reader import Mds
from shoal.formats.rows.mds.writer import mds_index_of
from shoal.formats.rows.records import CutRecords
from shoal.formats.shard_format import Format, Records, Span
from shoal.index.assembly import ScannedShard, assemble
from shoal.index.shard_scan import ShardScan

MADE = Path(__file__).parent / "data" / "mds"


def opened(data: bytes, format: Format, *, with_starts: bool = True) -> tuple[ShardScan, Records]:  # noqa: A002
    found = format.scan(lambda first, end: data[first:end], len(data), shard="shard.mds")
    begin, end = int(found.sample_starts[0]), int(found.sample_starts[-1])
    starts = (found.sample_starts - begin).tolist() if with_starts and found.piece_samples is None else None
    records = format.parse(data[begin:end], Span("shard.mds", begin, found.num_samples, starts, found.head))
    return found, records


def samples_in(directory: Path, pattern: str, *, with_starts: bool = True) -> list[dict[str, Any]]:
    samples = []
    for path in sorted(directory.glob(pattern)):
        found, records = opened(path.read_bytes(), format_of(path.name), with_starts=with_starts)
        samples += [records.sample(number) for number in range(found.num_samples)]
    return samples


def plain(value: Any) -> Any:
    """As tests/formats/data/make_mds.py wrote down what Streaming's reader gave."""
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return ["image", value.mode, list(value.size), value.tobytes().hex()]
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.name, list(value.shape), value.tobytes().hex()]
    if isinstance(value, np.generic):
        return ["scalar", value.dtype.name, value.tobytes().hex()]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, list):
        return ["list", [plain(item) for item in value]]
    return [type(value).__name__, value if isinstance(value, dict) else str(value)]


@pytest.mark.parametrize("with_starts", [True, False])
def test_every_encoding_gives_what_streaming_gives(with_starts: bool) -> None:
    pytest.importorskip("PIL")
    expected = json.loads((MADE / "all.json").read_text())
    found = samples_in(MADE / "all", "*.mds", with_starts=with_starts)
    assert [{name: plain(value) for name, value in sample.items()} for sample in found] == expected
    kinds = {encoding.partition(":")[0] for column in _columns_of("all") for encoding in [column[1]]}
    assert {*ENCODINGS} - kinds == {"pkl", "jpegarray"}
    assert isinstance(found[1]["str_decimal"], Decimal)


def _columns_of(name: str) -> list[list[str]]:
    shard = min((MADE / name).glob("*.mds")).read_bytes()
    columns: list[list[str]] = opened(shard, Mds())[0].head["columns"]
    return columns


@pytest.mark.parametrize("codec", ["zstd", "gz", "bz2", "br", "snappy"])
def test_compressed_shards(codec: str) -> None:
    pytest.importorskip({"zstd": "zstandard", "br": "brotli", "snappy": "cramjam"}.get(codec, "zlib"))
    found = samples_in(MADE / codec, f"*.mds.{codec}")
    assert found == [{"n": number, "s": "ab" * number} for number in range(20)]


@pytest.mark.parametrize("name", ["csv", "tsv"])
def test_shards_that_streaming_splits_at_newlines(name: str) -> None:
    found = samples_in(MADE / name, f"*.{name}")
    assert found == [{"n": str(number), "s": f"text {number}"} for number in range(7)]


def test_pickles_are_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = next((MADE / "pickles").glob("*.mds")).read_bytes()
    _, records = opened(data, Mds())
    with pytest.raises(UsageError, match="can run any code") as caught:
        records.sample(0)
    assert "allow_pickle=True" in caught.value.hint
    assert opened(data, Mds(allow_pickle=True))[1].sample(0) == {"x": {1, 2}}


def test_sizes_of_values() -> None:
    for encoding in ("ndarray:float31", "ndarray:int8:0", "ndarray:int8:2:2", "ndarrays"):
        with pytest.raises(UsageError, match="no MDS encoding"):
            fixed_bytes_of(encoding), decoder_of(encoding, allow_pickle=False)
    assert fixed_bytes_of("ndarray:float16") is None
    assert fixed_bytes_of("float16") == 2


def small_shard(*texts: str) -> bytes:
    """A shard of one column of text and one of int32."""
    samples = [[number.to_bytes(4, "little"), text.encode()] for number, text in enumerate(texts)]
    return mds_of({"n": ("int32", 4), "t": ("str", None)}, samples)


@given(texts=st.lists(st.text(max_size=8), max_size=6), with_starts=st.booleans())
def test_samples_are_found_and_given_back(texts: list[str], with_starts: bool) -> None:
    found, records = opened(small_shard(*texts), Mds(), with_starts=with_starts)
    assert records.layout_crcs().tolist() == found.layout_crcs.tolist()
    expected = [{"n": number, "t": text} for number, text in enumerate(texts)]
    assert [records.sample(number) for number in range(len(records))] == expected


def test_columns_of_fixed_size_are_views_of_the_bytes() -> None:
    about = {"column_names": ["n", "x"], "column_encodings": ["int", "ndarray:float32:2,3"], "column_sizes": [8, 24]}
    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    samples = [(7 + place).to_bytes(8, "little") + values[place].tobytes() for place in range(2)]
    config = json.dumps(about).encode()
    starts = 16 + len(config) + 32 * np.arange(3)
    data = (2).to_bytes(4, "little") + starts.astype("<u4").tobytes() + config + b"".join(samples)
    for with_starts in (True, False):
        _, records = opened(data, Mds(), with_starts=with_starts)
        assert isinstance(records, CutRecords)
        found = records.columns()
        assert found is not None
        columns = found.by_name()
        assert columns["n"].tolist() == [7, 8] == [records.sample(0)["n"], records.sample(1)["n"]]
        assert np.array_equal(columns["x"], values)
        assert not columns["x"].flags.owndata
    _, mixed = opened(small_shard("a"), Mds())
    assert isinstance(mixed, CutRecords)
    assert mixed.columns() is None


@given(data=st.binary(max_size=80), flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7))))
def test_any_bytes_are_a_shard_or_refused(data: bytes, flips: list[tuple[float, int]]) -> None:
    damaged = bytearray(small_shard("one", "two \u00e9", ""))
    for place, bit in flips:
        damaged[int(place * len(damaged))] ^= 1 << bit
    for shard in (data, bytes(damaged), bytes(damaged) + data, bytes(damaged)[: len(data)]):
        for with_starts in (True, False):
            try:
                found, records = opened(shard, Mds(), with_starts=with_starts)
                for number in range(found.num_samples):
                    records.sample(number)
            except ShardError as error:
                assert error.byte is None or 0 <= error.byte <= len(shard) + 4  # noqa: PT017


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name != "pkl"])
@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(encoding: str, data: bytes) -> None:
    head = {"columns": [["x", encoding]]}
    borders = [0, len(data)]
    records = Mds().parse(data, Span("shard.mds", 0, 1, borders, head))
    with contextlib.suppress(ShardError):
        records.sample(0)


def test_a_head_that_lies_reserves_no_memory() -> None:
    lying = (2**31).to_bytes(4, "little") + bytes(100)
    with pytest.raises(ShardError, match="does not fit into 104 bytes"):
        opened(lying, Mds())
    for size in ((2**16, 2**16), (2**32 - 1, 0), (2**13, 2**13)):
        many_pixels = b"".join(number.to_bytes(4, "little") for number in (*size, 1)) + b"L"
        with pytest.raises(ValueError, match="claims"):
            decoder_of("pil", allow_pickle=False)(many_pixels)
    png = io.BytesIO()
    pytest.importorskip("PIL.Image").new("L", (2, 2)).save(png, "PNG")
    wide = bytearray(png.getvalue())
    wide[16:24] = (9000).to_bytes(4, "big") * 2
    wide[29:33] = zlib.crc32(wide[12:29]).to_bytes(4, "big")
    with pytest.raises(ValueError, match="bytes claims 9000 x 9000 pixels"):
        decoder_of("png", allow_pickle=False)(bytes(wide))
    with pytest.raises(ValueError):
        decoder_of("list[png]", allow_pickle=False)(bytes(4) + b"\xff\xff\xff\xff")
    assert sys.getsizeof(lying) < 200


def test_an_index_json_needs_the_columns_of_every_shard() -> None:
    scan = ShardScan(np.array([20, 21]), np.zeros(1, np.uint32), head={"columns": [["a", "str"]]})
    other = replace(scan, head={"columns": [["b", "str"]]})
    unknown = replace(scan, head={})

    def index_of(*scans: ShardScan) -> bytes:
        return mds_index_of(assemble("mds", [ScannedShard(f"{n}.mds", 21, "", scan) for n, scan in enumerate(scans)]))

    assert [shard["samples"] for shard in json.loads(index_of(scan, scan))["shards"]] == [1, 1]
    with pytest.raises(UsageError, match=r"^2\.mds has the columns \[\['b'"):
        index_of(scan, scan, other)
    for scans in ((unknown,), (unknown, scan), (unknown, other, scan)):
        with pytest.raises(UsageError, match=r"which columns 0\.mds has"):
            index_of(*scans)
