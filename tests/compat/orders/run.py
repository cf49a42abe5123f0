"""Compares orders of shoal, id for id, with the libraries whose orders they are; a line for each library.

``python tests/compat/orders/run.py [LIBRARY ...]`` runs random configurations in the library's own environment, and the
same in shoal. For each library there are two modules: ``<library>_orders.py`` has ``configurations()``, JSON types by
random choice, and ``ids_of(configuration)`` by shoal; ``in_<library>.py`` runs in the environment, reads the
configurations from the file named first and writes the ids of each to the file named second. Where it stops in the
middle of an epoch instead, it writes its checkpoint and the rest of the ids, which ``rest_of(configuration,
checkpoint)`` is to give. Exit code 1 if any differs; what this machine cannot have is skipped by name.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.compat.peers.environments import in_own_cache, python_of, run_in, title_of
from tests.environments import CannotHaveError

HERE = Path(__file__).parent
LIBRARIES = sorted(path.stem.removeprefix("in_") for path in HERE.glob("in_*.py"))
_MOST_SHOWN = 3


def differences(library: str) -> tuple[int, list[str]]:
    """How many configurations were compared, and those that differ."""
    module = importlib.import_module(f"tests.compat.orders.{library}_orders")
    configurations = module.configurations()
    with tempfile.TemporaryDirectory() as directory:
        asked, answered = Path(directory, "asked.json"), Path(directory, "answered.json")
        asked.write_text(json.dumps(configurations))
        environment = getattr(module, "ENVIRONMENT", library)
        run_in(python_of(environment), HERE / f"in_{library}.py", asked, answered)
        expected = json.loads(answered.read_text())
    found = []
    for configuration, answer in zip(configurations, expected, strict=True):
        if isinstance(answer, dict):
            ours, theirs = module.rest_of(configuration, answer["checkpoint"]), answer["rest"]
        else:
            ours, theirs = module.ids_of(configuration), answer
        if ours != theirs:
            found.append(f"{configuration}: {ours!s:.300}, and the library has {theirs!s:.300}")
    return len(configurations), found


def main(libraries: list[str]) -> int:
    """Compare the libraries, and return the exit code."""
    is_wrong = False
    for library in libraries:
        environment = getattr(importlib.import_module(f"tests.compat.orders.{library}_orders"), "ENVIRONMENT", library)
        try:
            count, found = differences(library)
        except CannotHaveError as error:
            print(f"{library:<24} skipped: {error}")
            continue
        is_wrong |= bool(found)
        print(f"{library:<24} {title_of(environment)}: {count:,} configurations, {len(found):,} differ", flush=True)
        for text in found[:_MOST_SHOWN]:
            print(f"    {text}")
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(in_own_cache(lambda: main(sys.argv[1:] or LIBRARIES)))
