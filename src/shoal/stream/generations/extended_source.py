"""The dataset that a run continues with: from sources that are listed again, an index, or an opened dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.index.assembly import SNAPSHOT
from shoal.indexing.generations.appending import with_columns_of
from shoal.indexing.generations.derived_versions import with_rows
from shoal.indexing.generations.relisted_source import RelistedSource
from shoal.indexing.open_source import find_source, open_source
from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.indexing.tables.table_versions import TableVersions
from shoal.pipeline.sample_columns.appended_columns import columns_as_in
from shoal.storage.sources.shard_selection import INDEX_SUFFIX
from shoal.storage.sources.source import texts_of
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.generations.agreed_datasets import agreed
from shoal.stream.generations.followed_source import looked_again


class _NextPart(NamedTuple):
    """A part of the next dataset, and True if its source must still be looked at."""

    opened: Opened
    is_due: bool


def dataset_to_follow(
    spec: DatasetSpec, source: Any, storage_options: Mapping[str, Any] | None, epoch: int
) -> OpenedDataset:
    """Return the dataset of later epochs, the same on all ranks.

    ``source`` is None for the sources that were opened, a mapping for some sources of a mixture, or a dataset. An index
    and an opened dataset are taken as they are: all ranks must give the same.
    """
    running = spec.in_epoch(epoch - 1) if epoch else spec
    opened = running.opened
    if hasattr(source, "stream"):
        following = source.stream.spec.in_epoch(epoch).opened
        _refuse_unlike(opened, following)
        return opened.with_parts(following.parts)
    if source is None:
        if not any(part.latest for part in opened.parts):
            msg = "extended() looks again at what shoal.open() opened, but this dataset was made otherwise"
            raise UsageError(
                msg, hint="extended(SOURCE): a directory, a list of shards, an index, or an opened dataset"
            )
        parts = [_NextPart(_growing(part), is_due=True) for part in opened.parts]
    else:
        if not isinstance(source, Mapping):
            opened.one("extended(source)")
        sources = source if isinstance(source, Mapping) else {"": source}
        _check_names(sources, opened)
        parts = [
            _next_part(_growing(part), sources[name], storage_options)
            if name in sources
            else _NextPart(part, is_due=False)
            for name, part in zip(opened.indexes, opened.parts, strict=True)
        ]
    following = opened.with_parts(tuple(part.opened for part in parts))
    _refuse_unlike(opened, following)
    which = tuple(part.is_due for part in parts)
    return (
        agreed(following, partial(looked_again, which=which), running.ranks, epoch=epoch) if any(which) else following
    )


def _next_part(part: Opened, source: Any, storage_options: Mapping[str, Any] | None) -> _NextPart:
    if hasattr(source, "stream"):
        return _NextPart(source.stream.spec.opened.one("extended()"), is_due=False)
    if part.derivation is not None:
        rows = _next_part(part.derivation.rows, source, storage_options)
        return _NextPart(with_rows(part, rows.opened), rows.is_due)
    texts, is_single = texts_of(source)
    options = _options(part, storage_options)
    if is_single and texts[0].endswith(INDEX_SUFFIX):
        following = with_columns_of(open_source(source, storage_options=options), part, columns_as_in)
        return _NextPart(replace(following, latest=part.latest), is_due=False)
    if SNAPSHOT in part.index.metadata:  # a table says itself which files it has now
        newest = find_source(source, storage_options=options, add_columns=columns_as_in).whole
        return _NextPart(replace(part, latest=newest.latest, past=newest.past), is_due=True)
    latest = RelistedSource(source, format=part.format, storage_options=options, add_columns=columns_as_in)
    return _NextPart(replace(part, latest=latest), is_due=True)


def _options(part: Opened, storage_options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    latest = part.latest
    if storage_options is None and isinstance(latest, RelistedSource | TableVersions):
        return latest.storage_options
    return storage_options


def _check_names(sources: Mapping[str, Any], opened: OpenedDataset) -> None:
    names = [*opened.indexes]
    if unknown := [name for name in sources if name not in names]:
        msg = f"extended() names the source {unknown[0]!r}; the sources are {', '.join(map(repr, names))}"
        raise UsageError(msg, hint=did_you_mean(str(unknown[0]), names).rstrip() or "extended({NAME: SOURCE, ...})")


def _growing(part: Opened) -> Opened:
    """Return the part; raise `UsageError` for joined samples, as nothing matches the keys of new samples."""
    if part.companions:
        msg = "extended(): join() has matched the samples of this dataset, and does not match new ones"
        hint = "end the epoch, open and join the larger datasets, and set_epoch() to the next epoch"
        raise UsageError(msg, hint=hint)
    return part


def _refuse_unlike(opened: OpenedDataset, following: OpenedDataset) -> None:
    """Raise `UsageError` if the next dataset has other sources, another format, or is not made of others as before."""
    if len(opened.parts) != len(following.parts):
        msg = f"extended(): the dataset has {len(opened.parts)} sources, but the next one has {len(following.parts)}"
        raise UsageError(msg, hint="extend a mixture by a mixture of the same sources, or by {NAME: SOURCE}")
    for one, next_one in zip(opened.parts, following.parts, strict=True):
        if one.index.format != next_one.index.format:
            msg = f"extended(): the shards are {one.index.format}, but the next ones are {next_one.index.format}"
            raise UsageError(msg, hint="shards of one dataset have one format; shoal.mix() mixes formats")
        if one.index.fingerprint != next_one.index.fingerprint:
            _refuse_made_otherwise(_growing(one), _growing(next_one))


def _refuse_made_otherwise(one: Opened, next_one: Opened) -> None:
    """Raise `UsageError` if only one dataset has windows, or both have other windows."""
    before, after = (None if part.derivation is None else part.derivation.recipe for part in (one, next_one))
    if before != after:
        words = ["stored rows" if recipe is None else recipe.words for recipe in (before, after)]
        words = words if words[0] != words[1] else [repr(before), repr(after)]
        msg = f"extended(): the samples are {words[0]}, but the next ones are {words[1]}"
        raise UsageError(msg, hint="call windows() on the next dataset with equal arguments, or extend by a SOURCE")
