"""The positions of row groups, read from the footer of a Parquet file: a few numbers per column.

pyarrow reads them too, but crashes the process if other parts of a column's description contradict each other. The
footer is a struct of Thrift's compact protocol; see ``parquet.thrift`` for its fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
_NUMBERS = (4, 5, 6)
_MOST_DEPTH = 24
_MOST_VARINT_BYTES = 10

_Fields = Mapping[int, Any]
"""The kept fields of a struct: None for a number, a mapping for a struct, a mapping in a list for a list of structs."""

_COLUMN: _Fields = {3: {1: None, 5: None, 6: None, 7: None, 9: None, 11: None, 16: {1: None}}}
_VALUE_BYTES = {1: 4, 2: 8, 3: 12, 4: 4, 5: 8, 6: 4}  # of a value in memory, by its type; text has at least an offset
_FILE: _Fields = {2: [{5: None}], 4: [{1: [_COLUMN], 3: None}]}
_SKIPPED = object()
_MOST_NESTED = 100  # as in pyarrow 26; at least versions 17 to 21 crash the process at some thousands


class ColumnPages(NamedTuple):
    """The pages of one column of a row group; ``dictionary_offset`` is None without a dictionary.

    ``decoded_bytes`` is the decompressed size of the pages, ``value_bytes`` the least size of the values in memory: a
    million equal numbers or texts are a few bytes of pages. The size of texts is known only if the writer recorded it
    (``SizeStatistics``; Arrow does, older writers do not).
    """

    data_offset: int
    dictionary_offset: int | None
    compressed_bytes: int
    decoded_bytes: int
    value_bytes: int


class FooterGroup(NamedTuple):
    """The rows and columns of a row group."""

    num_rows: int
    columns: list[ColumnPages]


def groups_in(footer: bytes) -> list[FooterGroup]:
    """Return the row groups in a footer without its length and magic number; O(its bytes).

    Raises `ValueError` if the footer is damaged, a column is encrypted, or columns are nested too deeply.
    """
    try:
        file = _Cursor(footer).struct(_FILE, 0)
        _check_depth([element.get(5, 0) for element in file[2]])
        return [FooterGroup(group[3], [_column(column[3]) for column in group[1]]) for group in file[4]]
    except IndexError:
        raise ValueError(f"a struct does not end in these {len(footer)} bytes") from None
    except KeyError as error:
        raise ValueError(f"a row group or a column lacks field {error}; is it encrypted?") from None


def _check_depth(num_children: Sequence[int]) -> None:
    """Raise for a schema nested too deeply, by the number of children of each element in depth-first order."""
    open_elements: list[int] = []
    for count in num_children:
        while open_elements and open_elements[-1] <= 0:
            open_elements.pop()
        if open_elements:
            open_elements[-1] -= 1
        open_elements.append(count)
        if len(open_elements) > _MOST_NESTED:
            raise ValueError(f"columns are nested more than {_MOST_NESTED} deep")


def _column(fields: Mapping[int, Any]) -> ColumnPages:
    value_bytes = fields.get(5, 0) * _VALUE_BYTES.get(fields.get(1, 0), 1) + fields.get(16, {}).get(1, 0)
    return ColumnPages(fields[9], fields.get(11), fields[7], fields[6], value_bytes)


class _Cursor:
    """A cursor that steps from field to field through a struct."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self, kept: _Fields, depth: int) -> dict[int, Any]:
        """Return the kept fields of the struct at the cursor."""
        if depth > _MOST_DEPTH:
            raise ValueError(f"structs in structs, {depth} deep")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != _STOP:
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._number()
            inner = kept.get(number, _SKIPPED)
            if inner is _SKIPPED:
                self._skip(kind, depth)
            elif inner is None and kind in _NUMBERS:
                fields[number] = self._number()
            elif isinstance(inner, dict) and kind == _STRUCT:
                fields[number] = self.struct(inner, depth + 1)
            elif isinstance(inner, list) and kind == _LIST:
                fields[number] = self._structs(inner[0], depth)
            else:
                raise ValueError(f"field {number} is of type {kind}")
        return fields

    def _structs(self, kept: _Fields, depth: int) -> list[dict[int, Any]]:
        size, kind = self._list_head()
        if kind != _STRUCT:
            raise ValueError(f"a list of type {kind}")
        return [self.struct(kept, depth + 1) for _ in range(size)]

    def _skip(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):
            return
        if kind in _NUMBERS:
            self._number()
        elif kind in (_BYTE, _DOUBLE):
            self._pass(1 if kind == _BYTE else 8)
        elif kind == _BINARY:
            self._pass(self._varint())
        elif kind in (_LIST, _SET):
            size, inner = self._list_head()
            for _ in range(size):
                self._skip_element(inner, depth + 1)
        elif kind == _MAP:
            if size := self._varint():
                kinds = self._byte()
                for _ in range(self._count(size)):
                    self._skip_element(kinds >> 4, depth + 1)
                    self._skip_element(kinds & 15, depth + 1)
        elif kind == _STRUCT:
            self.struct({}, depth + 1)
        else:
            raise ValueError(f"there is no type {kind}")

    def _skip_element(self, kind: int, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise ValueError(f"lists in lists, {depth} deep")
        self._skip(_BYTE if kind in (_TRUE, _FALSE) else kind, depth)  # in a list, a boolean is a byte

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._varint()
        return self._count(size), head & 15

    def _count(self, size: int) -> int:
        if size > len(self._data) - self._at:  # each element has at least one byte
            raise ValueError(f"{size} elements in {len(self._data) - self._at} bytes")
        return size

    def _pass(self, num_bytes: int) -> None:
        self._at += num_bytes
        if self._at > len(self._data):
            raise ValueError(f"a value ends at byte {self._at} of {len(self._data)}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = self._byte()
        if value < 128:
            return value
        value &= 0x7F
        for number in range(1, _MOST_VARINT_BYTES):
            byte = self._byte()
            value |= (byte & 0x7F) << 7 * number
            if byte < 128:
                return value & 0xFFFFFFFFFFFFFFFF
        raise ValueError("a number has no end")
