"""The main module of the user, in a process that may not need it.

A new process runs the main module of its parent again, under the name ``__mp_main__``, because functions of the main
module are pickled by name. A process that unpickles no such function does not run the main module.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing import reduction, spawn
from typing import Any

MAIN_ENTRIES = ("init_main_from_name", "init_main_from_path")
"""Entries of `multiprocessing.spawn.get_preparation_data` that name the main module."""


def place_of_main() -> dict[str, Any]:
    """Return the name or the path of the main module, for `import_main` in another process."""
    preparation = spawn.get_preparation_data("shoal")
    return {entry: preparation[entry] for entry in MAIN_ENTRIES if entry in preparation}


class RecordingPickler(reduction.ForkingPickler):
    """A pickler that records the top-level packages of everything that it pickles by name, in ``packages``."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.packages: set[str] = set()

    def reducer_override(self, thing: Any) -> Any:
        """Record the package of an object's class, or of a function or a class itself."""
        for named in (thing, type(thing)):
            if isinstance(name := getattr(named, "__module__", None), str):
                self.packages.add(name.partition(".")[0])
        return NotImplemented


class MainUnpickler(pickle.Unpickler):
    """An unpickler that runs the main module of the parent before it looks up the first name there."""

    def __init__(self, data: bytes, main: dict[str, Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._main = main

    def find_class(self, module: str, name: str) -> Any:
        """Return an object by name."""
        if module == "__main__" and self._main:
            main, self._main = self._main, {}
            spawn.prepare(main)
        return super().find_class(module, name)
