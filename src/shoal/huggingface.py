"""Public interface for Hugging Face ``datasets``: conversion in both directions, wherever it can be exact.

That library is imported only when one of these functions is called.
"""

from __future__ import annotations

from shoal.integrations.huggingface.from_datasets import from_hf
from shoal.integrations.huggingface.to_datasets import to_hf

__all__ = ["from_hf", "to_hf"]
