"""Values of one column: classified for some consecutive samples, and joined to an array for all samples of a dataset.

A column has one kind: integers (int64), floating numbers (float64; integers among them must be exact), booleans, or
texts (int32 codes into a sorted list). A tar member has no type: bytes are integers if all are decimal numbers, else
texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.column_paths import LENGTH, Column, plain_value

RULE = 1
"""Version of the values of columns, in the names of files with values; incremented when columns get other values."""

NUMERAL, INTEGER, FLOAT, BOOLEAN, TEXT = "numeral", "integer", "float", "boolean", "text"
_NOUNS = {
    NUMERAL: "an integer", INTEGER: "an integer", FLOAT: "a floating number", BOOLEAN: "a boolean", TEXT: "a text",
}  # fmt: skip
_DTYPES: Mapping[str, Any] = {
    NUMERAL: np.int64, INTEGER: np.int64, FLOAT: np.float64, BOOLEAN: np.bool_, TEXT: np.int32,
}  # fmt: skip
_KIND_OF: Mapping[type, str] = {bool: BOOLEAN, int: INTEGER, float: FLOAT, str: TEXT}
_JOINED = {frozenset((NUMERAL, TEXT)): TEXT, frozenset((INTEGER, FLOAT)): FLOAT}
_MOST_EXACT = 1 << 53  # a float64 holds every integer up to here


class Part(NamedTuple):
    """The values of a column in some consecutive samples; ``values`` has shape (num_samples,).

    Texts are codes into ``words``, in order of first appearance. ``missing`` are the rows without a value; ``values``
    holds 0 there. ``first`` is the first row with a value. ``kind`` is "" if no row has a value.
    """

    kind: str
    values: NDArray[Any]
    words: Sequence[str]
    missing: NDArray[np.int64]
    first: int


class SpanValues(NamedTuple):
    """The parts of all columns in consecutive samples, and the full paths of their values."""

    parts: Sequence[Part]
    sources: Sequence[str]


Where = Callable[[int], str]
"""Function that names a sample in an error, by its id or row."""


def part_of_values(values: list[Any], column: Column, where: Where) -> Part:
    """Return the part of a column with these values; None is a missing value. O(values), mostly in C.

    Raises `UsageError` if a value is neither number nor text, or two values differ in kind; ``where`` names a row.
    """
    kinds = set(map(type, values))
    is_stored = kinds <= {bytes, type(None)}
    if not kinds <= {*_KIND_OF, type(None)}:
        # Bytes that are not text are refused, not missing.
        values = [value if (plain := plain_value(value)) is None else plain for value in values]
        _refuse_others(values, column, where)
        kinds = set(map(type, values))
    missing = np.flatnonzero(np.fromiter((value is None for value in values), bool, len(values)))
    value_kinds = {_KIND_OF[kind] for kind in kinds - {type(None)}}
    if is_stored and INTEGER in value_kinds:
        value_kinds = value_kinds - {INTEGER} | {NUMERAL}
    if not value_kinds:
        return Part("", np.zeros(len(values), np.int64), (), missing, -1)
    kind = next(iter(value_kinds)) if len(value_kinds) == 1 else _JOINED.get(frozenset(value_kinds), "")
    if not kind:
        _refuse_two_kinds(values, column, where)
    first = next(row for row, value in enumerate(values) if value is not None)
    if kind == TEXT:
        texts = ["" if value is None else str(value) for value in values]
        words = list(dict.fromkeys(text for text, value in zip(texts, values, strict=True) if value is not None))
        codes = {word: code for code, word in enumerate(words)}
        array = np.fromiter((codes.get(text, 0) for text in texts), np.int32, len(texts))
        array[missing] = 0
        return Part(kind, array, words, missing, first)
    if kind == FLOAT and INTEGER in value_kinds:
        rounded = (row for row, value in enumerate(values) if type(value) is int and abs(value) > _MOST_EXACT)
        if (row := next(rounded, None)) is not None:
            _refuse_rounding(column, values[row], where(row))
    filled = values if not len(missing) else [0 if value is None else value for value in values]
    return Part(kind, _array(filled, kind, column, where), (), missing, first)


def part_of_array(
    values: NDArray[Any], missing: NDArray[np.bool_] | None, words: Sequence[str] | None, column: Column, where: Where
) -> Part:
    """Return the part with these numbers, booleans, or codes of texts (if there are ``words``).

    ``missing`` is true for samples without a value; both arrays have shape (num_samples,). Raises `UsageError` if an
    integer has more than 64 bits.
    """
    rows = np.zeros(0, np.int64) if missing is None else np.flatnonzero(missing)
    first = 0 if missing is None else int(np.argmin(missing))
    if len(rows) == len(values):
        return Part("", np.zeros(len(values), np.int64), (), rows, -1)
    kind = TEXT if words is not None else {"b": BOOLEAN, "f": FLOAT}.get(values.dtype.kind, INTEGER)
    if values.dtype == np.uint64 and len(large := np.flatnonzero(values >> np.uint64(63))):
        _refuse_large(column, where(int(large[0])))
    array = values.astype(_DTYPES[kind])
    array[rows] = 0
    return Part(kind, array, words or (), rows, first)


class JoinedColumn:
    """One column of all samples of a dataset, joined from parts in the order of their samples.

    Memory: 8 bytes a sample (4 for texts), and each distinct text once. ``default`` is the value for samples without
    one; with a default of None, `finished` refuses such samples.
    """

    def __init__(self, column: Column, num_samples: int, where: Where, default: Any = None) -> None:
        self.column = column
        self._where, self._default = where, default
        self._kind, self._first = "", -1
        self._values: NDArray[Any] = np.zeros(0)
        self._num_samples = num_samples
        self._codes: dict[str, int] = {}
        self._missing: list[NDArray[np.int64]] = []

    def add(self, part: Part, first_sample: int) -> None:
        """Add the values of the samples from ``first_sample`` on; `UsageError` if earlier values have another kind."""
        if len(part.missing):
            self._missing.append(part.missing + first_sample)
        if not part.kind:
            return
        if not self._kind:
            self._kind, self._first = part.kind, first_sample + part.first
            self._values = np.zeros(self._num_samples, _DTYPES[part.kind])
        elif part.kind != self._kind:
            part = self._alike(part, first_sample)
        values = self._coded(part) if part.kind == TEXT else part.values
        self._values[first_sample : first_sample + len(values)] = values

    def finished(self) -> tuple[NDArray[Any], list[str] | None, NDArray[np.int64]]:
        """Return the column, shape (num_samples,), the texts of its codes, and the ids of samples without a value.

        Raises `UsageError` if no sample has a value, or some have none and there is no default.
        """
        missing = np.concatenate(self._missing) if self._missing else np.zeros(0, np.int64)
        if len(missing):
            self._fill(missing)
        if self._kind != TEXT:
            return self._values, None, missing
        words = sorted(self._codes)
        ranks = np.zeros(len(words), np.int32)
        ranks[[self._codes[word] for word in words]] = np.arange(len(words))
        return ranks[self._values], words, missing

    def _alike(self, part: Part, first_sample: int) -> Part:
        """Convert a part and the column to a common kind, and return the part."""
        kind = _JOINED.get(frozenset((self._kind, part.kind)))
        if kind is None:
            one = f"{_NOUNS[self._kind]} in {self._where(self._first)}"
            _refuse_kinds(self.column, one, f"{_NOUNS[part.kind]} in {self._where(first_sample + part.first)}")
        before, self._kind = self._kind, kind
        if before == NUMERAL:
            known, codes = np.unique(self._values, return_inverse=True)
            self._codes = {str(word): code for code, word in enumerate(known.tolist())}
            self._values = codes.astype(np.int32)
        elif before == INTEGER:
            self._check_exact(self._values, 0)
            self._values = self._values.astype(np.float64)
        if part.kind == NUMERAL:
            known, codes = np.unique(part.values, return_inverse=True)
            return part._replace(kind=TEXT, values=codes, words=[str(word) for word in known.tolist()])
        if part.kind == INTEGER:
            self._check_exact(part.values, first_sample)
        return part._replace(kind=kind)

    def _check_exact(self, values: NDArray[Any], first_sample: int) -> None:
        rounded = np.flatnonzero((values > _MOST_EXACT) | (values < -_MOST_EXACT))
        if len(rounded):
            _refuse_rounding(self.column, values[rounded[0]], self._where(first_sample + int(rounded[0])))

    def _coded(self, part: Part) -> NDArray[Any]:
        codes = np.fromiter((self._codes.setdefault(word, len(self._codes)) for word in part.words), np.int32)
        coded: NDArray[Any] = codes[part.values]
        return coded

    def _fill(self, missing: NDArray[np.int64]) -> None:
        name = self.column.name
        subject = f"the column {name!r} is {self.column.path!r} of each sample"
        if not self._kind:
            msg = f"{subject}, but none of the {self._num_samples} samples has a value there"
            raise UsageError(msg, hint="`shoal head` shows the fields of samples")
        first = self._where(int(missing[0]))
        if self._default is None:
            msg = f"{subject}, but {len(missing)} of {counted(self._num_samples, 'sample')} lack one, first {first}"
            argument = name if name == self.column.path else f"{name}={self.column.path}"
            raise UsageError(msg, hint=f'index_columns={{"{argument}": VALUE}} gives these samples a value')
        value = _default_of(self._kind, self._default, self.column)
        part = part_of_values([value], self.column, lambda _: f"the value for {first}")
        if part.kind != self._kind:
            if frozenset((part.kind, self._kind)) not in _JOINED:
                _refuse_default(self._kind, self._default, self.column)
            part = self._alike(part, int(missing[0]))
        self._values[missing] = self._coded(part)[0] if part.kind == TEXT else part.values[0]


def _default_of(kind: str, default: Any, column: Column) -> Any:
    """Return the default for missing values; text from a command line is converted."""
    if kind == NUMERAL and type(default) is int:
        default = str(default)
    if not isinstance(default, str) or kind == TEXT:
        return default
    if kind == BOOLEAN and default in ("true", "false"):
        return default == "true"
    for convert in (int, float):
        try:
            number = convert(default)
        except ValueError:
            continue
        return default.encode() if kind == NUMERAL and convert is int else number
    if kind != NUMERAL:
        _refuse_default(kind, default, column)
    return default


def _refuse_default(kind: str, default: Any, column: Column) -> NoReturn:
    msg = f"each value of the column {column.name!r} is {_NOUNS[kind]}, but {default!r} was given for missing ones"
    raise UsageError(msg, hint="give them a value of that kind")


def _array(values: list[Any], kind: str, column: Column, where: Where) -> NDArray[Any]:
    try:
        return np.array(values, dtype=_DTYPES[kind])
    except OverflowError:
        row = next(row for row, value in enumerate(values) if isinstance(value, int) and abs(value) >> 63)
        _refuse_large(column, where(row))


def _refuse_large(column: Column, where: str) -> NoReturn:
    msg = f"the column {column.name!r} has an integer beyond 64 bits in {where}"
    raise UsageError(msg, hint="leave it out, or make it a text") from None


def _refuse_others(values: list[Any], column: Column, where: Where) -> None:
    for row, value in enumerate(values):
        if value is not None and type(value) not in _KIND_OF:
            noun = "bytes that are not text" if isinstance(value, bytes) else f"a {type(value).__name__}"
            msg = f"the column {column.name!r} is {column.path!r} of each sample, but {where(row)} has {noun} there"
            inside = next(iter(value), "NAME") if isinstance(value, dict) else ""
            more = f"{column.path}.{inside} is inside of it" if inside else f"{column.path}{LENGTH} is its length"
            raise UsageError(msg, hint=f"numbers, booleans and texts go into the index; {more}")


def _refuse_two_kinds(values: list[Any], column: Column, where: Where) -> None:
    seen: dict[str, int] = {}
    for row, value in enumerate(values):
        kind = "" if value is None else _KIND_OF[type(value)]
        if kind and kind not in seen:
            for other, other_row in seen.items():
                if frozenset((kind, other)) not in _JOINED:
                    one = f"{_NOUNS[other]} in {where(other_row)}"
                    _refuse_kinds(column, one, f"{_NOUNS[kind]} in {where(row)}")
            seen[kind] = row


def _refuse_kinds(column: Column, one: str, other: str) -> NoReturn:
    msg = f"the column {column.name!r} is {column.path!r} of each sample: {one}, but {other}"
    raise UsageError(msg, hint="a column has values of one kind: make them alike in the shards, or leave it out")


def _refuse_rounding(column: Column, value: int, where: str) -> NoReturn:
    msg = f"the column {column.name!r} has floating numbers, but {where} has the integer {value}, which no float equals"
    raise UsageError(msg, hint="make all values integers, or floating numbers, in the shards; or leave the column out")
