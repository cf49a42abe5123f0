"""Growth of a dataset during a run: the next dataset, from a border between epochs on, the same on all ranks."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import NamedTuple

import numpy as np

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.index.index_generations import as_growth_of
from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.stream.dataset_spec import Coming, DatasetSpec
from shoal.stream.generations.agreed_datasets import agreed

_log = logging.getLogger("shoal")


def followed(spec: DatasetSpec, epoch: int) -> DatasetSpec:
    """Return the description of a followed dataset at the beginning of an epoch: ``spec`` itself if nothing is new.

    All ranks take the same shards (`agreed`). The dataset of earlier epochs is forgotten.
    """
    running = spec.in_epoch(epoch)
    opened = running.opened
    latest = agreed(opened, partial(looked_again, which=running.follows), running.ranks, epoch=epoch)
    if latest is opened:
        return running if running is not spec else spec
    _log.info("epoch %d: the dataset has grown from %s to %s", epoch, _sizes(opened), _sizes(latest))
    return replace(running.moved(latest), recovered="")


def looked_again(opened: OpenedDataset, *, which: tuple[bool, ...]) -> OpenedDataset:
    """Return what the sources of some parts of a dataset hold now; ``opened`` itself if nothing has changed."""
    pairs = zip(opened.parts, which, strict=True)
    parts = tuple(part.latest.look_again(part) if is_due and part.latest else part for part, is_due in pairs)
    if all(new is old for new, old in zip(parts, opened.parts, strict=True)):
        return opened
    return opened.with_parts(parts)


def refuse_followed(spec: DatasetSpec, verb: str) -> None:
    """Raise `UsageError` if a dataset looks for new shards, which the call ``verb`` cannot take."""
    if any(spec.follows):
        msg = f"{verb} makes samples of the shards that exist now, but open(follow=True) looks for new shards"
        hint = "leave out follow=, and call extended() with a larger dataset that is made in the same way"
        raise UsageError(msg, hint=hint)


class ShardChange(NamedTuple):
    """The growth of a dataset: shards that came, and shards that left, with their samples."""

    num_new_shards: int
    num_new_samples: int
    num_left_shards: int
    num_left_samples: int


def change_of(before: OpenedDataset, after: OpenedDataset) -> ShardChange:
    """Return the growth from one generation of a dataset to the next."""
    new = left = new_samples = left_samples = 0
    for old, part in zip(before.parts, after.parts, strict=True):
        if old is not part:
            number, samples = _only_in(part, old)
            new, new_samples = new + number, new_samples + samples
            number, samples = _only_in(old, part)
            left, left_samples = left + number, left_samples + samples
    return ShardChange(new, new_samples, left, left_samples)


def _only_in(one: Opened, other: Opened) -> tuple[int, int]:
    """Return the number of shards, and of their samples, that only the first of two datasets has."""
    names = set(other.index.shard_names)
    numbers = [number for number, name in enumerate(one.index.shard_names) if name not in names]
    first_samples = one.index.extent_first_sample[one.index.shard_first_extent]
    return len(numbers), int(np.diff(first_samples)[numbers].sum())


def extended_spec(spec: DatasetSpec, opened: OpenedDataset, epoch: int) -> DatasetSpec:
    """Return the description of a dataset that reads another dataset from an epoch on.

    Raises `UsageError`: the order grows while shards are indexed, or a choice of samples cannot be repeated.
    """
    if spec.grows:
        msg = 'extended() is for a dataset with an index, but index="grow" indexes this dataset while it is read'
        raise UsageError(msg, hint='shoal.open(..., index="wait") indexes all shards first')
    running = spec.in_epoch(epoch)
    if running.opened.index.fingerprint == opened.index.fingerprint:
        return running
    opened = opened.with_parts(tuple(starmap(_recorded, zip(opened.parts, running.opened.parts, strict=True))))
    running.moved(opened)  # raises an error for a choice that cannot be repeated here, not when the epoch begins
    return replace(running, coming=Coming(epoch, opened))


def _recorded(part: Opened, before: Opened) -> Opened:
    """Return a part whose index records that it has grown, so that states tell how."""
    index = as_growth_of(part.index, before.index)
    return part if index is part.index else replace(part, index=index)


def _sizes(opened: OpenedDataset) -> str:
    num_shards = sum(part.index.num_shards for part in opened.parts)
    return f"{counted(num_shards, 'shard')} with {counted(opened.index.num_samples, 'sample')}"
