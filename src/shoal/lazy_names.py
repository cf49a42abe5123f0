"""Packages that import their names on first use, so that importing the package is cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package (PEP 562).

    ``modules`` maps each module to its public names, separated by spaces; ``name=other`` is ``other`` of the module. A
    module without names is itself public, by the last part of its name.
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
            # Not imported before: hints need difflib, which would make `import shoal` slower.
            msg = import_module("shoal.hints").no_attribute(f"module {package!r}", name, namespace["__all__"])
            raise AttributeError(msg)
        module, own = homes[name]
        imported = import_module(module)
        namespace[name] = getattr(imported, own) if own else imported  # so that it is looked up only once
        return namespace[name]

    return find, lambda: sorted(namespace["__all__"])
