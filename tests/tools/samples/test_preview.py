"""What is shown of data is short, printable and true."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from shoal.tools.samples.preview import clipped, json_value, preview, printable, size_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 鱼", "plain ü 鱼"),
        ("a\r\n\tb", r"a\r\n\tb"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("left\u202eright\u200b", r"left\u202eright\u200b"),
        ("not utf-8 \udcff", r"not utf-8 \udcff"),
    ],
)
def test_nothing_commands_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("txt", b"short", "short"),
        ("txt", b"", ""),
        ("txt", b"one\ntwo", r"one\ntwo"),
        ("txt", b"x" * 100, "x" * 19 + "…"),
        ("txt", "ü".encode() * 100, "ü" * 19 + "…"),
        ("txt", b"x" + "ü".encode() * 5000, "x" + "ü" * 18 + "…"),
        ("bin", b"\xff\x00", "(binary)"),
        ("bin", b"a\x00b", "(binary)"),
        ("bin", b"a\xc3", "(binary)"),
        ("bin", b"\xff" * 5000, "(binary)"),
        ("seg.PNG", b"text", "(image)"),
        ("text", "a\nb", r"a\nb"),
        ("id", 7, "7"),
        ("flag", None, "null"),
        ("tags", ["a", {"b": 1}], '["a", {"b": 1}]'),
        ("npy", np.zeros((3, 4), dtype=np.float32), "float32 array of shape (3, 4)"),
        ("other", {1, 2}, "{1, 2}"),
    ],
)
def test_previews(name: str, value: Any, shown: str) -> None:
    assert preview(name, value, columns=20) == shown


def test_sizes() -> None:
    values = [b"123", "ü", {"a": 1}, [1] * 1000, np.zeros(4), 1.5, None, True]
    assert [size_of(value) for value in values] == [
        "3 B",
        "2 B",
        "dict of 1",
        "list of 1,000",
        "32 B",
        "float",
        "null",
        "bool",
    ]


def test_clipping_leaves_short_texts() -> None:
    assert clipped("12345", 5) == "12345"
    assert clipped("123456", 5) == "1234…"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"text", "text"),
        (b"\xff\x00", {"base64": "/wA="}),
        (b"a\x00", {"base64": "YQA="}),
        ("caf\udce9", "caf\\udce9"),
        ({"a": [b"x", 1, None]}, {"a": ["x", 1, None]}),
        (np.arange(4, dtype=np.int16).reshape(2, 2), {"dtype": "int16", "shape": [2, 2], "values": [[0, 1], [2, 3]]}),
    ],
)
def test_json(value: Any, expected: Any) -> None:
    assert json_value(value) == expected
    json.dumps(json_value(value), ensure_ascii=False).encode("utf-8")


def test_scalars_of_numpy_are_shown_as_what_they_are() -> None:
    values = (np.int8(3), np.float16(0.5), np.bool_(True))
    assert [preview("x", value, columns=30) for value in values] == ["3", "0.5", "True"]
    assert preview("when", np.datetime64(5, "ns"), columns=40) == "1970-01-01T00:00:00.000000005"
    assert preview("deep", {"x": np.int8(1), "y": object}, columns=40).startswith('{"x": 1, "y": "<class')
    assert size_of(np.uint16(7)) == "uint16"
    assert json_value({"x": np.int8(3), "y": [np.float32(0.5)], "t": np.datetime64("2026-01-01")}) == {
        "x": 3,
        "y": [0.5],
        "t": "2026-01-01",
    }
