"""The dataset that a run continues with: from a source that is listed again, an index, or an opened dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.indexing.generations.relisted_source import RelistedSource
from shoal.indexing.open_source import open_source
from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.pipeline.sample_columns.appended_columns import columns_as_in
from shoal.storage.sources.shard_selection import INDEX_SUFFIX
from shoal.storage.sources.source import texts_of
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.generations.agreed_datasets import agreed
from shoal.stream.generations.followed_source import looked_again


def dataset_to_follow(
    spec: DatasetSpec, source: Any, storage_options: Mapping[str, Any] | None, epoch: int
) -> OpenedDataset:
    """Return the dataset of later epochs, the same on all ranks.

    An index and an opened dataset are taken as they are: all ranks must give the same.
    """
    running = spec.in_epoch(epoch - 1) if epoch else spec
    opened = running.opened
    if hasattr(source, "stream"):
        return _like(opened, source.stream.spec.in_epoch(epoch).opened)
    if source is not None:
        one = opened.one("extended(source)")
        texts, is_single = texts_of(source)
        options = _options(one, storage_options)
        if is_single and texts[0].endswith(INDEX_SUFFIX):
            return _like(opened, replace(open_source(source, storage_options=options), latest=one.latest))
        latest = RelistedSource(source, format=one.format, storage_options=options, add_columns=columns_as_in)
        opened = replace(one, latest=latest)
    elif not any(part.latest for part in opened.parts):
        msg = "extended() without a source looks again at what shoal.open() opened, but this dataset was made otherwise"
        raise UsageError(msg, hint="extended(SOURCE): a directory, a list of shards, an index, or an opened dataset")
    return agreed(opened, looked_again, running.ranks, epoch=epoch)


def _options(opened: Opened, storage_options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    latest = opened.latest
    return latest.storage_options if storage_options is None and isinstance(latest, RelistedSource) else storage_options


def _like(opened: OpenedDataset, other: OpenedDataset) -> OpenedDataset:
    """Return the other dataset, or raise `UsageError` if it has another format."""
    if len(opened.parts) != len(other.parts):
        msg = f"extended(): the dataset has {len(opened.parts)} sources, but the next one has {len(other.parts)}"
        raise UsageError(msg, hint="extend a mixture by the same mixture of datasets that have grown")
    for one, next_one in zip(opened.parts, other.parts, strict=True):
        if one.index.format != next_one.index.format:
            msg = f"extended(): the shards are {one.index.format}, but the next ones are {next_one.index.format}"
            raise UsageError(msg, hint="shards of one dataset have one format; shoal.mix() mixes formats")
    return other
