"""The examples of docstrings run in a directory with small data, and find names like ``ds`` for it."""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.samples import write_example_data

import shoal

# Modules with examples that need a library.
_NEEDED = {
    "torch": ["shoal/torch.py", "shoal/integrations/torch/*.py", "shoal/pipeline/tensors.py"],
    "jax": ["shoal/integrations/jax_loader.py"],
    "datasets": ["shoal/integrations/huggingface/*.py"],
    "pyarrow": ["shoal/formats/tables/*.py"],
    "pyspark": ["shoal/pack/spark/spark_datasource.py"],
    "ray": ["shoal/pack/ray/ray_data*.py"],
}
# Words in single examples that need a library.
_NEEDED_FOR_WORDS = {
    "tokenize": "tokenizers",
    "chat_tokens": "tokenizers",
    "chats": "jinja2",
    "to_hf": "datasets",
    "tfrecord": "google_crc32c",
    "robot": "av",
}
_TIMEOUT_SECONDS = 5.0

collect_ignore_glob = [path for library, paths in _NEEDED.items() if not find_spec(library) for path in paths]


def objects_of_examples(names: set[str], *, framework: str = "torch") -> dict[str, Any]:
    """Return new objects for names in an example; the docstring of `shoal` describes the objects to readers.

    Objects are new for each example, since a dataset has a position.
    """
    made: dict[str, Any] = {}
    if "ds" in names:
        made["ds"] = shoal.open("data")
    if "docs" in names:
        made["docs"] = shoal.open("docs")
    if "mixed" in names:
        sources = {"web": shoal.open("web"), "code": shoal.open("code")}
        made["mixed"] = shoal.mix(sources, weights={"web": 3, "code": 1})
    if "live" in names:
        samples = [{"txt": f"cat {number}".encode(), "cls": b"0"} for number in range(6)]
        made["live"] = shoal.from_iterable(samples, shared=True)
    if "loader" in names:
        made["loader"] = getattr(shoal, framework).DataLoader(shoal.open("data").decode().shuffle(seed=0).batch(8))
    return made


@pytest.fixture(scope="session")
def example_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which all examples run, with their data."""
    return write_example_data(tmp_path_factory.mktemp("examples"))


@pytest.fixture(autouse=True)
def example(
    request: pytest.FixtureRequest, doctest_namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Give an example its names and its directory; fail if the example leaves a thread, and remove its files."""
    words = {word for part in request.node.dtest.examples for word in re.findall(r"\w+", part.source)}
    for word in words & set(_NEEDED_FOR_WORDS):
        pytest.importorskip(_NEEDED_FOR_WORDS[word])
    directory: Path = request.getfixturevalue("example_data")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(directory / "cache"))
    made = {"shoal": shoal} | objects_of_examples(words, framework="jax" if "jax" in request.node.name else "torch")
    doctest_namespace |= made
    paths, threads = set(directory.rglob("*")), _threads()
    yield
    for name in made:
        del doctest_namespace[name]
    for path in sorted(set(directory.rglob("*")) - paths):
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while _threads() - threads:
        if time.monotonic() > deadline:
            pytest.fail("the example leaves a thread: close or drop its iterators")
        time.sleep(0.001)


def _threads() -> set[int]:
    """Identify all threads, including threads that `threading` did not start; tqdm, of `datasets`, keeps a monitor."""
    monitors = {thread.ident for thread in threading.enumerate() if type(thread).__module__.startswith("tqdm")}
    return sys._current_frames().keys() - monitors  # noqa: SLF001  # documented, despite its name
