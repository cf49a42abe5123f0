"""What `Dataset.reading` takes, and what it refuses."""

from __future__ import annotations

import inspect
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.stream.made import at, ids_of

from shoal.errors import UsageError
from shoal.orders import Full, Window
from shoal.reading.reading_options import ReadingOptions, reading_options
from shoal.stream.dataset import Dataset


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
        ("progress", 1),
        ("progress", None),
        ("trace", ""),
        ("trace", "s3://bucket/trace.json"),
        ("trace_seconds", 0),
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
        ("quarantine", "s3://bucket/bad.jsonl"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        reading_options(**{name: value})


OPTIONS: list[dict[str, Any]] = [
    {"on_error": "skip"},
    {"quarantine": "bad.jsonl", "on_error": "skip"},
    {"copy": False},
    {"memory_limit": "500KB"},
    {"verify": "always"},
    {"deadline": 1},
    {"hedge": True},
    {"progress": True},
    {"progress": "page"},
    {"trace": "trace.json"},
    {"trace": "trace.json", "trace_seconds": 0.1},
]


@pytest.mark.usefixtures("readers")
@pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("order", [Window(chunks=6, num_canonical_nodes=2), Full()], ids=lambda order: order.name)
def test_how_bytes_are_read_changes_neither_order_nor_state(
    order: Any,
    options: dict[str, Any],
    tars: Dataset,
    lines: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for source in (tars, lines):
        plain = source.shuffle(order, seed=2).with_ids()
        ds = plain.reading(**options)
        assert ds.ids().tolist() == plain.ids().tolist()
        iterators = iter(plain), iter(ds)
        for _ in range(30):
            one, other = map(next, iterators)
            assert one == other
            assert at(iterators[0]) == at(iterators[1])
        assert plain.state_dict() == ds.state_dict()
        plain.load_state_dict(ds.state_dict())
        ds.load_state_dict(ds.state_dict())
        assert [sample["__id__"] for sample in ds] == ids_of(plain)


def test_every_option_of_the_verb_is_tried_above() -> None:
    tried = {name for options in OPTIONS for name in options}
    assert tried == set(inspect.signature(Dataset.reading).parameters) - {"self"}


def test_the_verb_asks_for_the_defaults(tars: Dataset) -> None:
    assert tars.reading().stream.spec.reading == ReadingOptions()
