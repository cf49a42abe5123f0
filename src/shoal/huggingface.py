"""Public interface for Hugging Face: ``datasets`` in both directions, wherever it can be exact, and the Trainer.

Their libraries are imported only when one of these functions is called.
"""

from __future__ import annotations

from shoal.integrations.huggingface.from_datasets import from_hf
from shoal.integrations.huggingface.to_datasets import to_hf
from shoal.integrations.transformers.position_saver import position_saver

__all__ = ["from_hf", "position_saver", "to_hf"]
