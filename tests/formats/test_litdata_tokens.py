"""LitData's chunks of tokens, as documents and in blocks; what LitData itself reads of them is in `test_peers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import shoal
from shoal.errors import ShardError, SourceError, UsageError
from shoal.formats import LitData, LitDataTokens, Span
from shoal.testing import check_format

MADE = Path(__file__).parent / "data" / "peers" / "litdata" / "numpy"
INDEX = json.loads((MADE / "index.json").read_text())

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


def chunk(documents: list[NDArray[np.uint16]]) -> bytes:
    ends = 4 * (len(documents) + 2) + np.cumsum([0, *(row.nbytes for row in documents)])
    return np.array([len(documents), *ends], "<u4").tobytes() + b"".join(row.tobytes() for row in documents)


def scanned(reader: LitDataTokens, data: bytes) -> shoal.formats.ShardScan:
    return reader.scan(lambda first, end: data[first:end], len(data), shard="a.bin")


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 7))
def test_blocks_are_cut_across_documents(lengths: list[int], block_size: int) -> None:
    tokens = np.arange(sum(lengths), dtype=np.uint16)
    data = chunk(np.split(tokens, np.cumsum(lengths)[:-1]) if lengths else [])
    reader = LitDataTokens(INDEX, block_size=block_size)
    found = scanned(reader, data)
    begin, end = int(found.sample_starts[0]), int(found.sample_starts[-1])
    records = reader.parse(data[begin:end], Span("a.bin", begin, found.num_samples))
    samples = [records.sample(number)["tokens"].tolist() for number in range(len(records))]
    whole = len(tokens) - len(tokens) % block_size
    assert samples == tokens[:whole].reshape(-1, block_size).tolist()
    assert found.notes.get("tokens_left_over", 0) == len(tokens) % block_size


def test_the_format_conforms() -> None:
    reader = LitDataTokens(INDEX, block_size=8)
    shards = {}
    for path in sorted(MADE.glob("*.bin")):
        data = path.read_bytes()
        found = scanned(reader, data)
        begin, end = int(found.sample_starts[0]), int(found.sample_starts[-1])
        records = reader.parse(data[begin:end], Span("a", begin, found.num_samples))
        shards[path.name] = (data, [records.sample(number) for number in range(len(records))])
    report = check_format(reader, shards, num_damaged=100)
    assert report.num_samples == sum(len(samples) for _, samples in shards.values())


def test_blocks_are_gathered_into_batches() -> None:
    blocks = shoal.open(MADE, format=LitDataTokens(INDEX, block_size=4))
    batches = list(blocks.shuffle(seed=1).batch(3).format("numpy"))
    assert {batch["tokens"].dtype.name for batch in batches} == {"uint16"}
    one_by_one = sorted(sample["tokens"].tolist() for sample in blocks)
    assert sorted(row for batch in batches for row in batch["tokens"].tolist()) == one_by_one


def changed(**config: Any) -> dict[str, Any]:
    return {**INDEX, "config": {**INDEX["config"], **config}}


@pytest.mark.parametrize(
    ("index", "match"),
    [
        ({}, "not an index of LitData chunks"),
        (changed(encryption="fernet"), "encryption 'fernet'"),
        (changed(item_loader="PyTreeLoader"), "not tokens"),
        (changed(data_format=["int"]), "not tokens"),
        (changed(data_format=["no_header_numpy:99"]), "not tokens"),
        (changed(data_format=["no_header_numpy:5"] * 2), "not tokens"),
    ],
)
def test_other_indexes_are_refused(index: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        LitDataTokens(index, block_size=8)


def test_what_cannot_be_asked_for_says_what_can() -> None:
    with pytest.raises(UsageError, match="at least one token"):
        LitDataTokens(INDEX, block_size=0)
    with pytest.raises(UsageError, match="LitDataTokens"):
        LitData(INDEX)
    with pytest.raises(SourceError, match="block_size=2049"):
        shoal.open(MADE)


def test_a_document_that_ends_within_a_token_is_refused() -> None:
    data = bytearray(chunk([np.arange(3, dtype=np.uint16), np.arange(4, dtype=np.uint16)]))
    data[8:12] = (int.from_bytes(data[8:12], "little") + 1).to_bytes(4, "little")
    with pytest.raises(ShardError, match="document 1 begins at byte 23"):
        scanned(LitDataTokens(INDEX, block_size=2), bytes(data))
