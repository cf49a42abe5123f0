"""The only way up, from a dataset to a framework: its methods import the framework's module when they are called.

The framework modules know datasets, and datasets know none of them; none is imported before a user asks.
"""

from __future__ import annotations

import importlib
from typing import Any


def handed_over(dataset: Any, door: str, verb: str, **options: Any) -> Any:
    """Pass a dataset to a function of a framework module, like ``shoal.huggingface.to_hf``; return the result."""
    return getattr(importlib.import_module(f"shoal.{door}"), verb)(dataset, **options)
