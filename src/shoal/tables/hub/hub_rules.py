"""Rules of the library ``datasets`` to find the configurations, splits and files of a repository on the Hub.

Pure functions of the paths of a repository and of the YAML of its README. The rules follow release 5.2; a test compares
them with the library.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from posixpath import basename, dirname, join
from typing import Any

from shoal.errors import SourceError
from shoal.hints import did_you_mean

Match = Callable[[str, str], bool]
"""A function of a pattern and a path, true if the pattern of fsspec matches the path."""

_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SEPARATORS = "-._ 0-9"
_IN_DIRECTORIES = ("**/{word}/**", "**/{word}[{sep}]*/**", "**/*[{sep}]{word}/**", "**/*[{sep}]{word}[{sep}]*/**")
_IN_FILES = ("**/{word}[{sep}]*", "**/*[{sep}]{word}[{sep}]*")
_NUMBERED = re.compile(r"^data/(?P<split>[^/]*)-\d{5}-of-\d{5}[^/]*\.[^/]*$")
_SPLIT_NAME = re.compile(r"^\w+(\.\w+)*$")
_NO_DATA = frozenset(
    ("README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json")
)
_WITH_MAGIC = re.compile(r"[*?\[]")

# The kind of files by suffix. A draw between suffixes is decided by this order, and then by the alphabet, backwards.
_FAVOURITES = (".csv", ".json", ".jsonl", ".arrow", ".vortex", ".lance", ".parquet")
_IMAGES = ".bmp .gif .jfif .jpe .jpeg .jpg .jp2 .pbm .pgm .png .pnm .ppm .tif .tiff .webp"
_AUDIO = ".3gp .aiff .au .flac .flv .m4v .mp3 .ogg .opus .wav .webm .wma .wmv"
_SUFFIXES = {
    "csv": (".csv",),
    "tsv": (".tsv",),
    "json": (".json", ".jsonl", ".ndjson"),
    "parquet": (".parquet", ".geoparquet", ".gpq"),
    "arrow": (".arrow",),
    "text": (".txt",),
    "webdataset": (".tar",),
    "audio": tuple(_AUDIO.split()),
    "video": (".mkv", ".mp4", ".avi", ".mov"),
    "images": tuple(_IMAGES.split()),
    "lance": (".lance",),
    "zip": (".zip",),
    "other": (".xml", ".hdf5", ".h5", ".eval", ".vortex", ".conll", ".conllu", ".pdf", ".tsfile", ".toml", ".md"),
}
KIND_OF_SUFFIX: Mapping[str, str] = {suffix: kind for kind, all_ in _SUFFIXES.items() for suffix in all_}
_TABLES_OF_FOLDERS = frozenset(("metadata.csv", "metadata.jsonl", "metadata.parquet"))
FOLDERS = ("images", "audio", "video")


@dataclass(frozen=True, slots=True)
class HubConfig:
    """One configuration: its name, the files of each split in order, the kind of files, and further options."""

    name: str
    splits: Mapping[str, tuple[str, ...]]
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


def config_of(
    paths: Sequence[str], card: Mapping[str, Any], wanted: str | None, *, matches: Match, what: str
) -> HubConfig:
    """Return the wanted configuration of a repository with these ``paths``, or its default one.

    ``card`` is the YAML of the README, and ``what`` names the repository in errors.

    Raises `SourceError`: no such configuration, several without a choice, or files of no known kind.
    """
    files = _Files(sorted(paths), matches, what)
    configs = _declared(card, what)
    name = _chosen(configs, wanted, what)
    first = next(iter(configs.values()), {})
    kind = files.kind_of(files.splits({key: value for key, value in first.items() if key == "data_files"}))
    chosen = configs.get(name, {})
    splits = files.of_kind(files.splits(chosen), kind)
    if not any(splits.values()):
        msg = f"{what}: no file of the configuration {name!r} is there"
        raise SourceError(msg, hint="name files by a glob: hf://datasets/OWNER/NAME/data/*.parquet")
    options = {key: value for key, value in chosen.items() if key not in ("data_files", "data_dir", "default")}
    return HubConfig(name, {split: files for split, files in splits.items() if files}, kind, options)


def _declared(card: Mapping[str, Any], what: str) -> dict[str, dict[str, Any]]:
    """Return the configurations of a README by name."""
    entries = card.get("configs") or []
    configs: dict[str, dict[str, Any]] = {}
    if not isinstance(entries, list):
        raise SourceError(f"{what}: configs in README.md is no list", hint="ask the owner of the dataset to mend it")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("config_name"), str):
            msg = f"{what}: a configuration in README.md has no config_name: {entry!r:.80}"
            raise SourceError(msg, hint="ask the owner of the dataset to mend it")
        configs[entry["config_name"]] = {key: value for key, value in entry.items() if key != "config_name"}
    return configs


def _chosen(configs: Mapping[str, Mapping[str, Any]], wanted: str | None, what: str) -> str:
    """Return the name of the wanted configuration: the only one, "default", or the one that is marked as default."""
    if wanted is not None and (wanted in configs or (not configs and wanted == "default")):
        return wanted
    names = ", ".join(configs) or "default"
    if wanted is not None:
        msg = f"{what}: there is no configuration {wanted!r}; the configurations are {names}"
        raise SourceError(msg, hint=did_you_mean(wanted, configs) + f"{what}#{next(iter(configs), 'default')}")
    if not configs:
        return "default"
    defaults = [
        name for name, entry in configs.items() if len(configs) == 1 or name == "default" or entry.get("default")
    ]
    if len(defaults) == 1:
        return defaults[0]
    msg = f"{what}: the configurations are {names}, and {'several are' if defaults else 'none is'} the default one"
    raise SourceError(msg, hint=f"choose one: {what}#{(defaults or list(configs))[0]}")


class _Files:
    """The files of a repository, sorted by path."""

    def __init__(self, paths: Sequence[str], matches: Match, what: str) -> None:
        self._paths, self._matches, self._what = paths, matches, what

    def splits(self, config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Return the files of each split of a configuration, by its patterns or by the usual names of splits."""
        directory = str(config.get("data_dir") or "").strip("/")
        declared = config.get("data_files")
        patterns = self._usual(directory) if declared is None else _by_split(declared, self._what)
        splits = {}
        for split, each in patterns.items():
            kept: dict[str, None] = {}
            for pattern in each:
                files = [path for path in self._matching(pattern, directory) if _suffixes(path) & KIND_OF_SUFFIX.keys()]
                if not files and not _WITH_MAGIC.search(pattern):
                    msg = f"{self._what}: README.md names the file {pattern!r}, which is missing or of no known kind"
                    raise SourceError(msg, hint="choose another revision or configuration")
                kept.update(dict.fromkeys(files))
            splits[split] = tuple(kept)
        return splits

    def kind_of(self, splits: Mapping[str, Sequence[str]]) -> str:
        """Return the kind of the files: of their most frequent suffix, which must be one for all splits."""
        kinds = {split: _kind(files) for split, files in splits.items()}
        if len(set(kinds.values())) > 1:
            listed = ", ".join(f"{kind or 'unknown'} in {split}" for split, kind in kinds.items())
            raise SourceError(
                f"{self._what}: splits have files of different kinds: {listed}", hint="name files by globs"
            )
        kind = next(iter(kinds.values()), "")
        if not kind:
            msg = f"{self._what}: no file has a suffix of a known kind"
            raise SourceError(msg, hint="name files by a glob and give format=")
        return kind

    def of_kind(self, splits: Mapping[str, Sequence[str]], kind: str) -> dict[str, tuple[str, ...]]:
        """Leave out files of other kinds, but the tables of folders of single files."""
        suffixes = set(_SUFFIXES[kind])

        def is_wanted(path: str) -> bool:
            return bool(_suffixes(path) & suffixes) or (kind in FOLDERS and basename(path) in _TABLES_OF_FOLDERS)

        return {split: tuple(path for path in files if is_wanted(path)) for split, files in splits.items()}

    def _usual(self, directory: str) -> dict[str, list[str]]:
        """Return the patterns of splits by the usual names of files and directories."""
        inside = [path[len(directory) + 1 :] if directory else path for path in self._in_directory(directory)]
        numbered = {match["split"] for path in inside if (match := _NUMBERED.match(path))}
        if numbered:
            if odd := sorted(name for name in numbered if not _SPLIT_NAME.match(name)):
                raise SourceError(f"{self._what}: {odd[0]!r} is no name of a split", hint="name files by a glob")
            known = [name for name in _KEYWORDS if name in numbered]
            digits = "[0-9]" * 5
            order = [*known, *sorted(numbered - set(known))]
            return {name: [f"data/{name}-{digits}-of-{digits}*.*"] for name in order}
        for shapes in (_IN_DIRECTORIES, _IN_FILES):
            usual = {
                split: [shape.format(word=word, sep=_SEPARATORS) for word in words for shape in shapes]
                for split, words in _KEYWORDS.items()
            }
            filled = [split for split, each in usual.items() if any(self._matching(one, directory) for one in each)]
            if filled:
                return {split: usual[split] for split in filled}
        return {"train": ["**"]}

    def _in_directory(self, directory: str) -> list[str]:
        return [path for path in self._paths if not directory or path.startswith(f"{directory}/")]

    def _matching(self, pattern: str, directory: str) -> list[str]:
        """Return the data files of a pattern, without hidden ones that the pattern does not name."""
        pattern = join(directory, pattern.removeprefix("./"))
        kept = _NO_DATA - {basename(pattern)}
        return [
            path
            for path in self._in_directory(directory)
            if basename(path) not in kept and self._matches(pattern, path) and not _is_hidden(path, pattern)
        ]


def _by_split(declared: Any, what: str) -> dict[str, list[str]]:
    """Return the patterns of ``data_files:`` by split: a text, a list of texts, or entries with split and path."""
    if isinstance(declared, str):
        return {"train": [declared]}
    if isinstance(declared, list) and all(isinstance(each, str) for each in declared):
        return {"train": declared}
    try:
        pairs = [(str(each["split"]), each["path"]) for each in declared]
        return {split: [path] if isinstance(path, str) else [str(one) for one in path] for split, path in pairs}
    except (TypeError, KeyError):
        msg = f"{what}: data_files in README.md is neither patterns nor splits with paths: {declared!r:.80}"
        raise SourceError(msg, hint="name files by a glob") from None


def _suffixes(path: str) -> set[str]:
    return {f".{part.lower()}" for part in basename(path).split(".")[1:]}


def _kind(files: Sequence[str]) -> str:
    counts = Counter(
        (f".{part.lower()}", basename(path) in _TABLES_OF_FOLDERS)
        for path in files
        for part in basename(path).split(".")[1:]
    )

    def rank(entry: tuple[tuple[str, bool], int]) -> tuple[Any, ...]:
        (suffix, is_table), count = entry
        return not is_table, count, _FAVOURITES.index(suffix) if suffix in _FAVOURITES else -1, suffix

    ranked = sorted(counts.items(), key=rank, reverse=True)
    return next((KIND_OF_SUFFIX[suffix] for (suffix, _), _ in ranked if suffix in KIND_OF_SUFFIX), "")


def _is_hidden(path: str, pattern: str) -> bool:
    """Return True if a part of the path begins with a dot, or a directory with two underscores, unlike the pattern."""

    def dots(text: str) -> int:
        return sum(part.startswith(".") and set(part) != {"."} for part in text.split("/"))

    def underscores(text: str) -> int:
        return sum(part.startswith("__") for part in dirname(text).split("/"))

    return dots(path) != dots(pattern) or underscores(path) != underscores(pattern)
