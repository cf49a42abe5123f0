"""Damage of a dataset, and its wording in messages."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from shoal.errors import ShardError, StorageError
from shoal.storage.urls import without_secrets


@dataclass(frozen=True, slots=True)
class Damage:
    """One difference between a dataset and its index.

    ``kind`` is "missing" (no such shard, or no file of its name), "cut" (indexed bytes are beyond its end), "checksum"
    (bytes differ from the indexed bytes), "unreadable" (the format cannot parse the bytes, or the disk cannot read
    them), "undecodable" (a requested decoder cannot decode a field), "changed" (sound, but laid out differently than in
    the index), "unknown" (a shard that is not in the index), or "index" (the index itself is unreadable, and ``shard``
    is "").

    ``first_byte`` and ``end_byte`` limit the damaged bytes of the shard, None means the whole shard; ``what`` describes
    the damage. ``samples`` has the ids of lost samples, ``keys`` the key of each, None if unreadable.
    """

    kind: str
    shard: str
    first_byte: int | None
    end_byte: int | None
    what: str
    samples: tuple[int, ...] = ()
    keys: tuple[str | None, ...] = ()

    @property
    def is_of_index(self) -> bool:
        """True if this damage is in the index, and not in the shards."""
        return self.kind in ("changed", "unknown", "index")


@dataclass(slots=True)
class VerifyReport:
    """Result of a verification: counts of checks, and all damages in the order of shards and bytes."""

    damages: list[Damage] = field(default_factory=list)
    num_by_checksum: int = 0
    num_by_parsing: int = 0
    num_bytes: int = 0
    num_decoded: int = 0  # samples whose fields were decoded
    num_touched: int = 0  # sound shards whose time or etag differs from the index

    def include(self, part: VerifyReport) -> None:
        """Add the result for a part of the dataset."""
        for name in (counts.name for counts in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(part, name))

    @property
    def num_damaged_samples(self) -> int:
        """Number of lost samples."""
        return len({sample for damage in self.damages for sample in damage.samples})


def words_of(error: Exception, path: str = "") -> str:
    """Return the message of an error without shard, ``path`` and byte, which reports show separately."""
    if isinstance(error, ShardError):
        where = f"{error.shard}, byte {error.byte}: " if error.byte is not None else f"{error.shard}: "
        return without_secrets(error.message.removeprefix(where))
    if isinstance(error, StorageError) and path:
        return without_secrets(error.message.removeprefix(f"{path}: ").replace(path, "it"))
    return without_secrets(str(error))
