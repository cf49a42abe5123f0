"""Other versions of an opened table: the version that a state knew, and the newest version."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shoal.errors import ShoalError, StateError
from shoal.index.assembly import SNAPSHOT
from shoal.indexing.generations.appending import AddColumns, with_columns_of
from shoal.indexing.opened_dataset import Candidate, Known, Opened
from shoal.indexing.tables.snapshot_protocol import WantedVersion, version_text


@dataclass(frozen=True)
class TableVersions:
    """The `Past` and the `Latest` of a table: ``reopen`` opens a version, ``wanted`` is the version of the user.

    ``root`` is the table as the user named it, without secrets. ``add_columns`` reads the columns of the index that
    another version has. ``storage_options`` are those of the user.
    """

    reopen: Callable[[WantedVersion], Opened]
    wanted: WantedVersion
    root: str
    add_columns: AddColumns | None = None
    storage_options: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The table and the wanted version."""
        return json.dumps([self.root, str(self.wanted.version), self.wanted.timestamp, repr(self.wanted.predicate)])

    def candidates(self, opened: Opened, known: Known) -> Iterator[Candidate]:
        """Yield the version of the table that a state names; nothing if the state names none.

        Opening the version raises `StateError` if it does not exist any more.
        """
        if known.snapshot:
            words = f"version {_named(known)} of the table, which is {_now(opened)} as opened"
            yield Candidate.opened_by(words, partial(self._reopened, opened, known))

    def _reopened(self, opened: Opened, known: Known) -> Opened:
        try:
            past = self.reopen(replace(self.wanted, version=json.loads(known.snapshot), timestamp=None))
        except ShoalError as error:
            msg = f"the state belongs to the version {_named(known)} of the table, which is {_now(opened)} now: "
            hint = "restore the version, or begin a new run; keep versions for longer than a run takes"
            raise StateError(f"{msg}{error.message}", hint=hint) from error
        return self._as(opened, past)

    def tried(self, opened: Opened, known: Known) -> str:  # noqa: ARG002
        """Describe the candidates."""
        if not known.snapshot:
            return "nothing, as the state names no version of a table"
        return f"the version {_named(known)} of the table"

    def look_again(self, opened: Opened) -> Opened:
        """Return the version that the arguments of the user mean now; ``opened`` itself if it is the same."""
        newest = self.reopen(self.wanted)
        return opened if newest.index.fingerprint == opened.index.fingerprint else self._as(opened, newest)

    def _as(self, opened: Opened, other: Opened) -> Opened:
        """Return another version with the cache, and the columns of the index, of an opened version."""
        other = with_columns_of(other, opened, self.add_columns)
        return replace(other, cache=opened.cache, past=self, latest=self)


def _named(known: Known) -> str:
    return version_text(json.loads(known.snapshot))


def _now(opened: Opened) -> str:
    return version_text(opened.index.metadata.get(SNAPSHOT, "plain shards"))
