"""Hudi: the library ``hudi`` reads the timeline; base files of copy-on-write tables are read in place."""

from __future__ import annotations

from shoal.errors import SourceError
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest


class Hudi:
    """Tables of Hudi."""

    name = "hudi"

    def snapshot(self, request: TableRequest) -> Snapshot:
        """Refuse."""
        raise SourceError(f"{request.root}: Hudi", hint="")
