"""The rows and columns of a `datasets.Dataset`, traced back to their Arrow files."""

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

    Raises `UsageError` if it is not installed, or older than 4.8: older versions do not pass the epoch to sources.
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
    """Files in order, with the number of rows of each, and the ascending numbers of chosen rows; None for all rows.

    ``names`` maps the names of columns to their names in the files; None if they are equal.
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

    O(files) for whole files, otherwise O(rows) in time and memory. Raises `UsageError` if rows are in memory, occur
    twice, or were changed.
    """
    blocks = [_blocks_of(part) for part in parts]
    all_blocks = [block for group in blocks for block in group]
    files: dict[str, int] = {}
    for block in all_blocks:
        files.setdefault(block.path, block.num_rows)
    if not files:
        raise refused("it has no rows", "select some rows")
    firsts = dict(zip(files, np.cumsum([0, *files.values()])[:-1].tolist(), strict=True))
    names = _names_of(all_blocks, parts)
    spans = [(block.path, block.first, block.stop) for block in all_blocks]
    if all(_indices_of(part) is None for part in parts) and spans == [(path, 0, rows) for path, rows in files.items()]:
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
        raise refused("columns were added to the columns of its files", _SAVE)
    return [_block_of(group[0]) for group in groups if group[0].num_rows]


_SAVE = "dataset.save_to_disk(...), and datasets.load_from_disk(...) returns a dataset in files"


def _block_of(block: Any) -> _Block:
    path = getattr(block, "path", None)
    if path is None:
        raise refused("its rows are in memory and in no file", _SAVE)
    stored = datasets_library().table.MemoryMappedTable.from_file(path)
    first, stop = 0, stored.num_rows
    columns = [(name, name) for name in stored.column_names]
    types = {name: stored.schema.field(name).type for name in stored.column_names}
    for name, args, kwargs in block.replays:
        arguments = [*args, *kwargs.values()]
        if name == "slice":
            first, stop = _sliced(first, stop, *arguments)
        elif name == "rename_columns":
            columns = [(new, old) for new, (_, old) in zip(arguments[0], columns, strict=True)]
        elif name == "select":
            columns = [_column(columns, chosen) for chosen in arguments[0]]
        elif name in {"drop", "drop_columns"}:
            dropped = [arguments[0]] if isinstance(arguments[0], str) else arguments[0]
            columns = [pair for pair in columns if pair[0] not in dropped]
        elif name == "remove_column":
            columns = [*columns[: arguments[0]], *columns[arguments[0] + 1 :]]
        elif name == "cast":
            _refuse_other_types(columns, types, arguments[0])
        elif name not in _HARMLESS:
            raise refused(f"{name}() changed its columns after they were written", _SAVE)
    is_plain = columns == [(name, name) for name in stored.column_names]
    return _Block(str(path), stored.num_rows, first, stop, dict(columns), is_plain)


def _sliced(first: int, stop: int, offset: int = 0, length: int | None = None) -> tuple[int, int]:
    begin = first + offset
    return begin, stop if length is None else min(stop, begin + length)


def _column(columns: Sequence[tuple[str, str]], chosen: str | int) -> tuple[str, str]:
    return columns[chosen] if isinstance(chosen, int) else next(pair for pair in columns if pair[0] == chosen)


def _refuse_other_types(columns: Sequence[tuple[str, str]], types: Mapping[str, Any], schema: Any) -> None:
    for new, old in columns:
        kind = schema.field(new).type
        if kind != types[old]:
            raise refused(f"cast() makes {kind} of {new!r}, which is {types[old]} in the file", _SAVE)


def _names_of(blocks: Sequence[_Block], parts: Sequence[Any]) -> Mapping[str, str] | None:
    """Return the columns that ``set_format`` kept, by name; None if these are the unchanged columns of the files."""
    names = blocks[0].names
    if any(block.names != names for block in blocks):
        raise refused("its files have different columns", _SAVE)
    shown = parts[0].format["columns"]
    if all(block.is_plain for block in blocks) and set(shown) == set(names):
        return None
    return {name: names[name] for name in shown}


def refuse_decoding(features: Mapping[str, Any]) -> None:
    """Raise `UsageError` if the library would decode a column into images or audio."""
    needs_decoding = datasets_library().features.features.require_decoding
    for name, feature in features.items():
        if needs_decoding(feature):
            cast = f"dataset.cast_column({name!r}, {type(feature).__name__}(decode=False))"
            raise refused(f"{name!r} is decoded by the library", f"{cast}, and map() its bytes and path")
