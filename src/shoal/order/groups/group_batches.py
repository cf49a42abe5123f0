"""Arguments of batches by column: the size of a batch by group, or the classes of a batch and the samples of each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_choice
from shoal.order.protocol import as_within

TOO_SMALL = ("refuse", "drop")
"""Treatments of a group with too few samples for a batch."""

_MOST_SIZE, _MOST_ALIKE, _MOST_WAITING = 1 << 24, 1 << 20, 1 << 40


@dataclass(frozen=True, slots=True)
class GroupBatches:
    """Arguments of batches by column. Groups are numbered from 0.

    Attributes
    ----------
    by
        Column of the index with the group of each sample.
    sizes
        Samples of each group in a batch, by number of the group; a single number for all groups.
    classes
        Groups in a batch.
    alike
        Number of consecutive batches of the same groups.
    look_ahead
        Samples that may wait in full sets, if batches have several classes; the oldest of more are left out.
    keeps_short
        True if the last samples of a group make a short batch; False if they are left out.
    """

    verb: ClassVar[str] = "batch"
    none_made: ClassVar[tuple[str, str]] = (
        "no batch of {:,} samples: no group has enough samples for a batch",
        'smaller batches, or remainder="keep"',
    )

    by: str
    sizes: tuple[int, ...]
    classes: int = 1
    alike: int = 1
    look_ahead: int = 1 << 16
    keeps_short: bool = True
    too_small: str = "refuse"

    def __post_init__(self) -> None:
        limits = {"classes": _MOST_SIZE, "alike": _MOST_ALIKE, "look_ahead": _MOST_WAITING}
        for name, most in limits.items():
            object.__setattr__(self, name, as_within(f"batch({name}=)", getattr(self, name), 1, most))
        sizes = tuple(as_within("the size of a batch", size, 1, _MOST_SIZE) for size in self.sizes)
        object.__setattr__(self, "sizes", sizes)
        as_choice("batch(too_small=)", self.too_small, TOO_SMALL)

    def sizes_of(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples of each of these groups in a batch, same shape.

        >>> GroupBatches("kind", (8, 4)).sizes_of(np.array([1, 0, 1])).tolist()
        [4, 8, 4]
        """
        if len(self.sizes) == 1:
            return np.full(len(groups), self.sizes[0], dtype=np.int64)
        return np.array(self.sizes, dtype=np.int64)[groups]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, for a state; the treatment of short batches changes no batch before them."""
        kept: dict[str, Any]
        if self.classes > 1:
            kept = {"size": self.classes, "each": self.sizes[0], "look_ahead": self.look_ahead}
        elif len(self.sizes) > 1:
            kept = {"sizes": hashlib.blake2b(np.array(self.sizes, dtype="<i8").tobytes(), digest_size=8).hexdigest()}
        else:
            kept = {"size": self.sizes[0]}
        return {"by": self.by, **kept, "alike": self.alike}
