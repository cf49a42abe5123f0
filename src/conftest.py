"""Which modules are looked through for examples: not those that need torch, where torch cannot be had."""

from __future__ import annotations

from importlib.util import find_spec

_NEED_TORCH = ["shoal/torch.py", "shoal/integrations/torch_*.py", "shoal/stream/columns/tensors.py"]

collect_ignore_glob = [] if find_spec("torch") else _NEED_TORCH
