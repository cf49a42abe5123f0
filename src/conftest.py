"""What the examples of docstrings find: a directory with small data, and names like ``ds`` for it."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import shoal
from tests.samples import write_example_data

# Modules that cannot be looked through for examples without a library.
_NEEDED = {
    "torch": ["shoal/torch.py", "shoal/integrations/torch/*.py", "shoal/pipeline/tensors.py"],
    "jax": ["shoal/integrations/jax_loader.py"],
    "datasets": ["shoal/integrations/huggingface/*.py"],
    "pyarrow": ["shoal/formats/tables/*.py"],
    "pyspark": ["shoal/pack/spark/spark_datasource.py"],
    "ray": ["shoal/pack/ray/ray_data*.py"],
}

collect_ignore_glob = [path for library, paths in _NEEDED.items() if not find_spec(library) for path in paths]


def _mixed() -> Any:
    return shoal.mix({"web": shoal.open("web"), "code": shoal.open("code")}, weights={"web": 3, "code": 1})


def _live() -> Any:
    samples = [{"txt": f"cat {number}".encode(), "cls": b"0"} for number in range(6)]
    return shoal.from_iterable(samples, shared=True)


def _loader() -> Any:
    return shoal.torch.DataLoader(shoal.open("data").decode().shuffle(seed=0).batch(8))


def _jax_loader() -> Any:
    return shoal.jax.DataLoader(shoal.open("data").decode().shuffle(seed=0).batch(8))


# What the docstring of shoal says of each name. Each example gets new objects, since datasets have a position.
_MADE: dict[str, Callable[[], Any]] = {
    "ds": lambda: shoal.open("data"),
    "docs": lambda: shoal.open("docs"),
    "mixed": _mixed,
    "live": _live,
    "loader": _loader,
}
_LIBRARIES_OF_WORDS = {"tokenize": "tokenizers", "arrow": "pyarrow", "pil": "PIL", "to_hf": "datasets"}


@pytest.fixture(scope="session")
def example_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of all examples, with their data."""
    return write_example_data(tmp_path_factory.mktemp("examples"))


@pytest.fixture(autouse=True)
def example(
    request: pytest.FixtureRequest, doctest_namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Give an example its names and its directory, and see that it leaves no files and no threads."""
    words = {word for part in request.node.dtest.examples for word in re.findall(r"\w+", part.source)}
    for word in words & set(_LIBRARIES_OF_WORDS):
        pytest.importorskip(_LIBRARIES_OF_WORDS[word])
    doctest_namespace["shoal"] = shoal
    if not words & {"shoal", *_MADE}:
        yield
        return
    directory: Path = request.getfixturevalue("example_data")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(directory / "cache"))
    made = _MADE | ({"loader": _jax_loader} if "jax" in request.node.nodeid else {})
    doctest_namespace |= {name: made[name]() for name in words & set(made)}
    files, threads = set(directory.iterdir()), set(sys._current_frames())
    yield
    for name in _MADE:
        doctest_namespace.pop(name, None)
    for path in set(directory.iterdir()) - files:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    deadline = time.monotonic() + 5
    while (left := sys._current_frames().keys() - threads) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not left, "the example leaves threads"
