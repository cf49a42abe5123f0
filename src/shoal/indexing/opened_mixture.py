"""Several opened datasets as one, whose sample ids follow one another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shoal.index.joined_index import JoinedIndex
from shoal.indexing.open_source import Opened


@dataclass(frozen=True)
class OpenedMixture:
    """The datasets of a mixture by name, ready to be read; nested mixtures are listed by their datasets."""

    names: tuple[str, ...]
    parts: tuple[Opened, ...]

    @cached_property
    def index(self) -> JoinedIndex:
        """Their indexes as one."""
        return JoinedIndex(self.names, tuple(part.index for part in self.parts))

    @property
    def depth(self) -> int:
        """Mixtures in one another: 1 if none is nested."""
        return 1 + max(name.count("/") for name in self.names)

    def with_parts(self, parts: tuple[Opened, ...]) -> OpenedMixture:
        """Return the mixture with its datasets replaced."""
        return OpenedMixture(self.names, parts)

    def part_of(self, sample_id: int) -> tuple[Opened, int]:
        """Return the dataset that holds a sample, and the id of the sample there."""
        number, inside = self.index.part_of(sample_id)
        return self.parts[number], inside
