"""Metrics that a Prometheus server can read: parsed back by the grammar of the text format."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal.prometheus
from shoal.errors import StorageError, UsageError
from shoal.stats.counters import Counters

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')


def parsed(text: str) -> dict[str, tuple[str, str, dict[str, str], float]]:
    """Type, help, labels and value of each metric; every line must be one of three kinds, in their order."""
    assert text.endswith("\n") or not text
    found: dict[str, tuple[str, str, dict[str, str], float]] = {}
    lines = text.split("\n")[:-1]
    for about, kind, line in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        sample = _SAMPLE.fullmatch(line)
        assert sample, line
        name = sample["name"]
        assert name not in found
        assert about.startswith(f"# HELP {name} ")
        assert "\\" not in about
        assert kind in {f"# TYPE {name} counter", f"# TYPE {name} gauge"}
        labels, at, words = {}, 0, sample["labels"] or ""
        while at < len(words):
            label = _LABEL.match(words, at)
            assert label, words
            unescaped = re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label["value"])
            labels[label["name"]] = unescaped
            at = label.end()
        help_text = about.removeprefix(f"# HELP {name} ")
        found[name] = (kind.rpartition(" ")[2], help_text, labels, float(sample["value"]))
    return found


def test_every_count_of_a_dataset_has_its_metric_help_and_type() -> None:
    counts = {name: number for number, name in enumerate(Counters().as_dict(), 3)}
    stats: dict[str, Any] = counts | {"skipped_ids": [3, 4], "bottleneck": "storage", "copies": True, "none": None}
    found = parsed(shoal.prometheus.text(stats))
    assert found["shoal_samples_total"][0] == "counter"
    assert found["shoal_samples_total"][3] == counts["num_samples"]
    assert found["shoal_read_bytes_total"][3] == counts["read_bytes"]
    assert found["shoal_wait_seconds_total"][0] == "counter"
    assert found["shoal_peak_held_bytes"][0] == "gauge"
    assert not any("skipped_ids" in name or "copies" in name or "none" in name for name in found)
    for name, (kind, help_text, labels, _) in found.items():
        assert name.endswith("_total") == (kind == "counter")
        assert help_text
        assert labels == {}


def test_an_unknown_count_is_told_all_the_same() -> None:
    found = parsed(shoal.prometheus.text({"num_wonders": 3, "wonder_seconds": 0.25, "wonders_per_second": 12.0}))
    assert {name: row[3] for name, row in found.items()} == {
        "shoal_wonders_total": 3,
        "shoal_wonder_seconds_total": 0.25,
    }


@given(
    values=st.dictionaries(
        st.sampled_from(["num_samples", "wait_seconds", "in_flight_bytes"]), st.integers() | st.floats()
    ),
    labels=st.dictionaries(st.from_regex(r"\A[a-zA-Z][a-zA-Z0-9_]{0,8}\Z"), st.text(max_size=12)),
)
def test_numbers_and_labels_come_back(values: dict[str, float], labels: dict[str, str]) -> None:
    found = parsed(shoal.prometheus.text(values, labels=labels))
    assert len(found) == len(values)
    for (_, _, got, value), expected in zip(found.values(), values.values(), strict=True):
        assert got == labels
        assert value == expected or (math.isnan(value) and math.isnan(expected))


@pytest.mark.parametrize("name", ["", "7th", "a-b", "a b", 'a"', "__name__", "é"])
def test_labels_that_prometheus_would_refuse(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid name of a label"):
        shoal.prometheus.text({"num_samples": 1}, labels={name: "x"})


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "shoal.prom"
    shoal.prometheus.write(path, {"num_samples": 1})
    shoal.prometheus.write(path, {"num_samples": 2}, labels={"rank": 3})
    assert parsed(path.read_text())["shoal_samples_total"][2:] == ({"rank": "3"}, 2)
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(StorageError, match="could not write"):
        shoal.prometheus.write(path / "below.prom", {"num_samples": 1})


def test_the_content_type_is_that_of_the_text_format() -> None:
    assert shoal.prometheus.CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"


def test_numbers_of_numpy_are_numbers() -> None:
    text = shoal.prometheus.text({"wait_seconds": np.float64(0.5)})
    assert text.endswith("\nshoal_wait_seconds_total 0.5\n")
