"""The positions of row groups in a Parquet file, from its footer: a few numbers for each column, and nothing else.

pyarrow knows them as well, but crashes the process if other parts of a column's description contradict each other, so
the footer is walked here. It is a struct of Thrift's compact protocol; see ``parquet.thrift`` for its fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
_NUMBERS = (4, 5, 6)
_MOST_DEPTH = 24
_MOST_VARINT_BYTES = 10

_Wanted = Mapping[int, Any]
"""Fields to keep of a struct: None for a number, a nested mapping for a struct, in a list for a list of structs."""

_COLUMN: _Wanted = {3: {1: None, 5: None, 6: None, 7: None, 9: None, 11: None, 16: {1: None}}}
_VALUE_BYTES = {1: 4, 2: 8, 3: 12, 4: 4, 5: 8, 6: 4}  # of a value in memory, by its type; text has at least an offset
_FILE: _Wanted = {2: [{5: None}], 4: [{1: [_COLUMN], 3: None}]}
_SKIPPED = object()
_MOST_NESTED = 100  # as in pyarrow 26; at least versions 17 to 21 crash the process at some thousands


class ColumnPages(NamedTuple):
    """The pages of one column of a row group; ``dictionary_offset`` is None if it has no dictionary.

    ``decoded_bytes`` is the decompressed size of its pages, ``value_bytes`` the least that its values take in memory: a
    million equal numbers are a few bytes of pages. So are a million equal texts, whose size is known only if the writer
    recorded it (``SizeStatistics``; Arrow does, older writers do not).
    """

    data_offset: int
    dictionary_offset: int | None
    compressed_bytes: int
    decoded_bytes: int
    value_bytes: int


class FooterGroup(NamedTuple):
    """A row group: its number of rows, and its columns."""

    num_rows: int
    columns: list[ColumnPages]


def groups_in(footer: bytes) -> list[FooterGroup]:
    """Return the row groups that a footer, without its length and magic number, lists; O(its bytes).

    Raises `ValueError` if it is damaged, or a column is encrypted, or columns are nested too deeply.
    """
    try:
        found = _Walk(footer).struct(_FILE, 0)
        _check_depth([element.get(5, 0) for element in found[2]])
        return [FooterGroup(group[3], [_column(column[3]) for column in group[1]]) for group in found[4]]
    except IndexError:
        _refuse(f"a struct does not end in these {len(footer)} bytes")
    except KeyError as error:
        _refuse(f"a row group or a column lacks field {error}; is it encrypted?")


def _refuse(what: str) -> NoReturn:
    raise ValueError(what) from None


def _check_depth(num_children: Sequence[int]) -> None:
    """Raise for a schema nested too deeply; each element has the number of its children, which follow it."""
    left: list[int] = []
    for count in num_children:
        while left and left[-1] <= 0:
            left.pop()
        if left:
            left[-1] -= 1
        left.append(count)
        if len(left) > _MOST_NESTED:
            _refuse(f"columns are nested more than {_MOST_NESTED} deep")


def _column(about: Mapping[int, Any]) -> ColumnPages:
    value_bytes = about.get(5, 0) * _VALUE_BYTES.get(about.get(1, 0), 1) + about.get(16, {}).get(1, 0)
    return ColumnPages(about[9], about.get(11), about[7], about[6], value_bytes)


class _Walk:
    """A cursor that steps from field to field through a struct."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self, wanted: _Wanted, depth: int) -> dict[int, Any]:
        """Return the wanted fields of the struct that begins here."""
        if depth > _MOST_DEPTH:
            _refuse(f"structs in structs, {depth} deep")
        found: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != _STOP:
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._number()
            inner = wanted.get(number, _SKIPPED)
            if inner is _SKIPPED:
                self._skip(kind, depth)
            elif inner is None and kind in _NUMBERS:
                found[number] = self._number()
            elif isinstance(inner, dict) and kind == _STRUCT:
                found[number] = self.struct(inner, depth + 1)
            elif isinstance(inner, list) and kind == _LIST:
                found[number] = self._list(inner[0], depth)
            else:
                _refuse(f"field {number} is of type {kind}")
        return found

    def _list(self, wanted: _Wanted, depth: int) -> list[dict[int, Any]]:
        size, kind = self._list_head()
        if kind != _STRUCT:
            _refuse(f"a list of type {kind}")
        return [self.struct(wanted, depth + 1) for _ in range(size)]

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
            _refuse(f"there is no type {kind}")

    def _skip_element(self, kind: int, depth: int) -> None:
        if depth > _MOST_DEPTH:
            _refuse(f"lists in lists, {depth} deep")
        self._skip(_BYTE if kind in (_TRUE, _FALSE) else kind, depth)  # in a list, a boolean is a byte

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._varint()
        return self._count(size), head & 15

    def _count(self, size: int) -> int:
        if size > len(self._data) - self._at:  # each element has at least one byte
            _refuse(f"{size} elements in {len(self._data) - self._at} bytes")
        return size

    def _pass(self, num_bytes: int) -> None:
        self._at += num_bytes
        if self._at > len(self._data):
            _refuse(f"a value ends at byte {self._at} of {len(self._data)}")

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
        _refuse("a number has no end")
