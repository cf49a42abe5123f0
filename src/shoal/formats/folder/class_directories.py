"""Directories of classes and splits, by their names alone.

A class is the first directory below the root, as in torchvision's ``ImageFolder``. If directories of splits lie
between (``train/cat``, ``val/cat``), it is the first directory below a split.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from shoal.errors import SourceError
from shoal.figures import counted

CLASS_FIELD = "cls"
"""The field of a sample, and the column of an index, for the number of a class; tar readers decode this name."""

_KINDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}

KIND_OF_SPLIT = {word: kind for kind, words in _KINDS.items() for word in words}
"""The kind of split that each word names."""

SPLIT_WORD = re.compile(rf"(?:^|[-._ 0-9/])({'|'.join(KIND_OF_SPLIT)})(?=$|[-._ 0-9/])", re.IGNORECASE)
"""A word counts if separators or digits surround it, as in `coco-train-0000.tar`, not inside another (`latest`)."""


def kind_in(text: str) -> str | None:
    """Return the kind of split that a word of the text names; None if there is none.

    >>> kind_in("imagenet-val"), kind_in("latest")
    ('validation', None)
    """
    match = SPLIT_WORD.search(text)
    return KIND_OF_SPLIT[match[1].lower()] if match else None


def directory_of_split(name: str) -> str:
    """Return the path up to the first directory named after a split; empty if there is none.

    >>> directory_of_split("images/train/cat/1.jpg"), directory_of_split("cat/train.jpg")
    ('images/train', '')
    """
    parts = name.split("/")[:-1]
    depth = next((depth for depth, part in enumerate(parts, 1) if kind_in(part)), 0)
    return "/".join(parts[:depth])


def class_directory(name: str, *, below_splits: bool = False) -> str:
    """Return a file's class: the first directory in its name; empty if the file lies in none.

    >>> class_directory("cat/2020/1.jpg"), class_directory("train/cat/1.jpg", below_splits=True)
    ('cat', 'cat')
    """
    if below_splits:
        split = directory_of_split(name)
        name = name[len(split) + 1 :] if split else ""
    first, slash, _ = name.partition("/")
    return first if slash else ""


def lie_below_splits(names: Iterable[str]) -> bool:
    """Return True if class directories lie below split directories: several kinds of splits, or one with all files.

    A class "train" beside other classes is not a split, nor is a directory that holds files directly. Files outside any
    directory are ignored.

    >>> lie_below_splits(["train/cat/1.jpg", "val/cat/1.jpg"]), lie_below_splits(["train/1.jpg", "cat/1.jpg"])
    (True, False)
    """
    splits = {name: directory_of_split(name) for name in names if class_directory(name)}
    kinds = {kind_in(split.rpartition("/")[2]) for split in splits.values()}
    is_deeper = any(split and "/" in name[len(split) + 1 :] for name, split in splits.items())
    return is_deeper and (len(kinds - {None}) > 1 or None not in kinds)


@dataclass(frozen=True, slots=True)
class ClassDirectories:
    """The names of classes, sorted, by their numbers; they lie in the directories of splits if ``below_splits``."""

    names: tuple[str, ...]
    below_splits: bool = False

    def numbers_of(self, names: Iterable[str]) -> list[int]:
        """Return the class number of each file; -1 if the file is outside the class directories."""
        numbers = {name: number for number, name in enumerate(self.names)}
        return [numbers.get(class_directory(name, below_splits=self.below_splits), -1) for name in names]


def refuse_strays(outside: Iterable[tuple[str, str]], kinds_inside: Collection[str], *, root: str, hint: str) -> None:
    """Raise `SourceError` if a file outside of the classes has a kind that occurs inside the classes.

    ``outside`` are names and kinds. Files of other kinds (a list of the classes, a README) are left out.
    """
    if strays := [name for name, kind in outside if kind in kinds_inside]:
        lie = f"{strays[0]} lies" if len(strays) == 1 else f"{counted(len(strays), 'file')} lie"
        first = "" if len(strays) == 1 else f" ({strays[0]} is the first)"
        raise SourceError(f"{root}: {lie} outside of the class directories{first}", hint=hint)
