"""JAX, imported on first use, and batches as its arrays: of one process, or its rows of arrays over all processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError


def jax_library() -> Any:
    """Import and return the module ``jax``.

    Raises
    ------
    UsageError
        JAX is not installed.
    """
    try:
        import jax  # noqa: PLC0415  # optional, and slow to import
    except ImportError as error:
        msg = "shoal.jax needs jax, which is not installed"
        raise UsageError(msg, hint="pip install jax, in the variant for your accelerator") from error
    return jax


@dataclass(frozen=True, slots=True)
class Placement:
    """Destination of a batch's arrays: a device of this process, or, with a sharding, all devices that it names.

    ``num_rows`` counts the rows of a global batch, and ``num_local`` those of this process.
    """

    sharding: Any
    device: Any
    num_rows: int = 0
    num_local: int = 0

    def __call__(self, batch: Any) -> Any:
        """Return the batch with arrays of numbers and booleans as `jax.Array`; other values stay as they are.

        Raises
        ------
        UsageError
            A number does not fit the type that JAX would give it, or an array does not have one row per sample.
        """
        with jax_library().default_device(self.device):
            return self._placed(batch, "the batch")

    def _placed(self, value: Any, name: str) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return self._array(_fitting(value, name), name)
        if isinstance(value, Mapping):
            return {key: self._placed(item, repr(key)) for key, item in value.items()}
        if isinstance(value, tuple):
            items = [self._placed(item, f"{name}[{number}]") for number, item in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, list) and any(isinstance(item, np.ndarray | dict | tuple | list) for item in value):
            return [self._placed(item, f"{name}[{number}]") for number, item in enumerate(value)]
        return value

    def _array(self, array: NDArray[Any], name: str) -> Any:
        jax = jax_library()
        if self.sharding is None:
            return jax.device_put(array)
        if array.ndim < 1 or len(array) != self.num_local:
            msg = f"{name} has shape {array.shape}, but this process has {self.num_local} samples of each global batch"
            raise UsageError(msg, hint="with sharding=, every array of a batch must have a row for each sample")
        return jax.make_array_from_process_local_data(self.sharding, array, (self.num_rows, *array.shape[1:]))


def _fitting(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the array, or refuse it if JAX would truncate its integers: to 32 bits unless 64 are switched on."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or not array.size:
        return array
    limits = np.iinfo(jax_library().dtypes.canonicalize_dtype(array.dtype))
    low, high = int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        msg = f"{name} has integers from {low} to {high}, and JAX would truncate them to {limits.dtype}"
        raise UsageError(msg, hint='jax.config.update("jax_enable_x64", True), or .map() them to smaller numbers')
    return array


def rank_of_rows(sharding: Any) -> tuple[int, int]:
    """Return which part of how many the devices of this process hold of a global batch under a sharding.

    Processes whose devices hold the same rows have the same part: they differ in other axes of the mesh.

    Raises
    ------
    UsageError
        The sharding splits more than rows, leaves this process out, or gives two processes only some rows in common.
    """
    jax = jax_library()
    try:
        held = sharding.devices_indices_map((len(sharding.device_set),))
    except (AttributeError, IndexError, ValueError) as error:
        msg = f"sharding={sharding!r} does not split the rows of a batch: {error}"
        hint = 'NamedSharding(mesh, PartitionSpec("data")) splits only rows, the first dimension'
        raise UsageError(msg, hint=hint) from error
    rows: dict[int, set[tuple[int, int]]] = {}
    for device, (part,) in held.items():
        start, stop, _ = part.indices(len(sharding.device_set))
        rows.setdefault(device.process_index, set()).add((start, stop))
    parts = sorted({tuple(sorted(own)) for own in rows.values()})
    taken = [part for own in parts for part in own]
    if len(set(taken)) < len(taken) or len({len(own) for own in parts}) > 1:
        msg = f"sharding={sharding!r} gives the devices of two processes some rows in common, but not all"
        raise UsageError(msg, hint="a process must hold whole parts of the rows, as with a mesh of jax.make_mesh()")
    here = jax.process_index()
    if here not in rows:
        msg = f"there is no device of process {here} in sharding={sharding!r}"
        raise UsageError(msg, hint="iterate only in the processes of the mesh")
    return parts.index(tuple(sorted(rows[here]))), len(parts)
