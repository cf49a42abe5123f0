"""The door for Hugging Face ``datasets``: to them, and from them, wherever it can be exact.

Nothing of that library is imported before one of these is called.
"""

from __future__ import annotations

from shoal.integrations.huggingface.from_datasets import from_hf
from shoal.integrations.huggingface.to_datasets import to_hf

__all__ = ["from_hf", "to_hf"]
