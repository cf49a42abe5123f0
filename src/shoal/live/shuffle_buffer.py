"""The shuffle buffer of a stream without an index: each step lets a random sample go and takes the next in its place.

It is the order of `shoal.orders.Buffer` over samples as they arrive, whose slots are a pure function of the seed and
the step; only the samples themselves must be held.

References
----------
M. D. MacLaren, G. Marsaglia, "Uniform random number generators", J. ACM 12 (1965): a table of which a random entry is
let go and replaced by the next; D. E. Knuth, "The Art of Computer Programming", vol. 2, 3.2.2, algorithm M. TensorFlow,
WebDataset and Hugging Face ``datasets`` up to 5.0 have it as their shuffle buffer. It is related to reservoir sampling
(J. S. Vitter, 1985), which keeps a sample of a stream instead of passing all of it on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.order.seeds import check_seed, draws, key
from shoal.pipeline.batch_memory import bytes_of

_DRAWS_AT_ONCE = 1 << 10


class Held(NamedTuple):
    """A sample that was taken and not yet delivered; ``place`` says where its source has it."""

    sample: Any
    place: Any
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BufferSize:
    """The seed of a shuffle, and the size of its buffer: in samples or in bytes, the other is None."""

    seed: int = 0
    num_samples: int | None = 1
    num_bytes: int | None = None

    @staticmethod
    def asked(seed: Any, buffer: Any) -> BufferSize:
        """Return the arguments of `LiveDataset.shuffle`, checked."""
        if isinstance(buffer, str):
            return BufferSize(check_seed(seed), None, parse_bytes(buffer, "buffer"))
        if isinstance(buffer, bool) or not isinstance(buffer, int | np.integer) or not 1 <= buffer < 2**32:
            msg = f"buffer is a number of samples, from 1 to 2**32 - 1, or a text of bytes; got {buffer!r}"
            raise UsageError(msg, hint='shuffle(seed=0, buffer=10_000) or shuffle(seed=0, buffer="1GiB")')
        return BufferSize(check_seed(seed), int(buffer))

    def __str__(self) -> str:
        size = f"{self.num_samples:,} samples" if self.num_bytes is None else f"{self.num_bytes:,} bytes"
        return f"a buffer of {size}, seed={self.seed}"


class ShuffleBuffer:
    """Samples that wait for their turn; O(1) for each.

    ``steps`` counts the samples that were let go. ``hole`` is the slot that the last of them left, into which the next
    sample goes; if none comes, the last slot's sample does.
    """

    def __init__(self, size: BufferSize, *, rank: int = 0) -> None:
        self._size = size
        self._key = key(size.seed, rank, "buffer")  # of rank 0 that of `orders.Buffer` in epoch 0
        self._drawn: list[int] = []
        self._drawn_from = -1
        self.held: list[Held] = []
        self.num_bytes = 0
        self.steps = 0
        self.hole: int | None = None

    def __len__(self) -> int:
        return len(self.held) - (self.hole is not None)

    @property
    def is_full(self) -> bool:
        """True if no further sample should be put in before one is let go."""
        if self._size.num_samples is not None:
            return len(self) >= self._size.num_samples
        return len(self) > 0 and self.num_bytes >= (self._size.num_bytes or 0)

    def put(self, entry: Held) -> None:
        """Put in a sample."""
        if self._size.num_bytes is not None and not entry.num_bytes:
            entry = entry._replace(num_bytes=max(1, bytes_of(entry.sample)))
        self.num_bytes += entry.num_bytes
        if self.hole is None:
            self.held.append(entry)
        else:
            self.held[self.hole], self.hole = entry, None

    def pick(self) -> Held:
        """Let a random sample go; there must be one."""
        self._close_hole()
        slot = self._draw(self.steps) * len(self.held) >> 32
        self.steps += 1
        self.hole = slot
        entry = self.held[slot]
        self.num_bytes -= entry.num_bytes
        return entry

    def entries(self) -> list[Held]:
        """Return what is held, by slot, without the hole."""
        return [entry for slot, entry in enumerate(self.held) if slot != self.hole]

    def restore(self, entries: list[Held], *, steps: int, hole: int | None) -> None:
        """Set the contents to what `entries` gave after so many steps, with the hole where it was."""
        self.held, self.hole, self.steps, self.num_bytes = [], None, steps, 0
        for entry in entries:
            self.put(entry)
        if hole is not None and hole <= len(self.held):
            self.held.insert(hole, Held(None, None))
            self.hole = hole

    def _close_hole(self) -> None:
        if self.hole is not None:
            last = self.held.pop()
            if self.hole < len(self.held):
                self.held[self.hole] = last
            self.hole = None

    def _draw(self, step: int) -> int:
        """Return 32 random bits for a step."""
        first = step - step % _DRAWS_AT_ONCE
        if first != self._drawn_from:
            numbers = np.arange(_DRAWS_AT_ONCE, dtype=np.uint64) + np.uint64(first)
            self._drawn, self._drawn_from = (draws(self._key, numbers) >> np.uint64(32)).tolist(), first
        return self._drawn[step - first]
