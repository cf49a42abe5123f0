"""Samples in a state come back as they were, or are refused; loading runs nothing."""

from __future__ import annotations

import base64
import pickle
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import StateError, UsageError
from shoal.live import live_state
from shoal.live.live_state import kept, restored
from shoal.testing.known_shards import measured

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.just("!")
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4) | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


def types_of(value: Any) -> Any:
    if isinstance(value, dict):
        return [(types_of(name), types_of(each)) for name, each in value.items()]
    return (type(value), [types_of(each) for each in value]) if isinstance(value, list | tuple) else type(value)


@given(st.lists(VALUES, max_size=5))
def test_values_come_back_as_they_were(values: list[Any]) -> None:
    again = restored(kept(values))
    assert again == values
    assert types_of(again) == types_of(values)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.zeros((0, 3), dtype=np.float32),
        np.array(["a", "bcd"]),
        np.array("2026-11-23", dtype="datetime64[D]"),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(True),
    ],
)
def test_arrays_come_back_with_their_types(array: np.ndarray[Any, Any]) -> None:
    (again,) = restored(kept([array]))
    assert type(again) is np.ndarray
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert (again == array).all()
    again[...] = array  # it may be written to


def test_numpy_scalars_and_bytearrays_keep_their_types() -> None:
    values = [np.float32(1.5), np.int64(7), np.bool_(1), bytearray(b"ab"), float("inf")]
    assert [type(each) for each in restored(kept(values))] == [type(each) for each in values]
    assert restored(kept(values)) == values


class Own(dict[str, int]):
    pass


@pytest.mark.parametrize("value", [object(), {1, 2}, Own(), np.array([None]), np.zeros(2).view(np.ma.MaskedArray)])
def test_other_types_are_refused_with_their_field(value: object) -> None:
    with pytest.raises(UsageError, match=r"'x' is of type (?s:.)*map\(\)"):
        kept([{"x": value}])


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "!!",
        base64.b64encode(pickle.dumps([1])).decode(),
        base64.b64encode(zlib.compress(b"[1")).decode(),
        base64.b64encode(zlib.compress(b'[{"!":"array","dtype":"|O","shape":[1],"v":"AAAAAAAAAAA="}]')).decode(),
        base64.b64encode(zlib.compress(b'[{"!":"code","v":"AAAA"}]')).decode(),
    ],
)
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(StateError, match="contents in the state"):
        restored(text)


def test_a_small_text_does_not_become_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_state, "_MOST_BYTES", 1 << 20)
    bomb = base64.b64encode(zlib.compress(b"[" + b" " * (64 << 20) + b"]")).decode()

    def refused() -> StateError:
        with pytest.raises(StateError, match=r"more than 1,048,576 bytes(?s:.)*changed or cut short") as caught:
            restored(bomb)
        return caught.value

    _, used_bytes = measured(refused)
    assert used_bytes < 8 << 20
    with pytest.raises(UsageError, match=r"more than 1,048,576 bytes(?s:.)*smaller buffer"):
        kept([b"x" * (1 << 20)])
    assert restored(kept([b"x" * 1000])) == [b"x" * 1000]
