"""A process that reads shards of tensors, with or without classes registered for their types, and prints what it got.

Arguments: "registered" (classes that stand for those of Ray and datasets), "plain" (none), or the module to import that
registers its own; a start method, or "here"; the shards.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
from typing import Any

import numpy as np
import pyarrow as pa

import shoal

NAMES = (
    "ray.data.arrow_tensor",
    "ray.data.arrow_tensor_v2",
    "ray.data.arrow_variable_shaped_tensor",
    "datasets.features.features.Array2DExtensionType",
    "somebody.point",
)


def register() -> None:
    """Register a class for each type, as Ray and datasets do when they are imported."""

    def class_of(name: str) -> Any:
        class Registered(pa.ExtensionType):  # type: ignore[misc]
            def __init__(self, storage: Any, data: bytes) -> None:
                self.data = data
                super().__init__(storage, name)

            def __arrow_ext_serialize__(self) -> bytes:
                return self.data

            @classmethod
            def __arrow_ext_deserialize__(cls, storage: Any, data: bytes) -> Any:
                return cls(storage, data)

        return Registered(pa.int8(), b"")

    for name in NAMES:
        pa.register_extension_type(class_of(name))


def shown(value: Any) -> Any:
    """Return type, shape and contents of a value."""
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items()}
    if isinstance(value, pa.Table):
        return {name: [str(value.schema.field(name).type), value[name].to_pylist()] for name in value.column_names}
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, value.tolist()]
    return [shown(inner) for inner in value] if isinstance(value, list) else repr(value)


def loaded(ds: Any, start: str) -> Any:
    if start == "here":
        return ds
    import shoal.torch  # takes seconds

    return shoal.torch.DataLoader(ds, num_workers=1, multiprocessing_context=start)


def main() -> None:
    registered, start, *shards = sys.argv[1:]
    if registered == "registered":
        register()
    elif registered != "plain":
        importlib.import_module(registered)
    found = {}
    for shard in shards:
        ds = shoal.open(shard)
        found[shard] = {"sample": shown(ds[1])}
        for name in ("python", "numpy", "arrow", None) if start == "here" else ("torch",):
            batched = ds.batch(4) if name is None else ds.format(name).batch(4)
            found[shard][str(name)] = [shown(batch) for batch in loaded(batched, start)]
        if start == "here":
            with multiprocessing.get_context("fork").Pool(1) as child:
                found[shard]["child"] = shown(child.apply(list, (ds.format("numpy").batch(4),)))
    assert {"ray", "datasets"} & set(sys.modules) == {registered.partition(".")[0]} - {"plain", "registered"}
    print(json.dumps(found, default=repr))


if __name__ == "__main__":
    main()
