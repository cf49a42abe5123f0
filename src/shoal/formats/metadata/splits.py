"""The splits of a dataset, declared by its own files or implied by the names of its shards.

Names follow the conventions of Hugging Face ``datasets`` (``train/``, ``data/train-00000-of-00005.parquet``).
``dataset_dict.json`` (``DatasetDict.save_to_disk``) and Megatron Energon's ``.nv-meta/split.yaml`` declare splits.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import SourceError, UsageError
from shoal.formats.folder.class_directories import KIND_OF_SPLIT, SPLIT_WORD, directory_of_split, kind_in
from shoal.hints import pip_install
from shoal.index.shard_scan import Buffer

DATASET_DICT = "dataset_dict.json"
ENERGON_SPLITS = (".nv-meta/split.yaml", ".nv-meta/split.json")

_PUSHED = re.compile(r"^([\w.]+)-\d{5,}-of-\d{5,}[-.]")


@dataclass(frozen=True, slots=True)
class Splits:
    """The shards of each split, by name relative to the dataset; ``source`` names the origin of the splits.

    ``is_declared`` is true if a file of the dataset lists the splits. ``directories`` has the directory of each split
    that has a directory of its own. ``left_out`` has, by shard, the keys of single samples that belong to no split.
    """

    source: str
    parts: Mapping[str, tuple[str, ...]]
    is_declared: bool = False
    directories: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def filled(self) -> list[str]:
        """Names of the splits that have shards."""
        return [name for name, shards in self.parts.items() if shards]

    @property
    def must_be_chosen(self) -> bool:
        """True if reading all shards would mix declared splits, or several kinds of splits implied by names."""
        return len(self.filled if self.is_declared else {kind_in(name) or name for name in self.filled}) > 1

    def named(self, name: str) -> str | None:
        """Return the split of this name, or the only split of this kind (``val`` for "validation"); else None."""
        if name in self.parts:
            return name
        kind = KIND_OF_SPLIT.get(name.lower())
        alike = [split for split in self.parts if kind is not None and kind_in(split) == kind]
        return alike[0] if len(alike) == 1 else None

    def __str__(self) -> str:
        """List the splits with their numbers of files."""
        counts = (f"{name} ({len(shards)} file{'s' * (len(shards) != 1)})" for name, shards in self.parts.items())
        return ", ".join(counts)


def splits_in_names(names: Sequence[str]) -> Splits | None:
    """Return the splits that the names of directories or files imply; None if there are none; O(names).

    >>> splits_in_names(["train/a.tar", "val/a.tar", "train/b.tar"]).parts
    {'train': ('train/a.tar', 'train/b.tar'), 'val': ('val/a.tar',)}
    >>> str(splits_in_names(["data/train-00000-of-00001.parquet", "data/extra-00000-of-00001.parquet"]))
    'train (1 file), extra (1 file)'
    >>> splits_in_names(["latest.tar", "trainer.tar"])
    """
    by_directory = [directory_of_split(name) for name in names]
    if any(by_directory):
        parts = _grouped(names, [path.rpartition("/")[2] for path in by_directory])
        paths = {path.rpartition("/")[2]: path for path in by_directory if path}
        # The same name twice, as in en/train and fr/train, is one split of several directories.
        single = {
            name: path for name, path in paths.items() if all(part.startswith(f"{path}/") for part in parts[name])
        }
        return Splits("directories", parts, directories=single)
    files = [name.rpartition("/")[2] for name in names]
    words = [match[1] if (match := SPLIT_WORD.search(file)) else "" for file in files]
    if not any(words):
        return None
    pushed = [_PUSHED.match(file) for file in files]
    if all(pushed):  # push_to_hub() names every file after its split, also if the split has an unusual name
        words = [match[1] for match in pushed if match]
    return Splits("file names", _grouped(names, words))


def splits_in_dataset_dict(data: Buffer, names: Sequence[str], *, path: str) -> Splits:
    """Return the splits of a saved ``DatasetDict``, one directory each.

    Raises `SourceError` if ``save_to_disk`` did not write the file.
    """
    splits = _texts(_mapping(json.loads, data, path).get("splits"))
    if not splits:
        msg = f"{path}: it has no list of splits"
        raise SourceError(msg, hint="save the dataset again, or name the directory of one split")
    parts = {split: tuple(name for name in names if name.startswith(f"{split}/")) for split in splits}
    return Splits(DATASET_DICT, parts, True, {split: split for split in splits})


def splits_in_energon(
    data: Buffer, names: Sequence[str], *, path: str, expand: Callable[[str], Iterable[str]]
) -> Splits:
    """Return the splits of a dataset prepared by Energon, without the excluded shards and samples.

    ``names`` are the existing shards; ``expand`` expands the braces in the names in the file. Raises `SourceError` if
    Energon did not write the file, or a shard does not exist; `UsageError` if the file is YAML, and PyYAML is missing.
    """
    declared = _mapping(json.loads if path.endswith(".json") else _yaml, data, path)
    parts, excluded = declared.get("split_parts"), _texts(declared.get("exclude"))
    listed = {str(split): _texts(shards) for split, shards in parts.items()} if isinstance(parts, Mapping) else {}
    if not listed or None in listed.values():
        msg = f"{path}: the file has no split_parts, the lists of shards by split"
        raise SourceError(msg, hint="prepare the dataset with Energon again, or name the shards by a glob")
    if excluded is None:
        msg = f"{path}: exclude is not a list of shards and samples"
        raise SourceError(msg, hint="list them as Energon does: shards/000.tar or shards/000.tar/KEY")
    existing = set(names)
    excluded_names = {name for text in excluded for name in expand(text)}
    splits = {
        split: tuple(name for text in shards or () for name in expand(text) if name not in excluded_names)
        for split, shards in listed.items()
    }
    missing = [name for shards in splits.values() for name in shards if name not in existing]
    if missing:
        msg = f"{path} names {len(missing)} shards that do not exist; the first is {missing[0]}"
        raise SourceError(msg, hint="copy these shards too, or remove them from the file")
    left_out = _samples_in(excluded_names - existing, existing, path)
    return Splits("/".join(path.rsplit("/", 2)[1:]), splits, True, left_out=left_out)


def _samples_in(texts: Iterable[str], shards: set[str], path: str) -> dict[str, frozenset[str]]:
    """Return excluded keys by shard, from entries ``shards/000.tar/KEY``; entries of excluded shards are dropped."""
    keys_by_shard: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        shard, mark, key = text.partition(".tar/")
        if mark and f"{shard}.tar" in shards:
            keys_by_shard[f"{shard}.tar"].add(key)
        elif not text.endswith(".tar") and not mark:
            msg = f"{path}: exclude has {text!r}, which is neither a shard nor a sample in a shard"
            raise SourceError(msg, hint="write shards/000.tar, or shards/000.tar/KEY")
    return {shard: frozenset(keys) for shard, keys in keys_by_shard.items()}


def _grouped(names: Sequence[str], splits: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Group names by split, in order of first appearance; names without a split are left out."""
    parts: dict[str, list[str]] = defaultdict(list)
    for name, split in zip(names, splits, strict=True):
        if split:
            parts[split].append(name)
    return {split: tuple(shards) for split, shards in parts.items()}


def _mapping(load: Callable[[Any], Any], data: Buffer, path: str) -> Mapping[str, Any]:
    try:
        document = load(bytes(data).decode())
    except (ValueError, RecursionError) as error:
        document, problem = None, f"it cannot be read: {error}"
    else:
        problem = f"it holds {type(document).__name__}, but should map names to values"
    if isinstance(document, Mapping):
        return document
    raise SourceError(f"{path}: {problem}", hint="repair it, or name the shards by a glob")


def _yaml(text: str) -> Any:
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        msg = "this dataset declares its splits in YAML, but PyYAML is not installed"
        raise UsageError(msg, hint=f"{pip_install('pyyaml')}, or name the shards by a glob") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _texts(value: Any) -> list[str] | None:
    """Return a list of strings, with an empty list for None; None for any other value."""
    texts = [] if value is None else value
    return texts if isinstance(texts, list) and all(isinstance(text, str) for text in texts) else None
