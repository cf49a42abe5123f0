"""Mixture files, read and opened: `shoal.open` opens each source, and `shoal.mix` mixes all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from shoal.errors import ShoalError, UsageError
from shoal.formats.metadata.marked_yaml import Marked, parse_yaml
from shoal.hints import did_you_mean
from shoal.indexing.manifests_beside import read_whole
from shoal.reading.mixture.mix_request import FOREVER, MixRequest
from shoal.storage.cache_directory import expand_home
from shoal.storage.retry import with_retries
from shoal.storage.store_of_url import open_store
from shoal.storage.urls import object_path, scheme_of
from shoal.stream.dataset import Dataset
from shoal.stream.mixing.energon_files import energon_mixture
from shoal.stream.mixing.mix_datasets import mix
from shoal.stream.mixing.mixed_dataset import MixedDataset
from shoal.stream.mixing.mixture_entries import MixtureEntry, SourceEntry
from shoal.stream.mixing.native_files import native_mixture
from shoal.stream.mixing.streams_files import streams_mixture

_SUFFIXES = (".yaml", ".yml")
_LIMIT_BYTES = 4 << 20
_ROOTS = ("sources", "splits", "streams")
_D = TypeVar("_D", bound=Dataset)
_OF_THIS_MACHINE = ("max_open_files",)


def is_mixture_file(source: object) -> bool:
    """Return True if a source is named like a mixture file, and is not a directory."""
    if not isinstance(source, str | os.PathLike):
        return False
    text = object_path(str(source))
    return text.lower().endswith(_SUFFIXES) and not Path(expand_home(text)).is_dir()


@dataclass(frozen=True)
class MixtureOpener:
    """Opens mixture files, and the files they name.

    ``open_shards`` is `shoal.open` for other files. ``split`` and ``storage_options`` are defaults for the sources.
    ``files`` are the enclosing mixture files.
    """

    open_shards: Callable[..., Dataset]
    split: str | Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    files: tuple[str, ...] = field(default=())

    def opened(self, path: str | os.PathLike[str]) -> MixedDataset:
        """Open the mixture that a file describes.

        `UsageError` if the file is not a mixture file; the message names line and column. Source errors name a line.
        """
        shown = object_path(str(path))
        key = shown if scheme_of(shown) else os.path.realpath(expand_home(shown))
        if key in self.files:
            raise UsageError(f"{shown}: this mixture file is among its own sources")
        node = parse_yaml(self._read(str(path)), shown)
        return replace(self, files=(*self.files, key)).mixed(self._entry(node))

    def _read(self, path: str) -> bytes:
        options = _options_for(path, self.storage_options)
        store = with_retries(open_store(path, options), options)
        full_path = object_path(path) if scheme_of(path) else str(Path(expand_home(path)).absolute())
        return bytes(read_whole(store.stat(full_path), store, limit_bytes=_LIMIT_BYTES))

    def _entry(self, node: Marked) -> MixtureEntry:
        root = node.value
        if isinstance(root, list) or (isinstance(root, dict) and "streams" in root):
            return streams_mixture(node)
        keys = node.mapping("a mixture file")
        if "splits" in keys:
            names = self.split
            if names is not None and not isinstance(names, str):
                if len(names) != 1:
                    raise keys["splits"].error("a metadataset is read one split at a time", 'split="train"')
                (names,) = names
            return energon_mixture(node, names)
        if "sources" in keys:
            return native_mixture(node)
        msg = "a mixture file has sources, or is a metadataset of Energon (splits) or a list of Streaming's streams"
        near = next(filter(None, (did_you_mean(name, _ROOTS) for name in keys)), "")
        raise node.error(msg, f"{near}docs/mixture-files.md describes it")

    def mixed(self, entry: MixtureEntry) -> MixedDataset:
        """Return the mixture of an entry, with its sources opened."""
        datasets = {}
        for name, source in entry.sources.items():
            with _at(source.where):
                datasets[name] = self._source(source)
        with _at(entry.where):
            return _mixed(entry, datasets)

    def _source(self, entry: SourceEntry) -> Dataset:
        if entry.inner is not None:
            return self.mixed(entry.inner)
        opening = dict(entry.opening)
        options = {**(self.storage_options or {}), **opening.pop("storage_options", {})} or None
        if is_mixture_file(entry.path) and isinstance(entry.path, str) and "format" not in opening:
            split = opening.pop("split", self.split)
            if opening:
                raise entry.where.error(f"{next(iter(opening))} has no meaning for a source that is a mixture file")
            dataset: Dataset = replace(self, split=split, storage_options=options).opened(entry.path)
        else:
            opening.setdefault("split", self.split)
            paths = [entry.path] if isinstance(entry.path, str) else entry.path
            own_options = _options_for(paths[0] if paths else "", options)
            with _at(entry.where.part("path")):
                dataset = self.open_shards(entry.path, storage_options=own_options, **opening)
        if entry.select:
            with _at(entry.where.part("select")):
                dataset = dataset.select(**entry.select)
        if entry.columns:
            dataset = dataset.columns(*entry.columns)
        if entry.fields:
            dataset = dataset.map(AddedFields(entry.fields))
        return _shuffled(dataset, entry)


@dataclass(frozen=True, slots=True)
class AddedFields:
    """A function that adds fields to samples."""

    fields: Mapping[str, Any]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample with the fields."""
        return {**sample, **self.fields}


def _mixed(entry: MixtureEntry, datasets: Mapping[str, Dataset]) -> MixedDataset:
    arguments = {**entry.arguments, **_shares(entry, datasets)}
    if entry.is_sized:
        arguments["epoch_size"] = sum(dataset.num_samples for dataset in datasets.values())
    if not arguments.keys() & {"epoch_size", "repeat", "choose"}:
        # The end of an epoch depends on all changes, so an impossible epoch is refused only after the last change.
        arguments["ends"] = "forever"
    ds = mix(datasets, **arguments)
    spec = ds.stream.spec
    request = spec.request
    if not isinstance(request, MixRequest):
        raise TypeError("this is not a mixture")
    for change in entry.changes:
        with _at(change.where):
            request = request.reweighted(change.at, change.weights, change.ramp)
    most = {name: source.max_repeats or entry.max_repeats for name, source in entry.sources.items()}
    limits = {
        name: int(times) if times.denominator == 1 else float(times)
        for name, times in most.items()
        if times is not None
    }
    request = replace(request, ends=entry.ends, max_repeats=limits or None)
    _check_end(entry, request)
    return _shuffled(MixedDataset(replace(spec, request=request)), entry)


def _check_end(entry: MixtureEntry, request: MixRequest) -> None:
    """Raise an error for an impossible mixture now, with the place in the file, and not when iterating."""
    try:
        request.epoch_samples  # noqa: B018
    except UsageError:
        for name, most in (request.max_repeats or {}).items():
            is_own = entry.sources[name].max_repeats is not None
            with _at((entry.sources[name] if is_own else entry).where.part("max_repeats")):
                replace(request, max_repeats={name: most}).epoch_samples  # noqa: B018
        with _at(entry.where.part("ends")):
            raise


def _shuffled(dataset: _D, entry: MixtureEntry | SourceEntry) -> _D:
    if entry.shuffle is None:
        return dataset
    with _at(entry.where.part("shuffle")):
        return dataset.shuffle(**{"order": "window", **entry.shuffle})


def _shares(entry: MixtureEntry, datasets: Mapping[str, Dataset]) -> dict[str, Any]:
    """Return the arguments of `shoal.mix` for the share of each source."""
    shares = {name: source.share for name, source in entry.sources.items() if source.share is not None}
    kinds = {kind for kind, _ in shares.values()}
    if kinds != {"weight"}:
        for name, dataset in datasets.items():
            if dataset.num_samples == FOREVER:
                msg = f"{name!r} is a mixture without end, and its share depends on its size"
                raise entry.sources[name].where.error(msg, "give all sources a weight")
    if kinds == {"repeat", "choose"}:
        counts = {
            name: int(number * (datasets[name].num_samples if kind == "repeat" else 1))
            for name, (kind, number) in shares.items()
        }
        return {"choose": counts}
    if kinds == {"choose"}:
        return {"choose": {name: int(number) for name, (_, number) in shares.items()}}
    word = {"weight": "weights", "repeat": "repeat"}
    return {word[kind]: {name: number for name, (_, number) in shares.items()} for kind in kinds}


def _options_for(path: str, options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the options of a store for a path; local files do not get the options of a remote store."""
    if not options or scheme_of(path) or "filesystem" in options:
        return options
    return {name: value for name, value in options.items() if name in _OF_THIS_MACHINE} or None


@contextlib.contextmanager
def _at(node: Marked) -> Iterator[None]:
    """Add the place in the file to errors without a place; types and attributes of the errors stay."""
    try:
        yield
    except ShoalError as error:
        if not error.message.startswith(f"{node.path}, line "):
            error.message = f"{node.where}: {error.message}"
        raise
