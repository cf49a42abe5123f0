"""Records are readable by people and by machines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.main import main
from shoal.cli.output import complain, emit, format_record, format_table, format_value, say
from shoal.figures import format_bytes, format_count, format_seconds


def test_json_is_one_line_in_the_types_of_json() -> None:
    record = {
        "num_samples": np.int64(3),
        "quality": np.float64(1.5),
        "lost": float("nan"),
        "ids": np.arange(3),
        "shards": [{"name": "ä.tar", "num_bytes": np.uint32(7)}],
        "path": io.BytesIO,
        "exact": np.bool_(1),
    }
    stream = io.StringIO()
    emit(record, as_json=True, stream=stream)
    assert stream.getvalue().count("\n") == 1
    back = json.loads(stream.getvalue())
    assert back["num_samples"] == 3
    assert back["lost"] is None
    assert back["ids"] == [0, 1, 2]
    assert back["shards"] == [{"name": "ä.tar", "num_bytes": 7}]
    assert back["exact"] is True


def test_people_get_names_without_units_and_values_with_them() -> None:
    text = format_record({"num_samples": 10_000, "window_bytes": 2**30, "order": "window", "elapsed_seconds": 2.5})
    assert text.splitlines() == [
        "samples   10,000",
        "window   1.0 GiB",
        "order    window",
        "elapsed    2.5 s",
    ]


def test_tables_follow_the_facts() -> None:
    text = format_record({"shards": [{"name": "a"}], "format": "tar"})
    assert text == "format  tar\n\nshards:\nname\na"


def test_a_table_of_nothing_is_nothing() -> None:
    assert format_table([]) == ""
    assert format_table([], ["name", "num_bytes"]) == "name  bytes"


def test_a_missing_cell_is_a_dash() -> None:
    assert format_table([{"a": 1, "b": "x"}, {"a": None}]).splitlines() == ["a  b", "1  x", "-  -"]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rate_bytes_per_second", 2**21, "2.0 MiB/s"),
        ("samples_per_second", 123456.7, "123,457/s"),
        ("exact", True, "yes"),
        ("exact", np.bool_(0), "no"),
        ("missing", None, "-"),
        ("empty", [], "-"),
        ("sizes", [1, 2], "1, 2"),
        ("notes", {"num_links": 3}, "links 3"),
        ("quality", 1.23456, "1.235"),
        ("seed", 2**64 - 1, "18446744073709551615"),
        ("num_bytes", 0, "0 B"),
        ("wait_seconds", float("inf"), "inf"),
    ],
)
def test_values_get_the_unit_of_their_name(name: str, value: object, text: str) -> None:
    assert format_value(name, value) == text


@given(st.integers(0, 2**70))
def test_bytes_never_need_more_than_four_digits_before_the_point(num_bytes: int) -> None:
    number, _, unit = format_bytes(num_bytes).partition(" ")
    assert unit == "EiB" or float(number.replace(",", "")) < 1024


@given(st.floats(0, 1e7))
def test_seconds_never_show_sixty_of_anything(seconds: float) -> None:
    assert ":60" not in format_seconds(seconds)


def test_counts_have_their_thousands_apart() -> None:
    assert format_count(1_234_567) == "1,234,567"
    assert format_count(float("nan")) == "nan"


def test_complaints_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    complain("error: no")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "shoal: error: no\n")


HOSTILE = "a\x1b]0;title\x07\x1b[31m\x9b2J\x7f\u202e\r"


def test_no_text_of_others_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"one {HOSTILE}\n\ttwo ä")
    complain(f"error: {HOSTILE}\n  hint: three")
    emit({"name": HOSTILE})
    emit({"name": HOSTILE}, as_json=True)
    out, err = capsys.readouterr()
    assert "\n\ttwo ä\n" in out
    assert "\n  hint: three\n" in err
    assert not [letter for letter in out + err if not letter.isprintable() and letter not in "\n\t"]
    assert json.loads(out.splitlines()[-1]) == {"name": HOSTILE}


def test_names_of_files_do_not_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "x\x1b]0;title\x07"
    directory.mkdir()
    (directory / "y\x1b[31m.tar").write_bytes(b"no archive" * 100)
    for source in (directory, directory / "y\x1b[31m.tar", directory / "missing\x9b.tar"):
        assert main(["info", str(source)]) != 0
    out, err = capsys.readouterr()
    assert "\\x1b[31m.tar" in err
    assert not [letter for letter in out + err if not letter.isprintable() and letter != "\n"]
