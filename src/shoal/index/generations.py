"""Generations of an index: shards are appended after all others, so each earlier generation is its first shards.

The metadata of an index lists its generations under ``generations``, the oldest first, the index itself last. Sample
ids of a generation stay in all later ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.index.assembly import first_shards, joined, subset
from shoal.index.table import Index

GENERATIONS = "generations"
"""Key in the metadata of an index."""

TEXTS = "texts"
"""Key in the metadata of an index: the sorted texts behind the numbers of each column of texts."""

_OF_SHARDS = ("digests", "plan", "marks", "frames")  # metadata of a packing about the bytes of its own shards


class Generation(NamedTuple):
    """One line of the metadata: the identity and the sizes of an index, and the time it was made, "" if unknown."""

    fingerprint: str
    num_shards: int
    num_samples: int
    created: str = ""


def generations_of(index: Index) -> list[Generation]:
    """Return the recorded generations, the oldest first and the index itself last; wrong records are left out."""
    recorded = index.metadata.get(GENERATIONS)
    generations = [line for line in _lines(recorded) if line.num_shards < index.num_shards]
    created = [line.created for line in _lines(recorded) if line.fingerprint == index.fingerprint]
    return [*generations, Generation(index.fingerprint, index.num_shards, index.num_samples, *created[:1])]


def _lines(recorded: Any) -> Iterator[Generation]:
    """Yield the valid lines of a record, which may come from a file of a stranger."""
    for line in recorded if isinstance(recorded, list) else ():
        if not isinstance(line, Mapping):
            continue
        values = [line.get(name) for name in Generation._fields]
        if all(type(value) is kind for value, kind in zip(values, (str, int, int, str), strict=True)):
            yield Generation(*values)  # type: ignore[arg-type]  # compared above


def first_generation(index: Index, num_shards: int) -> Index:
    """Return the index of the first shards, with the generations up to these shards; see `first_shards`."""
    if num_shards == index.num_shards:
        return index
    return first_shards(index, num_shards, metadata=_metadata_of_first(index, num_shards))


def _metadata_of_first(index: Index, num_shards: int) -> dict[str, Any]:
    metadata = dict(index.metadata)
    lines = [line._asdict() for line in _lines(metadata.pop(GENERATIONS, None)) if line.num_shards <= num_shards]
    return metadata | ({GENERATIONS: lines} if lines else {})


def appended(index: Index, new: Index | None, *, without: Sequence[int] = (), created: str = "") -> Index:
    """Return an index with the shards of ``new`` after its own; old rows are copied as columns, and nothing is read.

    Shards of the numbers ``without`` are left out: later shards then have other sample ids, and only generations
    before the first of these shards remain. ``new`` must have the same columns. Texts of both are renumbered if new
    texts sort between known ones. The metadata records the generations.

    Raises `UsageError`: formats or columns differ, or a shard has the name of another.
    """
    missing = set(without)
    base = index
    if missing:
        base = subset(index, [number for number in range(index.num_shards) if number not in missing])
    first_missing = min(missing, default=index.num_shards)
    lines = [line for line in generations_of(index) if line.num_shards <= first_missing]
    parts = [base] if new is None else [base, new]
    if new is not None and (twice := set(base.shard_names) & set(new.shard_names)):
        raise UsageError(f"{counted(len(twice), 'shard')} to append is in the index already, first {min(twice)}")
    texts, parts = _with_common_texts(parts)
    metadata = {name: value for name, value in index.metadata.items() if name not in _OF_SHARDS}
    if texts:
        metadata[TEXTS] = texts
    result = joined(parts, metadata=metadata)
    created = created or datetime.now(UTC).isoformat(timespec="seconds")
    lines += [Generation(result.fingerprint, result.num_shards, result.num_samples, created)]
    return replace(result, metadata={**metadata, GENERATIONS: [line._asdict() for line in lines]})


@dataclass(frozen=True, slots=True)
class _Renumbering:
    """New numbers of the texts of a column."""

    numbers: NDArray[np.int32]

    def of(self, column: NDArray[Any]) -> NDArray[Any]:
        is_same = bool((self.numbers == np.arange(len(self.numbers))).all())
        return column if is_same or not len(column) else self.numbers[column].astype(column.dtype)


def _with_common_texts(parts: list[Index]) -> tuple[dict[str, list[str]], list[Index]]:
    """Return the sorted texts of all parts by column, and the parts with columns that count these texts."""
    known = [dict(part.metadata.get(TEXTS, {})) for part in parts]
    texts = {name: sorted({text for each in known for text in each.get(name, ())}) for each in known for name in each}
    renumbered = []
    for part, own in zip(parts, known, strict=True):
        columns = dict(part.columns)
        for name in texts:
            if name not in columns:
                continue
            if name not in own:
                msg = f"the column {name!r} holds texts in one index, and numbers in the other"
                raise UsageError(msg, hint="all shards need the same columns")
            places = {text: number for number, text in enumerate(texts[name])}
            columns[name] = _Renumbering(np.array([places[text] for text in own[name]], np.int32)).of(columns[name])
        renumbered.append(replace(part, columns=columns))
    return texts, renumbered
