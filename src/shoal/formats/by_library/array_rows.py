"""Records of formats that decode some rows of each field to one numpy array, such as chunks of HDF5 and Zarr."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.formats.field_columns import Columns, Kind, value_of
from shoal.formats.shard_format import Spilled, SpillSpace

_NUMBERS = "biuf"
_COLUMNS = _NUMBERS + "c"
_PART_BYTES = 256 << 10


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

    @classmethod
    def of_part(cls, data: bytes) -> ArrayRows:
        """Return the rows of a part that `spilled_arrays` wrote; they have no CRCs."""
        file = io.BytesIO(data)
        names = json.loads(file.read(int.from_bytes(file.read(4), "little")))
        return cls({name: _read_values(file, is_text=is_text) for name, is_text in names}, [])

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


def spilled_arrays(
    decode: Callable[[slice], Mapping[str, NDArray[Any]]],
    rows: slice,
    space: SpillSpace,
    *,
    part_bytes: int = _PART_BYTES,
) -> Spilled:
    """Spill the rows of a piece, a few at a time: the result of `Format.spill`; `ArrayRows.of_part` opens a part.

    ``decode`` returns some of the ``rows`` of each field: arrays of any type, objects that are texts, or arrays of one
    type and of several lengths. Memory: one part, of about ``part_bytes`` by the size of the first row.

    Examples
    --------
    >>> labels = np.arange(1000)
    >>> parts = []  # a space has a method append
    >>> shoal.formats.spilled_arrays(lambda rows: {"label": labels[rows]}, slice(0, 1000), parts).samples_per_part
    32768
    """
    first = decode(slice(rows.start, rows.start + 1))
    row_bytes = sum(len(array.tobytes()) if not array.dtype.hasobject else 64 for array in first.values())
    step, borders = max(1, part_bytes // max(1, row_bytes)), [0]
    for row in range(rows.start, rows.stop, step):
        part, arrays = io.BytesIO(), decode(slice(row, min(row + step, rows.stop)))
        names = json.dumps([[name, _is_text(array)] for name, array in arrays.items()]).encode()
        part.write(len(names).to_bytes(4, "little") + names)
        for array in arrays.values():
            _write_values(part, array)
        space.append(part.getbuffer())
        borders.append(borders[-1] + len(part.getbuffer()))
    return Spilled(np.array(borders, np.int64), rows.stop - rows.start, step)


def _is_text(array: NDArray[Any]) -> bool | None:
    """Return True for texts, False for arrays of several lengths, and None for an array of one shape."""
    if array.dtype.kind != "T" and not array.dtype.hasobject:
        return None
    return all(isinstance(value, str) for value in array)


def _write_values(file: io.BytesIO, array: NDArray[Any]) -> None:
    is_text, values = _is_text(array), [array]
    if is_text is not None:
        rows = [np.frombuffer(str(row).encode(), np.uint8) for row in array] if is_text else list(array)
        values = [np.array([len(row) for row in rows], np.int64), np.concatenate(rows)]
    for each in values:
        np.lib.format.write_array(file, np.ascontiguousarray(each) if each.ndim else each, allow_pickle=False)


def _read_values(file: io.BytesIO, *, is_text: bool | None) -> NDArray[Any]:
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    if is_text is None:
        return array
    joined = np.lib.format.read_array(file, allow_pickle=False)
    parts: Sequence[NDArray[Any]] = np.split(joined, np.cumsum(array)[:-1])
    values = np.empty(len(array), dtype=object)
    values[:] = [part.tobytes().decode() for part in parts] if is_text else None
    for number, part in enumerate(() if is_text else parts):
        values[number] = part.copy()
    return values
