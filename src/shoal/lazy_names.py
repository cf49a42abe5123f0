"""Packages whose names are imported on first use, so that importing the package costs nothing that is not used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package (PEP 562).

    ``modules`` maps each module to the names it gives, separated by spaces. A module without names is given itself, by
    the last part of its own name; ``name=other`` gives what the module calls ``other``.
    """
    homes: dict[str, tuple[str, str]] = {}
    for module, names in modules.items():
        for name in names.split():
            public, _, own = name.partition("=")
            homes[public] = module, own or public
        if not names:
            homes[module.rpartition(".")[2]] = module, ""
    namespace = vars(sys.modules[package])

    def find(name: str) -> Any:
        if name not in homes:
            # Not imported before: hints need difflib, which costs time that `import shoal` must not take.
            msg = import_module("shoal.hints").no_attribute(f"module {package!r}", name, namespace["__all__"])
            raise AttributeError(msg)
        module, own = homes[name]
        found = import_module(module)
        namespace[name] = getattr(found, own) if own else found  # so that it is looked up only once
        return namespace[name]

    return find, lambda: sorted(namespace["__all__"])
