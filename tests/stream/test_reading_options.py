"""What `Dataset.reading` takes, and what it refuses."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import UsageError
from shoal.stream.reading_options import ReadingOptions, reading_options


def test_nothing_asked_is_the_default() -> None:
    assert reading_options() == ReadingOptions()
    assert not ReadingOptions().skips


def test_values_become_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = reading_options(
        on_error="skip", quarantine=Path("bad.jsonl"), copy=False, memory_limit="2GiB", deadline=5, verify="always"
    )
    assert asked == ReadingOptions(
        on_error="skip",
        quarantine=str(tmp_path / "bad.jsonl"),
        copy=False,
        memory_limit_bytes=2**31,
        deadline_seconds=5.0,
        verify="always",
    )
    assert asked.skips
    assert pickle.loads(pickle.dumps(asked)) == asked
    assert reading_options(quarantine=None, memory_limit=None) == ReadingOptions()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("on_error", "ignore"),
        ("on_error", None),
        ("verify", "never"),
        ("verify", True),
        ("copy", 1),
        ("progress", "yes"),
        ("hedge", None),
        ("deadline", 0),
        ("deadline", -1),
        ("deadline", math.inf),
        ("deadline", math.nan),
        ("deadline", "5s"),
        ("deadline", True),
        ("memory_limit", 0),
        ("memory_limit", "much"),
        ("quarantine", ""),
        ("quarantine", 3),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        reading_options(**{name: value})
