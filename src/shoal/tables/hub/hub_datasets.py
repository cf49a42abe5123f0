"""Datasets of the Hugging Face Hub by name: a revision is a version, and its README names configurations and splits."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from shoal.errors import SourceError, StorageError, UsageError
from shoal.formats.folder.reader import Folder
from shoal.formats.format_registry import format_of
from shoal.formats.rows.lines.delimited import Delimited
from shoal.formats.shard_format import Format
from shoal.hints import did_you_mean, pip_install
from shoal.indexing.described_folder import described_files
from shoal.indexing.manifests_beside import Described
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest, WantedVersion
from shoal.storage.retry import retried, rule_of
from shoal.storage.sources.source import Source
from shoal.storage.store_protocol import Store
from shoal.storage.urls import join
from shoal.tables.hub.hub_rules import FOLDERS, HubConfig, config_of

_log = logging.getLogger("shoal")
# A revision may be one of the Hub's own branches, with slashes in its name.
_NAME = re.compile(
    r"^(?:hf://)?datasets/(?P<owner>[^/@#?*\[{]+)/(?P<name>[^/@#?*\[{]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/#]+|[^/#?*\[{]+))?(?:\#(?P<config>[^#]+))?$"
)
_ALL = "all"
_CARDS = ("README.md", ".huggingface.yaml")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")
_DELIMITERS = ("sep", "delimiter")
_NOT_READ = {
    "lance": "open its directory by its own name: a path or URL that ends in .lance",
    "zip": "unpack the archives, or ask for tar",
    "other": "convert it to Parquet with the library datasets: load_dataset(...).push_to_hub(...)",
}


class HubName(NamedTuple):
    """The parts of ``hf://datasets/OWNER/NAME@REVISION#CONFIG``."""

    repository: str
    revision: str | None
    config: str | None

    @property
    def what(self) -> str:
        """The dataset with its revision, for errors and hints."""
        return f"hf://datasets/{self.repository}" + (f"@{self.revision}" if self.revision else "")


def hub_name(text: str) -> HubName | None:
    """Return the parts of a name; None if the text names files of a repository, or something else.

    >>> hub_name("hf://datasets/allenai/c4@main#en")
    HubName(repository='allenai/c4', revision='main', config='en')
    >>> hub_name("hf://datasets/allenai/c4/en/*.json.gz") is None
    True
    """
    match = _NAME.match(text)
    if match is None:
        return None
    revision = None if match["revision"] is None else unquote(match["revision"])
    return HubName(f"{match['owner']}/{match['name']}", revision, match["config"])


class HubDatasets:
    """The kind of table of the Hub: ``hf://datasets/OWNER/NAME``, with ``@REVISION`` and ``#CONFIG``."""

    name: str = "hf"

    def claims(self, source: str) -> bool:
        """Return True for the name of a dataset; other paths of the Hub are files."""
        return hub_name(source) is not None

    def snapshot(self, request: TableRequest) -> Snapshot:
        """Resolve a revision to its commit, and the files of a configuration and its splits at this commit."""
        named = hub_name(request.root)
        if named is None:
            raise SourceError(f"{request.root} is no dataset of the Hub", hint="hf://datasets/OWNER/NAME@REVISION")
        named = _with_version(named, request.wanted)
        store = request.store
        commit = retried(
            partial(_commit, named, request.storage_options),
            rule_of(request.storage_options),
            what=f"find {named.what}",
        )
        root = f"hf://datasets/{named.repository}@{commit}"
        paths = [info.path.removeprefix(f"{root}/") for info in store.list(root)]
        if not paths:
            raise SourceError(f"{named.what} has no files", hint="choose another revision")
        config = config_of(paths, _card(root, paths, store), named.config, matches=_matches, what=named.what)
        if config.kind in _NOT_READ:
            msg = f"{named.what}: its files are of a kind that shoal does not read in place ({config.kind})"
            raise SourceError(msg, hint=_NOT_READ[config.kind])
        described = _described(root, config, _splits(config, request.split, named.what), store)
        typed = f"{named.what}#{config.name}" if named.config else named.what
        source = replace(described.source, typed=typed)
        version = {"revision": commit, "config": config.name}
        return Snapshot(source, described.format or _format(source, config), version, rows=described.rows)


def _with_version(named: HubName, wanted: WantedVersion) -> HubName:
    """Return the name with the revision that ``version=`` gives."""
    if wanted.timestamp is not None or wanted.predicate is not None:
        argument = "timestamp" if wanted.timestamp is not None else "predicate"
        msg = f"{named.what}: {argument}= is not for datasets of the Hub"
        raise SourceError(msg, hint="name a branch, a tag or a commit: hf://datasets/OWNER/NAME@REVISION")
    if wanted.version is None:
        return named
    if isinstance(wanted.version, Mapping):  # of a snapshot
        return named._replace(revision=str(wanted.version["revision"]), config=str(wanted.version["config"]))
    if named.revision is not None:
        msg = f"{named.what}: version={wanted.version!r} is a second revision"
        raise UsageError(msg, hint="give the revision once")
    return named._replace(revision=str(wanted.version))


def _commit(named: HubName, options: Mapping[str, Any]) -> str:
    """Return the commit of a revision; a commit is looked up too, since a name of forty digits may be a branch."""
    try:
        from huggingface_hub import HfApi  # noqa: PLC0415  # optional, and slow to import
        from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("hf:// needs the package huggingface_hub", hint=pip_install("huggingface_hub")) from error
    api = HfApi(endpoint=options.get("endpoint"), token=options.get("token"))
    try:
        sha = api.dataset_info(named.repository, revision=named.revision).sha
    except RevisionNotFoundError:
        refs = api.list_repo_refs(named.repository, repo_type="dataset")
        known = [ref.name for ref in (*refs.branches, *refs.tags)]
        msg = f"the dataset {named.repository} has no revision {named.revision!r}"
        hint = did_you_mean(named.revision, known) + f"its branches and tags are {', '.join(known)}"
        raise SourceError(msg, hint=hint) from None
    except RepositoryNotFoundError:
        msg = f"the Hub has no dataset {named.repository!r}, or this token may not read it"
        raise SourceError(msg, hint='check the name; `hf auth login` or storage_options={"token": ...}') from None
    except (HfHubHTTPError, OSError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        is_transient = status is None or status == 429 or status >= 500
        msg = f"could not look up {named.what}: {type(error).__name__}"
        raise StorageError(
            msg, hint="this is an answer of the Hub, or there was none", transient=is_transient
        ) from None
    if not sha or not _COMMIT.match(sha):
        raise StorageError(f"the Hub names no commit of {named.what}", hint="try again later")
    return sha


def _card(root: str, paths: Sequence[str], store: Store) -> dict[str, Any]:
    """Return the YAML of a README, with the entries of a .huggingface.yaml in place of its own."""
    card: dict[str, Any] = {}
    for name in _CARDS:
        if name not in paths:
            continue
        path = join(root, name)
        text = store.read_range(path, 0, store.stat(path).num_bytes).decode("utf-8", errors="replace")
        if name == _CARDS[0]:
            lines = text.splitlines()
            if not lines or lines[0] != "---" or "---" not in lines[1:]:
                continue
            text = "\n".join(lines[1 : lines.index("---", 1)])
        card |= _yaml(text, path)
    return card


def _yaml(text: str, path: str) -> dict[str, Any]:
    try:
        import yaml  # noqa: PLC0415  # optional
    except ImportError as error:
        raise UsageError(f"{path} is YAML", hint=pip_install("pyyaml")) from error
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        msg = f"{path}: the YAML cannot be read: {error!s:.200}"
        raise SourceError(msg, hint="name files by a glob: hf://datasets/OWNER/NAME/data/*.parquet") from None
    return entries if isinstance(entries, dict) else {}


def _splits(config: HubConfig, split: str | Sequence[str] | None, what: str) -> list[str]:
    """Return the wanted splits of a configuration; the only one if none is named."""
    known = list(config.splits)
    if split is None:
        if len(known) == 1:
            return known
        msg = f"{what}: the configuration {config.name!r} has the splits {', '.join(known)}; choose one or more"
        raise SourceError(msg, hint=f'split="{known[0]}" reads one, split="{_ALL}" all')
    names = [split] if isinstance(split, str) else list(split)
    if names == [_ALL] and _ALL not in known:
        return known
    for name in names:
        if name not in known:
            msg = f"{what}: the configuration {config.name!r} has no split {name!r}; its splits are {', '.join(known)}"
            raise SourceError(msg, hint=did_you_mean(name, known) + "take() and skip() choose parts of a split")
    return names


def _described(root: str, config: HubConfig, splits: Sequence[str], store: Store) -> Described:
    """Return the files of some splits; folders of single files with their classes and tables."""
    names = tuple(dict.fromkeys(name for split in splits for name in config.splits[split]))
    every = tuple(dict.fromkeys(name for files in config.splits.values() for name in files))
    source = Source("list", root, root, names, tuple(_url(root, name) for name in names), split_names=every)
    return described_files(source, Folder(), store) if config.kind in FOLDERS else Described(source, None)


def _format(source: Source, config: HubConfig) -> Format:
    """Return the format of the files, which must be one; with the delimiter of a README."""
    formats = {(each := format_of(name)).name: each for name in source.names}
    if len(formats) > 1:
        msg = f"{source.typed}: its files are of several formats: {', '.join(formats)}"
        raise SourceError(msg, hint="name files by a glob: hf://datasets/OWNER/NAME/data/*.parquet")
    (chosen,) = formats.values()
    given = {key: value for key, value in config.options.items() if key in _DELIMITERS}
    ignored = sorted(config.options.keys() - given.keys() - {"version", "features", "description"})
    if ignored:
        _log.warning("%s: README.md gives options that shoal does not use: %s", source.typed, ", ".join(ignored))
    if given and isinstance(chosen, Delimited):
        return Delimited(name=chosen.name, suffixes=chosen.suffixes, delimiter=str(next(iter(given.values()))))
    return chosen


def _url(root: str, name: str) -> str:
    return f"{root}/{name}"


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> re.Pattern[str]:
    from fsspec.utils import glob_translate  # noqa: PLC0415  # the Hub's filesystem is one of fsspec

    return re.compile(glob_translate(pattern))


def _matches(pattern: str, path: str) -> bool:
    return _pattern(pattern).match(path) is not None
