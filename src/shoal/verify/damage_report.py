"""What is wrong with a dataset, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.errors import ShardError, StorageError
from shoal.storage.urls import without_secrets

__all__ = ["Damage", "Soundness", "words_of", "words_without_path"]


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as the index says.

    Parameters
    ----------
    kind
        "missing" (no such shard, or no file in its place), "cut" (bytes that were indexed are beyond its end),
        "checksum" (other bytes than were indexed), "unreadable" (the format cannot make sense of them, or the disk not
        give them), "changed" (sound, and laid out otherwise than in the index), "unknown" (a shard that the index does
        not know), "index" (the index itself cannot be read).
    shard
        Its name in the index; "" for the index itself.
    first_byte, end_byte
        Bytes of the shard that are concerned; None where it is the shard as a whole.
    what
        In words.
    samples, keys
        Ids of the samples that are lost, and the key of each where it can still be read.
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
        """Whether the shards are sound as far as this goes, and it is the index that is wrong."""
        return self.kind in ("changed", "unknown", "index")


@dataclass(slots=True)
class Soundness:
    """What was checked, and everything that is wrong, in the order of the shards and their bytes."""

    damages: list[Damage] = field(default_factory=list)
    num_by_checksum: int = 0
    num_by_parsing: int = 0
    num_bytes: int = 0
    num_touched: int = 0  # sound shards with another time or etag than the index has

    def include(self, part: Soundness) -> None:
        """Take in what was found in a part of the dataset."""
        self.damages += part.damages
        self.num_by_checksum += part.num_by_checksum
        self.num_by_parsing += part.num_by_parsing
        self.num_bytes += part.num_bytes
        self.num_touched += part.num_touched

    @property
    def num_damaged_samples(self) -> int:
        """Samples that are lost."""
        return len({sample for damage in self.damages for sample in damage.samples})


def words_of(error: Exception) -> str:
    """What an error says, without the place, which is said beside it."""
    text = error.message if isinstance(error, ShardError) else str(error)
    if isinstance(error, ShardError):
        place = f"{error.shard}, byte {error.byte}: " if error.byte is not None else f"{error.shard}: "
        text = text.removeprefix(place)
    return without_secrets(text)


def words_without_path(error: StorageError, path: str) -> str:
    """What an error says, of which the shard is named beside it."""
    return without_secrets(error.message.removeprefix(f"{path}: ").replace(path, "it"))
