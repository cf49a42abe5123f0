"""Values as JSON with their types, so that equal means equal; runs in the environments of the peers, too."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from typing import Any


def plain(value: Any) -> Any:
    """A value in lists of its type's name and what it holds; numpy's scalars and arrays keep their types."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return [kind.__name__, value if kind is not int else str(value)]
    if kind is float:
        return ["float", value.hex()]
    if kind in (bytes, bytearray, memoryview):
        return ["bytes", base64.b64encode(bytes(value)).decode()]
    if isinstance(value, dict):
        return ["dict", [[name, plain(item)] for name, item in value.items()]]
    if kind in (list, tuple):
        return [kind.__name__, [plain(item) for item in value]]
    if kind in (dt.date, dt.datetime, dt.time):
        return [kind.__name__, value.isoformat()]
    if kind is dt.timedelta:
        return ["timedelta", [value.days, value.seconds, value.microseconds]]
    if kind is decimal.Decimal:
        return ["Decimal", str(value)]
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().numpy()
    if hasattr(value, "mode") and hasattr(value, "tobytes"):
        return ["image", value.mode, list(value.size), base64.b64encode(value.tobytes()).decode()]
    if hasattr(value, "dtype"):
        return ["numpy", value.dtype.name, list(value.shape), base64.b64encode(value.tobytes()).decode()]
    msg = f"nothing is known of values of {kind}"
    raise TypeError(msg)
