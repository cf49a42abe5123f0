"""The fields that samples of files have, and those that lack what most have: stray files beside the data.

Fields are named by the suffixes of files, as in tar shards, whatever the format. A batch that holds one sample without
a field that the others have becomes lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.index.table import Index
from shoal.pack.shard_plan import PackPlan

__all__ = ["FIELDS", "FieldSets", "SampleFields", "counted_fields", "sets_of_fields"]

FIELDS = "fields"
"""In the metadata of an index: what `SampleFields.to_dict` gives."""

_MOST_NAMED = 10


@dataclass(frozen=True, slots=True, eq=False)
class FieldSets:
    """The fields of each input: input ``i`` has ``sets[codes[i]]``; ``codes``, int32, has the shape (num_inputs,)."""

    sets: Sequence[tuple[str, ...]]
    codes: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SampleFields:
    """How many samples have each field, most first, and which lack one of the ``usual``: those of more than half.

    ``first_without_usual`` are the names of the first ten inputs that do.
    """

    counts: Mapping[str, int]
    usual: tuple[str, ...]
    num_without_usual: int
    first_without_usual: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the metadata of an index."""
        return {
            "counts": dict(self.counts),
            "usual": list(self.usual),
            "num_without_usual": self.num_without_usual,
            "first_without_usual": list(self.first_without_usual),
        }

    @classmethod
    def of_index(cls, index: Index) -> SampleFields | None:
        """What the metadata of an index says; None where it says nothing."""
        said = index.metadata.get(FIELDS)
        if not isinstance(said, Mapping):
            return None
        usual, first = said.get("usual", ()), said.get("first_without_usual", ())
        return cls(said.get("counts", {}), tuple(usual), int(said.get("num_without_usual", 0)), tuple(first))


def sets_of_fields(fields: Iterable[tuple[str, ...] | str]) -> FieldSets:
    """Of the fields of each input, in their order; a text is one field.

    >>> found = sets_of_fields(["jpg", "db", "jpg"])
    >>> found.sets, found.codes.tolist()
    ([('jpg',), ('db',)], [0, 1, 0])
    """
    known: dict[Hashable, int] = {}
    codes = np.fromiter((known.setdefault(each, len(known)) for each in fields), dtype=np.int32)
    return FieldSets([each if isinstance(each, tuple) else (str(each),) for each in known], codes)


def counted_fields(
    found: FieldSets | None, plan: PackPlan, parts: Sequence[Index], *, name: Callable[[int], str]
) -> SampleFields | None:
    """The fields of the samples that were packed: repeats count each time, what was skipped does not count."""
    if found is None:
        return None
    times = np.ones(len(found.codes), dtype=np.int64) if plan.repeats is None else plan.repeats.times
    left = times.copy()
    for number, part in enumerate(parts):
        if places := part.metadata["skipped_places"]:
            np.subtract.at(left, plan.inputs(number)[0][places], 1)
    of_sets = np.bincount(found.codes, weights=left, minlength=len(found.sets)).astype(np.int64).tolist()
    counts: Counter[str] = Counter()
    for fields, count in zip(found.sets, of_sets, strict=True):
        counts.update(dict.fromkeys(fields, count))
    ordered = {field: count for field, count in counts.most_common() if count}
    usual = tuple(field for field, count in ordered.items() if 2 * count > sum(of_sets))
    lacking = [code for code, fields in enumerate(found.sets) if not set(usual) <= set(fields)]
    without = np.flatnonzero(np.isin(found.codes, lacking) & (left > 0))
    first = tuple(name(number) for number in without[:_MOST_NAMED].tolist())
    return SampleFields(ordered, usual, sum(of_sets[code] for code in lacking), first)
