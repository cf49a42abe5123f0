"""Selection of files whose samples have all required fields: ``--require jpg,cls`` keeps stray files out.

Files are chosen by name, before classes are determined: a README beside the class directories would keep these from
being classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.hints import did_you_mean

CLASS_FIELDS = ("cls", "label", "class")
"""Names for the one field that does not come from a file: the class by directory."""

_MOST_NAMED = 10


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """``numbers`` of the files that are packed, and name and reason of each sample left out."""

    numbers: NDArray[np.int64]
    left_out: tuple[tuple[str, str], ...]


def lacking_in(fields: Iterable[str], required: Sequence[str]) -> list[str]:
    """Return the required fields that are missing; ``"jpg;png"`` means either.

    >>> lacking_in(["png", "json"], ["jpg;png", "txt"])
    ['txt']
    """
    there = set(fields)
    return [names for names in required if there.isdisjoint(names.split(";"))]


def chosen_files(
    names: Sequence[str],
    required: Sequence[str],
    *,
    named: Callable[[str], tuple[str, str]],
    grouped: bool,
    skips: bool,
) -> Chosen:
    """Choose the files of samples that have all ``required`` fields; ``named`` gives the key and field of a file.

    Raises
    ------
    UsageError
        Some samples lack one and may not be skipped; or all lack one.
    """
    pairs = [named(name) for name in names]
    fields: dict[str, list[str]] = {}
    for number, (key, field) in enumerate(pairs):
        fields.setdefault(key if grouped else str(number), []).append(field)
    of_files = [name for name in required if name not in CLASS_FIELDS]
    lacking = {key: missing for key, there in fields.items() if (missing := lacking_in(there, of_files))}
    if lacking:
        first_names = dict(reversed([(pairs[i][0] if grouped else str(i), name) for i, name in enumerate(names)]))
        _refuse(lacking, first_names, fields, grouped=grouped, skips=skips)
    keys = [key for key, _ in pairs] if grouped else [str(number) for number in range(len(pairs))]
    kept = np.array([number for number, key in enumerate(keys) if key not in lacking], dtype=np.int64)
    left_out = tuple((first_names[key], f"it has no {' and no '.join(missing)}") for key, missing in lacking.items())
    return Chosen(kept, left_out)


def _refuse(
    lacking: Mapping[str, Sequence[str]],
    first_names: Mapping[str, str],
    fields: Mapping[str, Sequence[str]],
    *,
    grouped: bool,
    skips: bool,
) -> None:
    if skips and len(lacking) < len(fields):
        return
    some = ", ".join(f"{first_names[key]!r} ({', '.join(lacking[key])})" for key in list(lacking)[:_MOST_NAMED])
    more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
    msg = f"{len(lacking)} of {len(fields)} inputs lack what --require asks for: {some}{more}"
    hint = "--on-error skip leaves them out, counts and lists them (on_error='skip' in Python)"
    if len(lacking) == len(fields):
        known = {field for there in fields.values() for field in there}
        unknown = next((name for missing in lacking.values() for name in missing if name not in known), "")
        joins = "" if grouped else "; --group joins files of one name to a sample"
        hint = f"{did_you_mean(unknown, known)}the fields are the suffixes of files{joins}"
    raise UsageError(msg, hint=hint)
