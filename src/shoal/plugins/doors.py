"""Names that installed packages define, each through an entry point in a group such as ``shoal.orders``.

Entry points are read only to look up a name that shoal does not define, or to list all names. Reading entry points
takes about 45 ms; a lookup of shoal's own names must not wait that long.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.errors import ShoalError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_Made = TypeVar("_Made")

# Extensions that ship with shoal, loaded where a name is not the core's: a mapping of makers for each group.
_SHIPPED = {
    "shoal.displays": "shoal.tools.notebook.displays_by_kind:DISPLAYS",
    "shoal.formats": "shoal.tables.kinds_by_name:FORMATS",
    "shoal.orders": "shoal.peers.orders_by_name:PEER_ORDERS",
    "shoal.reporters": "shoal.watch.reporters_by_name:REPORTERS_AROUND",
    "shoal.tables": "shoal.tables.kinds_by_name:TABLES",
}

_loaded: dict[tuple[str, str], Any] = {}


class Door(Mapping[str, Callable[..., _Made]]):
    """Makers by name: shoal's own, and the entry points of ``group`` in installed packages.

    An object that a package's maker returns must have all ``members``; its ``name`` must be the name of the maker,
    because states and indexes refer to it. shoal's own names take precedence over other names. ``in`` and iteration
    read names and load nothing; ``[name]`` raises `UsageError` if a package's entry point cannot be loaded or called.

    >>> Door("shoal.numbers", {"one": lambda: 1}).make("one")
    1
    """

    def __init__(self, group: str, core: Mapping[str, Callable[..., _Made]], *, members: Collection[str] = ()) -> None:
        self.group, self._core, self._members = group, core, members

    @cached_property
    def own(self) -> Mapping[str, Callable[..., _Made]]:
        """Makers that ship with shoal: the core's, and its extensions'."""
        module, _, mapping = _SHIPPED.get(self.group, "").partition(":")
        return {**self._core, **(getattr(importlib.import_module(module), mapping) if module else {})}

    def __getitem__(self, name: str) -> Callable[..., _Made]:
        if name in self._core:
            return self._core[name]
        if name in self.own:
            return self.own[name]
        maker: Callable[..., _Made] | None = loaded_entry(self.group, name)
        if maker is None:
            raise KeyError(name)
        if not callable(maker):
            raise broken(self.group, name, f"it is {type(maker).__name__} and cannot be called")
        return maker

    def __contains__(self, name: object) -> bool:
        return name in self._core or name in self.own or name in names(self.group)

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from (name for name in names(self.group) if name not in self.own)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def make(self, name: str, /, *arguments: Any, **options: Any) -> _Made:
        """Call the maker of a name; raises `UsageError` if a package's maker fails, or its object lacks members."""
        if name in self._core or name in self.own:
            return self[name](*arguments, **options)
        try:
            made = self[name](*arguments, **options)
        except ShoalError:
            raise
        except Exception as error:
            raise broken(self.group, name, f"{type(error).__name__}: {error}") from error
        if missing := [each for each in self._members if not hasattr(made, each)]:
            raise broken(self.group, name, f"{type(made).__name__} has no {', '.join(missing)}")
        if "name" in self._members and (other := getattr(made, "name", None)) != name:
            raise broken(self.group, name, f"its maker returned an object with the name {other!r}")
        return made


def loaded_entry(group: str, name: str) -> Any | None:
    """Return the object that a package registers under a name; None if no package registers the name.

    Raises `UsageError` if the object cannot be loaded, or two packages register the name. The error names package,
    entry point and cause.
    """
    if (group, name) not in _loaded:
        entry = _entry(group, name)
        if entry is None:
            return None
        try:
            _loaded[group, name] = entry.load()
        except Exception as error:
            raise broken(group, name, f"{type(error).__name__}: {error}") from error
    return _loaded[group, name]


def names(group: str) -> tuple[str, ...]:
    """Return the registered names, sorted, without loading anything."""
    return tuple(sorted({entry.name for entry in _entries(group)}))


def package_of(group: str, name: str) -> str:
    """Return the package that registers a name, with its version; "" if no package does."""
    entry = _entry(group, name)
    return "" if entry is None else _package(entry)


def broken(group: str, name: str, why: str) -> UsageError:
    """Return the error for a registered object that does not work: package, entry point and cause."""
    entry = _entry(group, name)
    where = "" if entry is None else f" of the package {_package(entry)}, {entry.value},"
    msg = f"{name!r} in {group}{where} cannot be used: {why}"
    return UsageError(msg, hint="upgrade or uninstall that package; nothing else needs it")


def _entry(group: str, name: str) -> EntryPoint | None:
    all_found = [entry for entry in _entries(group) if entry.name == name]
    if len(all_found) > 1:
        packages = " and ".join(sorted(map(_package, all_found)))
        msg = f"{name!r} in {group} is brought by several packages: {packages}"
        raise UsageError(msg, hint="uninstall all but one")
    return all_found[0] if all_found else None


def _entries(group: str) -> Collection[EntryPoint]:
    return _entries_then(group, tuple((directory, _modified_ns(directory)) for directory in sys.path))


@lru_cache(maxsize=64)  # an unregistered name may be looked up once for each of a million files
def _entries_then(group: str, _: object) -> Collection[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415  # takes twice as long as `import shoal`

    return entry_points(group=group)


def _modified_ns(directory: str) -> int:
    """Return when a directory of packages changed: an installation during the run is noticed."""
    try:
        return os.stat(directory or ".").st_mtime_ns  # noqa: PTH116  # a tenth of the time of Path.stat
    except OSError:
        return 0


def _package(entry: EntryPoint) -> str:
    return "unknown" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
