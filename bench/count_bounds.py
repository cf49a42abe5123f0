"""How far counts of a mixture are from their shares: the bound of `CountTree`, and the most found in 2^20 positions."""

from __future__ import annotations

import numpy as np

from shoal.order.mixture.count_tree import CountTree
from shoal.order.mixture.integer_weights import integer_weights

GOLDEN = (5**0.5 - 1) / 2
MIXTURES = {
    "64 by Zipf's law": [1 / rank for rank in range(1, 65)],
    "one of 0.9, 63 small": [0.9, *[0.1 / 63] * 63],
    "40 by the golden ratio": [GOLDEN**rank for rank in range(40)],
}
STEP = 1 << 15

for name, weights in MIXTURES.items():
    whole = list(integer_weights({str(number): weight for number, weight in enumerate(weights)}).values())
    tree, shares = CountTree(whole), np.array(whole) / sum(whole)
    found = 0.0
    for first in range(0, 1 << 20, STEP):
        ideal = shares[:, None] * np.arange(first, first + STEP)
        found = max(found, float(np.abs(tree.beyond(first, np.arange(STEP)) - ideal).max()))
    print(f"{name:24s} bound {max(tree.error_bounds):.2f}  found {found:.2f}")
