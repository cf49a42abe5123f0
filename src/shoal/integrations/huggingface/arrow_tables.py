"""The rows and columns of a `datasets.Dataset`, traced back to the Arrow files that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError

_OLDEST = (4, 8)
_HARMLESS = {"replace_schema_metadata", "combine_chunks"}


def datasets_library() -> Any:
    """Import and return the module ``datasets``.

    Raises
    ------
    UsageError
        It is not installed, or older than 4.8: such a version does not pass the epoch to its sources.
    """
    try:
        import datasets  # noqa: PLC0415  # optional, and slow to import
    except ImportError as error:
        msg = "Hugging Face datasets need the library datasets, which is not installed"
        raise UsageError(msg, hint="pip install datasets") from error
    version = tuple(int(word) for word in datasets.__version__.split(".")[:2])
    if version < _OLDEST:
        msg = f"datasets {datasets.__version__} is installed; shoal needs {'.'.join(map(str, _OLDEST))} or newer"
        raise UsageError(msg, hint="pip install --upgrade datasets")
    return datasets


@dataclass(frozen=True, slots=True)
class Stored:
    """Files in order with the rows of each; the rows taken from all of them, ascending, or None for all.

    ``names`` maps the names of the columns to those in the files; None if all columns are as in the files.
    """

    paths: tuple[str, ...]
    num_rows: tuple[int, ...]
    rows: NDArray[np.int64] | None
    names: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive rows of one file, and its columns by their new names."""

    path: str
    num_rows: int
    first: int
    stop: int
    names: Mapping[str, str]
    is_plain: bool


def refused(why: str, hint: str) -> UsageError:
    """Return the error for a dataset that cannot be read exactly."""
    msg = f"this Hugging Face dataset cannot be read exactly: {why}"
    return UsageError(msg, hint=hint)


def stored_rows(parts: Sequence[Any]) -> Stored:
    """Return the rows of some `datasets.Dataset`, one after another.

    O(files) for whole files; else, and after a selection of rows, O(rows) in time and memory.

    Raises
    ------
    UsageError
        Rows are in memory, occur twice, or were changed.
    """
    files: dict[str, int] = {}
    blocks = [[*_blocks_of(part)] for part in parts]
    for block in (block for group in blocks for block in group):
        files.setdefault(block.path, block.num_rows)
    if not files:
        raise refused("it has no rows", "select some rows")
    firsts = dict(zip(files, np.cumsum([0, *files.values()])[:-1].tolist(), strict=True))
    names = _names_of([block for group in blocks for block in group], parts)
    whole = [(block.path, block.first, block.stop) for group in blocks for block in group]
    if all(_indices_of(part) is None for part in parts) and whole == [(path, 0, rows) for path, rows in files.items()]:
        return Stored(tuple(files), tuple(files.values()), None, names)
    rows = np.sort(np.concatenate([_rows_of(part, own, firsts) for part, own in zip(parts, blocks, strict=True)]))
    if (repeated := np.flatnonzero(rows[1:] == rows[:-1])).size:
        msg = f"{repeated.size:,} of its {len(rows):,} rows are repeats"
        raise refused(msg, "an epoch of shoal has every sample once")
    taken = None if len(rows) == sum(files.values()) else rows
    return Stored(tuple(files), tuple(files.values()), taken, names)


def _rows_of(dataset: Any, blocks: Sequence[_Block], firsts: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the rows of a dataset in its own order, numbered through all files."""
    parts = [np.arange(block.first, block.stop) + firsts[block.path] for block in blocks]
    rows = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    indices = _indices_of(dataset)
    return rows if indices is None else rows[indices]


def _indices_of(dataset: Any) -> NDArray[np.int64] | None:
    mapping = dataset._indices  # noqa: SLF001  # the result of select(), filter() and shuffle(); it has no public name
    return None if mapping is None else mapping.column(0).to_numpy().astype(np.int64)


def _blocks_of(dataset: Any) -> list[_Block]:
    """Return the files behind a dataset's table."""
    if dataset.format["type"] == "custom":
        raise refused("set_transform() changes its rows", "map() here")
    refuse_decoding({name: dataset.features[name] for name in dataset.format["columns"]})
    table = dataset.data
    groups = getattr(table, "blocks", [[table]])
    if any(len(group) != 1 for group in groups):
        raise refused("columns were added to those of its files", _SAVE)
    return [_block_of(group[0]) for group in groups if group[0].num_rows]


_SAVE = "dataset.save_to_disk(...), and datasets.load_from_disk(...) gives one that is stored in files"


def _block_of(block: Any) -> _Block:
    path = getattr(block, "path", None)
    if path is None:
        raise refused("its rows are in memory and in no file", _SAVE)
    stored = datasets_library().table.MemoryMappedTable.from_file(path)
    first, stop = 0, stored.num_rows
    columns = [(name, name) for name in stored.column_names]
    types = {name: stored.schema.field(name).type for name in stored.column_names}
    for name, args, kwargs in block.replays:
        given = [*args, *kwargs.values()]
        if name == "slice":
            first, stop = _sliced(first, stop, *given)
        elif name == "rename_columns":
            columns = [(new, old) for new, (_, old) in zip(given[0], columns, strict=True)]
        elif name == "select":
            columns = [_column(columns, wanted) for wanted in given[0]]
        elif name in {"drop", "drop_columns"}:
            dropped = [given[0]] if isinstance(given[0], str) else given[0]
            columns = [pair for pair in columns if pair[0] not in dropped]
        elif name == "remove_column":
            columns = [*columns[: given[0]], *columns[given[0] + 1 :]]
        elif name == "cast":
            _refuse_other_types(columns, types, given[0])
        elif name not in _HARMLESS:
            raise refused(f"{name}() changed its columns after they were written", _SAVE)
    is_plain = columns == [(name, name) for name in stored.column_names]
    return _Block(str(path), stored.num_rows, first, stop, dict(columns), is_plain)


def _sliced(first: int, stop: int, offset: int = 0, length: int | None = None) -> tuple[int, int]:
    begin = first + offset
    return begin, stop if length is None else min(stop, begin + length)


def _column(columns: Sequence[tuple[str, str]], wanted: str | int) -> tuple[str, str]:
    return columns[wanted] if isinstance(wanted, int) else next(pair for pair in columns if pair[0] == wanted)


def _refuse_other_types(columns: Sequence[tuple[str, str]], types: Mapping[str, Any], schema: Any) -> None:
    for new, old in columns:
        wanted = schema.field(new).type
        if wanted != types[old]:
            raise refused(f"cast() makes {wanted} of {new!r}, which is {types[old]} in the file", _SAVE)


def _names_of(blocks: Sequence[_Block], parts: Sequence[Any]) -> Mapping[str, str] | None:
    """Return the columns that all blocks have, restricted to those that ``set_format`` kept."""
    names = blocks[0].names
    if any(block.names != names for block in blocks):
        raise refused("its files have different columns", _SAVE)
    shown = parts[0].format["columns"]
    if all(block.is_plain for block in blocks) and set(shown) == set(names):
        return None
    return {name: names[name] for name in shown}


def refuse_decoding(features: Mapping[str, Any]) -> None:
    """Raise `UsageError` if the library would decode a column into pictures, sounds or the like."""
    needing = datasets_library().features.features.require_decoding
    for name, feature in features.items():
        if needing(feature):
            cast = f"dataset.cast_column({name!r}, {type(feature).__name__}(decode=False))"
            raise refused(f"{name!r} is decoded by the library", f"{cast}, and map() what it holds: bytes and a path")
