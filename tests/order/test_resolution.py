from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.order.window.sizing_by_bytes import DEFAULT_WINDOW_BYTES, resolve_window

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40


def resolved(total_bytes: int, *, extent_bytes: int = 64 * KIB, num_shards: int = 1, **asked: object) -> dict[str, int]:
    """The integers for shards of equal size."""
    each = total_bytes // extent_bytes // num_shards
    found = resolve_window(np.full(num_shards, each), each * num_shards * extent_bytes, **asked)  # type: ignore[arg-type]
    return {**found.order.parameters, "extents_per_chunk": found.extents_per_chunk}


@pytest.mark.parametrize(
    ("window", "extents", "chunks", "nodes"),
    [
        (None, 8, 1024, 64),  # 512 MiB in chunks of 512 KiB
        ("512MiB", 8, 1024, 64),
        ("16MiB", 1, 256, 16),  # a 1024th is 16 KiB: a chunk is at least an extent
        ("1GiB", 16, 1024, 64),
        ("4GiB", 64, 1024, 64),
        ("16GiB", 128, 2048, 64),  # a 1024th is 16 MiB: a chunk is at most 8 MiB
        (128 * KIB, 1, 2, 1),
        ("2MiB", 1, 32, 2),
    ],
)
def test_defaults(window: object, extents: int, chunks: int, nodes: int) -> None:
    wanted = {"extents_per_chunk": extents, "chunks": chunks, "num_canonical_nodes": nodes}
    assert resolved(TIB, window=window) == wanted


def test_the_default_window_is_512_mib() -> None:
    assert DEFAULT_WINDOW_BYTES == 512 * MIB


@pytest.mark.parametrize(
    ("chunk", "extents", "chunks"),
    [("64KiB", 1, 8192), ("1MiB", 16, 512), ("64MiB", 1024, 8), (MIB + 40 * KIB, 17, 481), ("32KiB", 1, 8192)],
)
def test_a_chunk_that_was_asked_for(chunk: object, extents: int, chunks: int) -> None:
    found = resolved(TIB, window="512MiB", chunk=chunk)
    # The last chunk of a shard may be short, and the window holds more of them.
    assert found["extents_per_chunk"] == extents
    assert found["chunks"] == chunks


def test_canonical_nodes_that_were_asked_for() -> None:
    assert resolved(TIB, num_canonical_nodes=1)["num_canonical_nodes"] == 1
    assert resolved(TIB, num_canonical_nodes=256)["num_canonical_nodes"] == 256
    with pytest.raises(UsageError, match="a window of 1024 chunks allows 1 to 512 canonical nodes; got 513"):
        resolved(TIB, num_canonical_nodes=513)


def test_fewer_canonical_nodes_in_a_window_of_few_chunks() -> None:
    few = {"total_bytes": 9 * MIB // 2, "num_canonical_nodes": 64}
    with pytest.raises(UsageError, match="a window of 9 chunks allows 1 to 4 canonical nodes; got 64"):
        resolved(**few)
    assert resolved(**few, fits_nodes=True)["num_canonical_nodes"] == 4
    assert resolved(9 * MIB // 2, num_canonical_nodes=3, fits_nodes=True)["num_canonical_nodes"] == 3
    assert resolved(1 * GIB, num_canonical_nodes=64, fits_nodes=True)["num_canonical_nodes"] == 64


def test_a_chunk_does_not_cross_shards() -> None:
    """Shards of 10 extents in chunks of up to 16: a chunk is a shard, and the window holds more of them."""
    found = resolved(1000 * 10 * 64 * KIB, num_shards=1000, window="64MiB", chunk="1MiB")
    assert found == {"extents_per_chunk": 16, "chunks": 102, "num_canonical_nodes": 6}


def test_a_window_larger_than_the_dataset_holds_all_of_it() -> None:
    assert resolved(4 * MIB)["chunks"] == 8
    assert resolved(8 * MIB, window="1TiB")["chunks"] == 2  # chunks of 8 MiB: there is one
    assert resolved(64 * KIB)["chunks"] == 2


def test_a_dataset_of_nothing_has_a_window() -> None:
    assert resolve_window(np.array([], dtype=np.int64), 0).order.chunks == 2


def test_a_window_of_less_than_two_chunks_names_one_that_would_do() -> None:
    with pytest.raises(UsageError) as caught:
        resolved(TIB, window="100KiB")
    assert caught.value.message.startswith("window=102,400 bytes holds 1 chunk of 65,536 bytes")
    assert resolved(TIB, window=int(caught.value.hint.split("=")[1].split()[0]))["chunks"] == 2


def test_the_window_named_has_room_for_the_largest_extent() -> None:
    with pytest.raises(UsageError, match="the largest has 70") as caught:
        resolve_window(np.array([5, 5]), 140, window=10, largest_extent_bytes=70)
    assert caught.value.hint.startswith("window=140 or more")


def test_the_window_named_for_a_chunk_that_was_asked_for_would_do() -> None:
    with pytest.raises(UsageError) as caught:
        resolved(TIB, window="8MiB", chunk="8MiB")
    window = int(caught.value.hint.split("=")[1].split()[0])
    assert resolved(TIB, window=window, chunk="8MiB")["chunks"] >= 2


def test_a_chunk_smaller_than_an_extent_names_the_command() -> None:
    with pytest.raises(UsageError, match="smaller than the extents of the index, 1,048,576 bytes on average") as caught:
        resolved(TIB, extent_bytes=MIB, chunk="256KiB")
    assert "`shoal index --extent-bytes 262144`" in caught.value.hint


@given(total=st.integers(1, 10**15), window=st.integers(10**6, 10**13), extent=st.integers(10**3, 10**5))
def test_the_window_is_never_larger_than_was_asked_for(total: int, window: int, extent: int) -> None:
    extents = max(1, total // extent)
    found = resolve_window(np.array([extents]), extents * extent, window=window)
    chunk_bytes = found.extents_per_chunk * extent
    num_chunks = -(-extents // found.extents_per_chunk)
    held = found.order.chunks * chunk_bytes
    assert found.order.chunks <= max(2, num_chunks)
    # The mean chunk is smaller where the last one is short.
    assert held <= window * (1 + 1 / num_chunks) + chunk_bytes or found.order.chunks == max(2, num_chunks)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        (1, 1),
        (np.int64(70), 70),
        ("70", 70),
        ("70B", 70),
        ("2k", 2000),
        ("2KB", 2000),
        ("2kib", 2048),
        ("2 Ki", 2048),
        (" 1.5 GiB ", 3 * 2**29),
        ("1 TB", 10**12),
        ("1TiB", 2**40),
        ("16MB", 16 * 10**6),
    ],
)
def test_numbers_of_bytes(text: object, num_bytes: int) -> None:
    assert parse_bytes(text, "window") == num_bytes


@pytest.mark.parametrize("value", [0, -5, "0", "", "GiB", "1 PiB", "1e9", "-1MiB", "1 Mi B", 1.5, True, None, [1]])
def test_what_is_no_number_of_bytes(value: object) -> None:
    with pytest.raises(UsageError, match="window must be a number of bytes; got") as caught:
        parse_bytes(value, "window")
    assert "16MiB" in caught.value.hint


@pytest.mark.parametrize("asked", [{"window": "much"}, {"chunk": "much"}, {"window": 0}, {"chunk": -1}])
def test_requests_that_are_no_bytes_name_the_argument(asked: dict) -> None:
    (name,) = asked
    with pytest.raises(UsageError, match=f"{name} must be a number of bytes"):
        resolved(TIB, **asked)
