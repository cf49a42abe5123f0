"""Counts of the fields of samples from files, and samples that lack the usual fields: stray files beside the data.

In every format, fields are named by the suffixes of files, as in tar shards. A single sample without a field turns its
batch into lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.decoding.audio_and_video import AUDIO_SUFFIXES, VIDEO_SUFFIXES
from shoal.formats.decoding.images import IMAGE_SUFFIXES
from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.hints import did_you_mean
from shoal.index.table import Index
from shoal.pack.shards.shard_plan import PackPlan

FIELDS = "fields"
"""Metadata key of an index for the result of `SampleFields.to_dict`."""

_MOST_NAMED = 10
_MEDIA = (IMAGE_SUFFIXES, AUDIO_SUFFIXES, VIDEO_SUFFIXES)


@dataclass(frozen=True, slots=True, eq=False)
class FieldSets:
    """The fields of each input: input ``i`` has ``sets[codes[i]]``; ``codes``, int32, has the shape (num_inputs,)."""

    sets: Sequence[tuple[str, ...]]
    codes: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SampleFields:
    """Number of samples with each field, most frequent first, and of samples without all ``usual`` fields.

    ``usual`` fields occur in more than half of the samples. Pictures under several suffixes are one field,
    ``"jpg;png"``, unless a sample has two of them; audio and video likewise. ``first_without_usual`` names the first
    ten inputs that lack a usual field.

    Examples
    --------
    >>> shoal.pack.pack("pets", "packed", num_workers=1).fields
    SampleFields(counts={'txt': 200}, usual=('txt',), num_without_usual=0, first_without_usual=())
    """

    counts: Mapping[str, int]
    usual: tuple[str, ...]
    num_without_usual: int
    first_without_usual: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON, for the metadata of an index."""
        return asdict(self)

    @classmethod
    def of_index(cls, index: Index) -> SampleFields | None:
        """Read the counts from the metadata of an index; None if the metadata have no counts."""
        counts = index.metadata.get(FIELDS)
        if not isinstance(counts, Mapping):
            return None
        usual, first = counts.get("usual", ()), counts.get("first_without_usual", ())
        return cls(counts.get("counts", {}), tuple(usual), int(counts.get("num_without_usual", 0)), tuple(first))


def sets_of_fields(fields: Iterable[tuple[str, ...] | str]) -> FieldSets:
    """Build field sets from the fields of each input, in order; a string is a single field.

    >>> field_sets = sets_of_fields(["jpg", "db", "jpg"])
    >>> field_sets.sets, field_sets.codes.tolist()
    ([('jpg',), ('db',)], [0, 1, 0])
    """
    known: dict[Hashable, int] = {}
    codes = np.fromiter((known.setdefault(names, len(known)) for names in fields), dtype=np.int32)
    return FieldSets([names if isinstance(names, tuple) else (str(names),) for names in known], codes)


def counted_fields(
    field_sets: FieldSets | None, plan: PackPlan, skipped: NDArray[np.int64], *, name: Callable[[int], str]
) -> SampleFields | None:
    """Count the fields of the packed samples; each repeat counts, and ``skipped`` inputs do not."""
    if field_sets is None:
        return None
    left = np.ones(len(field_sets.codes), dtype=np.int64) if plan.repeats is None else plan.repeats.times.copy()
    np.subtract.at(left, skipped, 1)
    of_sets = np.bincount(field_sets.codes, weights=left, minlength=len(field_sets.sets)).astype(np.int64).tolist()
    counts: Counter[str] = Counter()
    for fields, count in zip(field_sets.sets, of_sets, strict=True):
        counts.update(dict.fromkeys(fields, count))
    ordered = {field: count for field, count in counts.most_common() if count}
    present = [fields for fields, count in zip(field_sets.sets, of_sets, strict=True) if count]
    usual = tuple(
        field for field in _with_alternatives(ordered, present)
        if 2 * sum(ordered[name] for name in field.split(";")) > sum(of_sets)
    )  # fmt: skip
    lacking = [code for code, fields in enumerate(field_sets.sets) if lacking_in(fields, usual)]
    without = np.flatnonzero(np.isin(field_sets.codes, lacking) & (left > 0))
    first = tuple(name(number) for number in without[:_MOST_NAMED].tolist())
    return SampleFields(ordered, usual, sum(of_sets[code] for code in lacking), first)


def _with_alternatives(fields: Iterable[str], sets: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the fields, with media of one kind joined to alternatives if no sample has two of them.

    >>> _with_alternatives(["jpg", "png", "json"], [("jpg", "json"), ("png", "json")])
    ['jpg;png', 'json']
    """
    kind_of = {field: next((kind for kind in _MEDIA if field in kind), (field,)) for field in fields}
    joined: list[str] = []
    for kind in dict.fromkeys(kind_of.values()):
        alike = [field for field, own in kind_of.items() if own is kind]
        are_apart = all(len(set(alike).intersection(own)) < 2 for own in sets)
        joined += [";".join(alike)] if are_apart else alike
    return joined


def lacking_in(fields: Iterable[str], required: Sequence[str]) -> list[str]:
    """Return the required fields that are missing; ``"jpg;png"`` means either.

    >>> lacking_in(["png", "json"], ["jpg;png", "txt"])
    ['txt']
    """
    present = set(fields)
    return [names for names in required if present.isdisjoint(names.split(";"))]


def _either_of(sets: Iterable[Sequence[str]], lacking: Mapping[str, Sequence[str]]) -> str:
    """Return the beginning of a hint: the required fields with alternative suffixes, such as ``jpg;png``."""
    present = list(dict.fromkeys(map(tuple, sets)))
    required = {names for missing in lacking.values() for names in missing}
    joined = _with_alternatives(dict.fromkeys(field for fields in present for field in fields), present)
    wider = [field for field in joined if any(set(names.split(";")) < set(field.split(";")) for names in required)]
    return "".join(f"{field!r} takes either; " for field in wider)


def chosen_files(
    names: Sequence[str],
    required: Sequence[str],
    *,
    named: Callable[[str], tuple[str, str]],
    grouped: bool,
    skips: bool,
) -> tuple[NDArray[np.int64], tuple[tuple[str, str], ...]]:
    """Choose the files of samples that have all ``required`` fields; ``named`` returns the key and field of a file.

    Files are chosen by name, before classes are determined: a README beside class directories would prevent classes.
    Returns the numbers of the files, and name and reason of each skipped sample. Raises `UsageError` if some samples
    lack a field and may not be skipped, or all lack a field.
    """
    pairs = [named(name) for name in names]
    keys = [key if grouped else str(number) for number, (key, _) in enumerate(pairs)]
    fields: dict[str, list[str]] = {}
    first_names: dict[str, str] = {}
    for key, name, (_, field) in zip(keys, names, pairs, strict=True):
        fields.setdefault(key, []).append(field)
        first_names.setdefault(key, name)
    of_files = [name for name in required if name != CLASS_FIELD]
    lacking = {key: missing for key, present in fields.items() if (missing := lacking_in(present, of_files))}
    if lacking and not (skips and len(lacking) < len(fields)):
        some = ", ".join(f"{first_names[key]!r} ({', '.join(lacking[key])})" for key in list(lacking)[:_MOST_NAMED])
        more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
        msg = f"{len(lacking)} of {len(fields)} inputs lack what require= asks for: {some}{more}"
        hint = f'{_either_of(fields.values(), lacking)}on_error="skip" leaves them out, counts and lists them'
        if len(lacking) == len(fields):
            known = {field for present in fields.values() for field in present}
            unknown = next((name for missing in lacking.values() for name in missing if name not in known), "")
            joins = "" if grouped else "; grouped=True joins files of one name to a sample"
            hint = f"{did_you_mean(unknown, known)}the fields are the suffixes of files{joins}"
        raise UsageError(msg, hint=hint)
    kept = np.array([number for number, key in enumerate(keys) if key not in lacking], dtype=np.int64)
    left_out = tuple((first_names[key], f"it has no {' and no '.join(missing)}") for key, missing in lacking.items())
    return kept, left_out
