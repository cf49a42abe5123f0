"""Growth of a dataset during a run: the next dataset, from a border between epochs on, the same on all ranks."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.indexing.opened_dataset import OpenedDataset
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
    running.moved(opened)  # raises an error for a choice that cannot be repeated here, not when the epoch begins
    return replace(running, coming=Coming(epoch, opened))


def _sizes(opened: OpenedDataset) -> str:
    num_shards = sum(part.index.num_shards for part in opened.parts)
    return f"{counted(num_shards, 'shard')} with {counted(opened.index.num_samples, 'sample')}"
