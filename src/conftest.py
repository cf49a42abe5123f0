"""Which modules are looked through for examples: not those that need a library that cannot be had."""

from __future__ import annotations

from importlib.util import find_spec

_NEEDED = {
    "torch": ["shoal/torch.py", "shoal/integrations/torch_*.py", "shoal/stream/columns/tensors.py"],
    "pyspark": ["shoal/pack/spark/spark_datasource.py"],
    "ray": ["shoal/pack/ray/ray_data*.py"],
}

collect_ignore_glob = [path for library, paths in _NEEDED.items() if not find_spec(library) for path in paths]
