"""The one way up: a verb of a dataset that makes something of a framework finds its door when it is asked for.

The rooms above know datasets, and datasets know none of them; nothing of them is imported before a user asks.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["handed_over"]


def handed_over(dataset: Any, door: str, verb: str, **options: Any) -> Any:
    """What a function of a door, like ``shoal.huggingface.to_hf``, makes of a dataset."""
    return getattr(importlib.import_module(f"shoal.{door}"), verb)(dataset, **options)
