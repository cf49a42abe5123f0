"""The memory size of a value, a sample or a batch, as far as it can be determined from outside."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def bytes_of(value: Any) -> int:
    """Return the bytes of arrays, tensors, images, texts and bytes, also in containers; about 0.3 us for each.

    >>> import numpy as np
    >>> bytes_of({"x": np.zeros((2, 8)), "names": [b"abc", b"de"]})
    133
    """
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(bytes_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(bytes_of, value))
    if (num_bytes := getattr(value, "nbytes", None)) is not None:  # arrays, tensors, views
        return int(num_bytes)
    if hasattr(value, "getbands"):  # an image of Pillow
        return int(value.width * value.height * len(value.getbands()))
    return sys.getsizeof(value, 64)
