"""A look at a stream of any kind: it shows the next samples, and neither the look nor a display moves the stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.stream.laws import FORMATS, KINDS, ORDERS, open_sources
from tests.stream.test_mixing_as_peers import CHOICES, made
from tests.tools.notebook.test_displays import text_of

from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    return open_sources(tmp_path_factory.mktemp("sources"))


def check(stream: Dataset) -> None:
    iterator = iter(stream)
    next(iterator)
    before, counts = stream.state_dict(), stream.stats()
    sheet: Any = stream.show(3)
    for shown in (stream, stream.resolved, counts, sheet):
        assert text_of(shown)
    assert str(sheet)
    assert 1 <= len(sheet.samples) <= 3
    assert stream.state_dict() == before
    assert stream.stats()["num_samples"] == counts["num_samples"]
    assert next(iterator, None) is not None or stream.num_samples <= 4


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_stream(sources: dict[str, Dataset], name: str) -> None:
    kind = KINDS[name]
    for number, data in enumerate(name for name in FORMATS if name in kind.formats):
        order = ORDERS[kind.orders[number % len(kind.orders)]]
        if not kind.fills:
            check(kind.make(sources[data], order))
        if kind.batching is not None:
            check(kind.make(sources[data], order).batch(2, **kind.batching))


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
def test_mixtures_of_other_libraries(tmp_path: Path, choice: Any) -> None:
    mixture = made(tmp_path, choice)
    check(mixture)
    mixture.set_epoch(1)
    assert "Position epoch 1" in text_of(mixture)
