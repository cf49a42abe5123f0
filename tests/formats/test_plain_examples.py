"""Examples in the form that writers give them, read without looking at a message twice: with the same result.

All of it is true of the function in Python and of its compiled twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.formats.compiled_cutting import is_compiled, plain_example
from shoal.formats.rows.tfrecord import tf_example
from shoal.formats.rows.tfrecord.tf_example import NotAnExampleError, encode_example, parse_example

VALUES = st.one_of(
    st.binary(max_size=300),
    st.lists(st.binary(max_size=3), max_size=3),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=12),
    st.lists(st.integers(0, 200), max_size=200),
    st.lists(st.floats(width=32), max_size=40),
    st.none(),
)
FEATURES = st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=4)


@pytest.fixture(params=[True, False] if is_compiled else [False], ids="compiled={}".format)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_example, "is_compiled", request.param)


EACH_WAY = pytest.mark.usefixtures("way")
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it is the same for all examples


def read(data: bytes) -> Any:
    try:
        found = parse_example(data)
    except NotAnExampleError as error:
        return str(error), error.byte
    return {
        name: (value.dtype.str, value.tobytes(), value.flags.writeable) if isinstance(value, np.ndarray) else value
        for name, value in found.items()
    }


def read_in_full(data: bytes) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tf_example, "is_compiled", False)
        patched.setattr(tf_example, "_plain_example", lambda _: None)
        return read(data)


@EACH_WAY
@SHARED
@given(FEATURES)
def test_examples_are_read_as_in_full(features: dict[str, Any]) -> None:
    data = encode_example(features)
    assert read(data) == read_in_full(data)


@EACH_WAY
@SHARED
@given(FEATURES, st.data())
def test_damaged_examples_are_read_as_in_full(features: dict[str, Any], draw: st.DataObject) -> None:
    data = bytearray(encode_example(features))
    for _ in range(draw.draw(st.integers(1, 3))):
        place = draw.draw(st.integers(0, len(data) - 1))
        what = draw.draw(st.sampled_from(["set", "cut", "add"]))
        data[place : place + (what != "add")] = b"" if what == "cut" else bytes([draw.draw(st.integers(0, 255))])
        if not data:
            return
    assert read(bytes(data)) == read_in_full(bytes(data))


PLAIN = {
    "compiled": lambda data: plain_example(data, tf_example._float_array, tf_example._integer_array),
    "python": tf_example._plain_example,
}


@pytest.mark.parametrize("way", PLAIN if is_compiled else ["python"])
def test_usual_examples_are_plain(way: str) -> None:
    data = encode_example({"image": b"png" * 500, "label": 3, "tokens": list(range(1000)), "x": [0.5, 1.5]})
    found = PLAIN[way](data)
    assert found is not None
    assert found["label"].tolist() == [3]
    assert list(found) == ["image", "label", "tokens", "x"]
    assert found["tokens"].tolist() == list(range(1000))
