"""Public interface for Hugging Face: exact conversion from and to ``datasets``, and positions for the Trainer.

Each function imports the libraries of Hugging Face when it is called.
"""

from __future__ import annotations

from shoal.integrations.huggingface.from_datasets import from_hf
from shoal.integrations.huggingface.position_saver import position_saver
from shoal.integrations.huggingface.to_datasets import to_hf

__all__ = ["from_hf", "position_saver", "to_hf"]
