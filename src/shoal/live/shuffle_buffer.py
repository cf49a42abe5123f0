"""The shuffle buffer of a stream without an index: each step releases a random sample, and the next one replaces it.

The order is that of `shoal.orders.Buffer` over samples as they arrive: the seed and the step determine the slots, so
that a state needs only the samples themselves.

References
----------
M. D. MacLaren, G. Marsaglia, "Uniform random number generators", J. ACM 12 (1965): a table that releases a random entry
and replaces it by the next; D. E. Knuth, "The Art of Computer Programming", vol. 2, 3.2.2, algorithm M. TensorFlow,
WebDataset and Hugging Face ``datasets`` up to 5.0 use it as their shuffle buffer. Reservoir sampling (J. S. Vitter,
1985) is related: it keeps a sample of a stream instead of passing on the whole stream.
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
    """A sample that was taken and not yet delivered; ``place`` is its place in the source."""

    sample: Any
    place: Any
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BufferSize:
    """The seed of a shuffle, and the size of its buffer in samples or in bytes; the other size is None."""

    seed: int = 0
    num_samples: int | None = 1
    num_bytes: int | None = None

    @staticmethod
    def of(seed: Any, buffer: Any) -> BufferSize:
        """Return the checked arguments of `LiveDataset.shuffle`."""
        if isinstance(buffer, str):
            return BufferSize(check_seed(seed), None, parse_bytes(buffer, "buffer"))
        if isinstance(buffer, bool) or not isinstance(buffer, int | np.integer) or not 1 <= buffer < 2**32:
            msg = f"buffer is a number of samples, from 1 to 2**32 - 1, or a size in bytes; got {buffer!r}"
            raise UsageError(msg, hint='shuffle(seed=0, buffer=10_000) or shuffle(seed=0, buffer="1GiB")')
        return BufferSize(check_seed(seed), int(buffer))

    def __str__(self) -> str:
        size = f"{self.num_samples:,} samples" if self.num_bytes is None else f"{self.num_bytes:,} bytes"
        return f"a buffer of {size}, seed={self.seed}"


class ShuffleBuffer:
    """Samples that wait for their turn; O(1) per sample.

    ``steps`` counts the released samples. ``hole`` is the slot of the last released sample, free for the next
    sample; if none comes, the sample of the last slot moves into it.
    """

    def __init__(self, size: BufferSize, *, rank: int = 0) -> None:
        self._size = size
        self._key = key(size.seed, rank, "buffer")  # rank 0 has the key of `orders.Buffer` in epoch 0
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
        """True if the buffer must release a sample before it takes the next."""
        if self._size.num_samples is not None:
            return len(self) >= self._size.num_samples
        return len(self) > 0 and self.num_bytes >= (self._size.num_bytes or 0)

    def put(self, entry: Held) -> None:
        """Add a sample."""
        if self._size.num_bytes is not None and not entry.num_bytes:
            entry = entry._replace(num_bytes=max(1, bytes_of(entry.sample)))
        self.num_bytes += entry.num_bytes
        if self.hole is None:
            self.held.append(entry)
        else:
            self.held[self.hole], self.hole = entry, None

    def pick(self) -> Held:
        """Release a random sample; the buffer must not be empty."""
        if self.hole is not None:
            last = self.held.pop()
            if self.hole < len(self.held):
                self.held[self.hole] = last
        slot = self._draw(self.steps) * len(self.held) >> 32
        self.steps += 1
        self.hole = slot
        entry = self.held[slot]
        self.num_bytes -= entry.num_bytes
        return entry

    def entries(self) -> list[Held]:
        """Return the samples by slot, without the hole."""
        return [entry for slot, entry in enumerate(self.held) if slot != self.hole]

    def restore(self, entries: list[Held], *, steps: int, hole: int | None) -> None:
        """Restore the result of `entries` after ``steps`` steps, and the hole."""
        self.held, self.hole, self.steps, self.num_bytes = [], None, steps, 0
        for entry in entries:
            self.put(entry)
        if hole is not None and hole <= len(self.held):
            self.held.insert(hole, Held(None, None))
            self.hole = hole

    def _draw(self, step: int) -> int:
        """Return 32 random bits for a step."""
        first = step - step % _DRAWS_AT_ONCE
        if first != self._drawn_from:
            numbers = np.arange(_DRAWS_AT_ONCE, dtype=np.uint64) + np.uint64(first)
            self._drawn, self._drawn_from = (draws(self._key, numbers) >> np.uint64(32)).tolist(), first
        return self._drawn[step - first]
