"""Other versions of an opened table: the version that a state knew, and the newest version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import ShoalError, StateError
from shoal.index.assembly import SNAPSHOT
from shoal.indexing.generations.appending import AddColumns
from shoal.indexing.opened_dataset import Known, Opened, Recovered
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

    def as_known(self, opened: Opened, known: Known) -> Recovered | None:
        """Return the version of the table that a state names; None if the state names none.

        Raises `StateError`: the version cannot be opened any more.
        """
        if not known.snapshot or opened.companions:
            return None
        version = json.loads(known.snapshot)
        now = version_text(opened.index.metadata.get(SNAPSHOT, "plain shards"))
        try:
            past = self.reopen(replace(self.wanted, version=version, timestamp=None))
        except ShoalError as error:
            msg = f"the state belongs to the version {version_text(version)} of the table, which is {now} now: "
            hint = "restore the version, or begin a new run; keep versions for longer than a run takes"
            raise StateError(f"{msg}{error.message}", hint=hint) from error
        words = f"version {version_text(version)} of the table, which is {now} as opened"
        return Recovered(self._as(opened, past), words)

    def tried(self, opened: Opened, known: Known) -> str:
        """Return what `as_known` tries, in words."""
        if not known.snapshot or opened.companions:
            return "nothing, as the state names no version of a table" if not known.snapshot else "no joined samples"
        return f"the version {version_text(json.loads(known.snapshot))} of the table"

    def look_again(self, opened: Opened) -> Opened:
        """Return the version that the arguments of the user mean now; ``opened`` itself if it is the same."""
        newest = self.reopen(self.wanted)
        return opened if newest.index.fingerprint == opened.index.fingerprint else self._as(opened, newest)

    def _as(self, opened: Opened, other: Opened) -> Opened:
        """Return another version with the cache, and the columns of the index, of an opened version."""
        if opened.index.columns and self.add_columns is not None:
            other = replace(other, index=self.add_columns(other, opened.index))
        return replace(other, cache=opened.cache, past=self, latest=self)
