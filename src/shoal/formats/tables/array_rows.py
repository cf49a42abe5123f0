"""Records of formats that decode some rows of each field to one numpy array, such as chunks of HDF5 and Zarr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.formats.field_columns import Columns, Kind, value_of

_NUMBERS = "biuf"
_COLUMNS = _NUMBERS + "c"


class ArrayRows:
    """Some samples as one array for each field, in memory of their own; row ``i`` is sample ``i``.

    ``layout_crcs`` are the CRCs of the samples or pieces as in `ShardScan`. Numbers are Python numbers in samples if
    Python has their type, like numbers of every format; rows with more axes are arrays, fixed-size strings ``bytes``.
    Arrays in another byte order are converted. Batches are gathered from columns if each field has numbers.

    Examples
    --------
    >>> rows = shoal.formats.ArrayRows({"image": np.zeros((2, 8, 8), np.uint8), "label": np.array([3, 5])}, [0])
    >>> rows.sample(1)["label"], len(rows)
    (5, 2)
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], layout_crcs: Any) -> None:
        self._arrays = {name: _native(array) for name, array in arrays.items()}
        self._kinds = {name: _kind_of(array) for name, array in self._arrays.items()}
        self._crcs = np.asarray(layout_crcs, dtype=np.uint32)

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values()), ()))

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the given CRCs."""
        return self._crcs

    def sample(self, number: int) -> dict[str, Any]:
        """Return a row of each field; the values own their bytes."""
        return {name: _value(self._kinds[name], array, number) for name, array in self._arrays.items()}

    def columns(self) -> Columns | None:
        """Return the arrays; None if a field has no numbers."""
        kinds = tuple((name, kind) for name, kind in self._kinds.items() if kind is not None)
        return Columns(kinds, tuple(self._arrays.values())) if len(kinds) == len(self._arrays) else None


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the byte order of the machine; texts of variable length as objects of Python."""
    if array.dtype.kind == "T":
        return array.astype(object)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _kind_of(array: NDArray[Any]) -> Kind | None:
    """Return the kind of an array's rows; None for rows that are no numbers."""
    if array.dtype.kind not in _COLUMNS:
        return None
    how = "number" if array.ndim == 1 and array.dtype.kind in _NUMBERS else "array"
    return Kind(how, array.dtype, array.shape[1:])


def _value(kind: Kind | None, array: NDArray[Any], number: int) -> Any:
    if kind is not None:
        return value_of(kind, array, number)
    value = array[number]
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, str):
        return str(value)
    return value.copy() if isinstance(value, np.ndarray | np.generic) else value
