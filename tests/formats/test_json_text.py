"""JSON by msgspec: the values and the errors of Python's json, for all that is JSON and for what is not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.formats.decoding.json_text import json_parser, parse_json

_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8)
)
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner))


def outcome(parse: Callable[[bytes], Any], data: bytes) -> tuple[str, str]:
    """The value with its types, or the error."""
    try:
        return "value", repr(parse(data))
    except (ValueError, RecursionError) as error:
        return type(error).__name__, str(error)


@settings(max_examples=80)
@given(value=_VALUES, escapes=st.booleans(), indent=st.sampled_from([None, 1]))
def test_values_are_those_of_python(value: Any, *, escapes: bool, indent: int | None) -> None:
    data = json.dumps(value, ensure_ascii=escapes, indent=indent).encode("utf-8", "surrogatepass")
    assert outcome(parse_json, data) == outcome(json.loads, data)


@settings(max_examples=80)
@given(value=_VALUES, data=st.data())
def test_damaged_texts_are_those_of_python(value: Any, data: st.DataObject) -> None:
    text = bytearray(json.dumps(value).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        if text:
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(
                st.sampled_from(b'"\\{}[],:0159-+.eE \n\xff\x00u')
            )
    assert outcome(parse_json, bytes(text)) == outcome(json.loads, bytes(text))


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"NaN",
            b"-Infinity",
            b"1e999",
            b"-0",
            b"-0.0",
            b"1" * 400,
            b'"\\ud800"',
            b'"\\ud83d\\ude00"',
            b"\xef\xbb\xbf1",
        ),
        *(b'{"a": 1, "a": 2}', b"[1,]", b"01", b"", b" ", b'"\x01"', b'"\xff"', '"é"'.encode("utf-16"), b"1 2", b"0.1"),
        b"2.2250738585072011e-308",
        b"123456789.12345678901234567890",
    ],
)
def test_odd_texts(data: bytes) -> None:
    assert outcome(parse_json, data) == outcome(json.loads, data)


def test_depth() -> None:
    assert outcome(parse_json, b"[" * 500 + b"]" * 500) == outcome(json.loads, b"[" * 500 + b"]" * 500)
    with pytest.raises(RecursionError):
        parse_json(b"[" * 200_000 + b"]" * 200_000)


def test_the_exact_parser_decides_what_is_refused() -> None:
    parse = json_parser(lambda data: ("exact", data))
    assert parse(b"[1]") == [1]
    assert parse(b"NaN") == ("exact", b"NaN")
    assert math.isnan(parse_json(b"NaN"))
