"""The contents of a mixture file in any format: sources and shares, before any source is opened."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from shoal.formats.metadata.marked_yaml import Marked
from shoal.storage.urls import parent, scheme_of

SHARES = ("weight", "repeat", "choose")
"""Keys for the share of a source; a file uses one key, or repeat and choose."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceEntry:
    """One source: the dataset at ``path``, or the mixture ``inner``.

    Parameters
    ----------
    where
        The place in the file, for errors.
    share
        A key of `SHARES` and its value; None for a share by size.
    opening
        Arguments of `shoal.open`: split, index, format, storage_options, index_columns.
    fields
        Fields to add to each sample.
    """

    where: Marked
    path: str | list[str] = ""
    inner: MixtureEntry | None = None
    share: tuple[str, Fraction] | None = None
    opening: Mapping[str, Any] = field(default_factory=dict)
    select: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = ()
    shuffle: Mapping[str, Any] | None = None
    max_repeats: Fraction | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ChangeEntry:
    """Weights from a position on."""

    where: Marked
    at: int
    ramp: int
    weights: Mapping[str, Fraction]


@dataclass(frozen=True, slots=True, eq=False)
class MixtureEntry:
    """A mixture: its sources by name, and arguments of `shoal.mix`; ``shuffle`` has arguments of `Dataset.shuffle`.

    With ``is_sized``, an epoch has as many samples as all sources together.
    """

    where: Marked
    sources: Mapping[str, SourceEntry]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ends: str = "first"
    max_repeats: Fraction | None = None
    shuffle: Mapping[str, Any] | None = None
    changes: Sequence[ChangeEntry] = ()
    is_sized: bool = False


def beside(file: str, text: str) -> str:
    """Return the path or URL to open: a relative path is relative to the directory of the file.

    >>> beside("s3://bucket/mixes/blend.yaml", "../web/*.tar"), beside("/data/blend.yaml", "gs://other/a.tar")
    ('s3://bucket/web/*.tar', 'gs://other/a.tar')
    """
    if "::" in text:
        return "::".join(beside(file, part) for part in text.split("::"))
    if scheme_of(text) or Path(text).is_absolute() or text.startswith(("~", "pipe:")):
        return text
    if not scheme_of(file):
        return os.path.normpath(Path(file).absolute().parent / text)
    directory = parent(file)
    while text.startswith(("./", "../")):
        directory = parent(directory) if text.startswith("../") else directory
        text = text.partition("/")[2]
    return f"{directory.rstrip('/')}/{text}"


def named_after(paths: Sequence[str]) -> list[str]:
    """Return names for sources without names, from the ends of their paths; equal names are numbered.

    >>> named_after(["data/coco", "data/coyo/*.tar", "./coco/", "."])
    ['coco', 'coyo', 'coco-2', 'source']
    """
    names: list[str] = []
    for path in paths:
        words = [word for word in path.replace("\\", "/").partition("://")[2 * ("://" in path)].split("/") if word]
        plain = [word for word in words if not set(word) & set("*?[{") and word.strip(".")]
        name = posixpath.splitext(plain[-1])[0] if plain else "source"
        same = sum(other == name or other.rpartition("-")[0] == name for other in names)
        names.append(f"{name}-{same + 1}" if same else name)
    return names
