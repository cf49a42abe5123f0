"""Totals of masks, and the warning about a mask that leaves out all tokens or none."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import NamedTuple

from shoal.errors import MaskWarning

NUM_TOKENS_TO_WARN = 1_000_000
"""Tokens after which a constant mask is warned of."""


class MaskCount(NamedTuple):
    """Number of tokens, and of tokens with a loss; ``is_mask`` is false for labels, which often leave out no token."""

    num_tokens: int
    num_trained: int
    is_mask: bool


class MaskTotals:
    """Totals of each mask over all batches of a dataset.

    Worker processes only count (``warns=False``) and send their counts, so a warning comes once, in the process that
    uses the batches.
    """

    def __init__(self, *, warns: bool = True) -> None:
        self._warns = warns
        self._totals: dict[str, MaskCount] = {}

    def add(self, counts: Mapping[str, MaskCount]) -> None:
        """Add the counts of a batch by field; warn if the first million tokens all have a loss, or none has."""
        for name, (num_tokens, num_trained, is_mask) in counts.items():
            before = self._totals.get(name, MaskCount(0, 0, is_mask))
            total = MaskCount(before.num_tokens + num_tokens, before.num_trained + num_trained, is_mask)
            self._totals[name] = total
            if self._warns and before.num_tokens < NUM_TOKENS_TO_WARN <= total.num_tokens:
                _warn_if_constant(name, total)

    def take(self) -> dict[str, MaskCount]:
        """Return the counts, and restart them from 0."""
        counts, self._totals = self._totals, {}
        return counts


def _warn_if_constant(name: str, total: MaskCount) -> None:
    if not total.num_trained:
        text = "leaves out all of them: nothing is learned from these documents"
    elif total.is_mask and total.num_trained == total.num_tokens:
        text = "leaves out none of them: prompts are learned, too"
    else:
        return
    msg = f"{name!r} of {total.num_tokens:,} tokens {text}; look at a document, ds[0][{name!r}], and the function that "
    warnings.warn(f"{msg}makes {name!r}", MaskWarning, stacklevel=2)
