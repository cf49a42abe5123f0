"""Streams shuffled training data that is larger than any disk, and knows exactly which sample comes next."""

# General layout: one question, one room; each may import only what stands to the left of it.
#
#   errors, hints <- order, shards, storage <- plan, testing, measure <- stream <- pack, integrations, cli, this file
#
#   order/         which sample comes next?
#   shards/        what does a shard hold?
#   storage/       where do bytes come from?
#   plan/          which bytes, when, in how much memory?
#   measure/       how good is it?
#   stream/        the running stream
#   pack/          how are shards made?
#   cli/           the command line, one file per verb
#
# Nothing inside imports this file. It imports numpy and the standard library only; tests/test_layers.py holds both.
#
# Names are imported when they are first used: seventy small files take twice as long to import as numpy, and
# `import shoal` should cost a script nothing that it does not use.

from __future__ import annotations as _annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from shoal import errors

if _TYPE_CHECKING:
    from shoal import formats, measure, orders, pack
    from shoal import huggingface as huggingface
    from shoal import jax as jax
    from shoal import torch as torch
    from shoal.stream.certificates import merge_certificates
    from shoal.stream.dataset import Dataset
    from shoal.stream.open_dataset import open_dataset as open  # noqa: A004  # shoal.open() reads as what it does

__all__ = [
    "Dataset",
    "errors",
    "formats",
    "measure",
    "merge_certificates",
    "open",
    "orders",
    "pack",
]  # and torch, jax and huggingface, which a star must not import


def __getattr__(name: str) -> _Any:
    found: _Any
    if name == "orders":
        import shoal.orders as found  # noqa: PLC0415
    elif name == "formats":
        import shoal.formats as found  # noqa: PLC0415
    elif name == "measure":
        import shoal.measure as found  # noqa: PLC0415
    elif name == "pack":
        import shoal.pack as found  # noqa: PLC0415
    elif name == "torch":
        import shoal.torch as found  # noqa: PLC0415
    elif name == "huggingface":
        import shoal.huggingface as found  # noqa: PLC0415
    elif name == "jax":
        import shoal.jax as found  # noqa: PLC0415
    elif name == "merge_certificates":
        from shoal.stream.certificates import merge_certificates as found  # noqa: PLC0415
    elif name in {"Dataset", "open"}:
        from shoal.stream import open_dataset  # noqa: PLC0415

        found = {"Dataset": open_dataset.Dataset, "open": open_dataset.open_dataset}[name]
    elif name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        found = version("shoal")
    else:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = found  # looked up once
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
