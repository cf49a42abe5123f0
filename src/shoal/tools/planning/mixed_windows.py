"""The windows of all sources of a mixture, as one order whose memory is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.order.orders_without_window import Block
from shoal.order.window.order import Window


@dataclass(frozen=True, slots=True)
class MixedWindows:
    """The orders of the sources, the samples of a round of each, and the ``parameters`` of the mixture's own order.

    Every source keeps spans of its own, and one source at a time makes another span.
    """

    orders: Sequence[Window | Block]
    num_samples_of: Sequence[int]
    num_chunks_of: Sequence[int]
    parameters: Mapping[str, Any]

    @property
    def chunks(self) -> int:
        """Chunks in the windows of all sources."""
        return sum(min(order.chunks, most) for order, most in zip(self.orders, self.num_chunks_of, strict=True))

    def kept_bytes(self, num_samples: int) -> int:
        """Return the bytes of the spans of all sources, and of one that is made; the epoch has ``num_samples``."""
        sizes = [min(each, num_samples) for each in self.num_samples_of]
        kept = [order.kept_bytes(size) for order, size in zip(self.orders, sizes, strict=True)]
        made = [order.span_bytes(size) for order, size in zip(self.orders, sizes, strict=True)]
        return sum(kept) + max((max(0, most - least) for most, least in zip(made, kept, strict=True)), default=0)

    def span_bytes(self, num_samples: int) -> int:
        """Return the same as `kept_bytes`, which includes a span that is made."""
        return self.kept_bytes(num_samples)

    def span_starts(self, num_samples: int) -> range:  # noqa: ARG002
        """Return no positions: spans of some source are made all the time."""
        return range(0)
