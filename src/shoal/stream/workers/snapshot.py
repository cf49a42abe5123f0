"""Digests of everything an object holds at one moment, to detect later changes in a few bytes.

No list of fields defines the comparison: the whole object is taken apart as for a pickle, so later additions are
compared as well.
"""

from __future__ import annotations

import copyreg
import hashlib
import pickle
from collections.abc import Sequence
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any


class Snapshot:
    """A digest of everything that ``thing`` holds now, at any depth; two digests are equal if nothing differs.

    Functions, classes, the objects in ``alone`` and objects that cannot be pickled (an open file, a lock) are compared
    by identity; the closure and defaults of a Python function count as well. All else is compared by value. An object
    that cannot be taken apart is equal to nothing. O(bytes of its pickle) time, O(1) memory.

    >>> thing = {"gaps": [1, 2]}
    >>> before = Snapshot(thing)
    >>> before == Snapshot({"gaps": [1, 2]})
    True
    >>> thing["gaps"].append(3)
    >>> before == Snapshot(thing)
    False
    """

    def __init__(self, thing: Any, *, alone: Sequence[Any] = ()) -> None:
        # Objects compared by identity are kept alive: otherwise another object could get their address.
        self._held: list[Any] = [thing, *alone]
        digest = hashlib.blake2b(digest_size=16)
        pickler = _Parts(digest, self._held, {id(part) for part in alone if part is not None})
        try:
            pickler.dump(thing)
        except Exception:  # noqa: BLE001  # a foreign class may raise anything when it is taken apart
            self._digest = None
        else:
            self._digest = digest.digest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        return self._digest is not None and self._digest == other._digest

    __hash__ = None  # type: ignore[assignment]  # some snapshots are equal to nothing, not even to themselves


class _Same:
    """Placeholder in a pickle for an object that is compared by identity."""


class _Digest:
    """A file that keeps only its digest."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest

    def write(self, data: Any) -> int:
        """Add the data to the digest."""
        self._digest.update(data)
        return memoryview(data).nbytes


class _Parts(pickle.Pickler):
    def __init__(self, digest: Any, held: list[Any], alone: set[int]) -> None:
        super().__init__(_Digest(digest), protocol=pickle.HIGHEST_PROTOCOL)
        self._held, self._alone = held, alone

    def persistent_id(self, thing: Any) -> int | None:
        """Return the address of an object without parts that could change."""
        if thing is _Same:
            return 0
        if id(thing) in self._alone or isinstance(thing, type | ModuleType):
            self._held.append(thing)
            return id(thing)
        return None

    def reducer_override(self, thing: Any) -> Any:
        """Return the parts of an object, or its address for an object without parts."""
        if isinstance(thing, FunctionType):
            return self._same(thing, (thing.__defaults__, thing.__kwdefaults__, thing.__closure__, thing.__dict__))
        if isinstance(thing, CellType):
            try:
                return self._same(thing, (thing.cell_contents,))
            except ValueError:  # an empty cell
                return self._same(thing)
        if isinstance(thing, BuiltinFunctionType) and isinstance(thing.__self__, ModuleType | None):
            return self._same(thing)
        reduce = copyreg.dispatch_table.get(type(thing))
        try:
            parts = thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if reduce is None else reduce(thing)
        except Exception:  # noqa: BLE001  # an open file, a lock: a fork may carry it, but it has no parts to compare
            return self._same(thing)
        return self._same(thing) if isinstance(parts, str) else parts

    def _same(self, thing: Any, parts: Any = None) -> tuple[object, ...]:
        self._held.append(thing)
        return _Same, (id(thing),), parts
