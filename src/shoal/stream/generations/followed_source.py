"""Growth of a dataset during a run: the next dataset, from a border between epochs on, the same on all ranks."""

from __future__ import annotations

import logging
from dataclasses import replace

from shoal.errors import StateError, UsageError
from shoal.figures import counted
from shoal.indexing.generations.subset_of_shards import SubsetOfShards
from shoal.indexing.opened_dataset import Known, Opened, OpenedDataset, Recovered
from shoal.stream.dataset_spec import Coming, DatasetSpec
from shoal.stream.generations.agreed_datasets import agreed

_log = logging.getLogger("shoal")


def followed(spec: DatasetSpec, epoch: int) -> DatasetSpec:
    """Return the description of a followed dataset at the beginning of an epoch: ``spec`` itself if nothing is new.

    All ranks take the same shards (`agreed`). The dataset of earlier epochs is forgotten.
    """
    running = spec.in_epoch(epoch)
    opened = running.opened
    latest = agreed(opened, looked_again, running.ranks, epoch=epoch)
    if latest is opened:
        return running if running is not spec else spec
    _log.info("epoch %d: the dataset has grown from %s to %s", epoch, _sizes(opened), _sizes(latest))
    return replace(running.moved(latest), recovered="")


def looked_again(opened: OpenedDataset) -> OpenedDataset:
    """Return what the sources of a dataset hold now; ``opened`` itself if nothing has changed."""
    parts = tuple(part if part.latest is None else part.latest.look_again(part) for part in opened.parts)
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


def recovered_part(opened: Opened, known: Known) -> Recovered:
    """Return the dataset that a state knew, from the shards that exist now.

    Raises `StateError`: no subset of the shards has the fingerprint of the state.
    """
    if opened.index.fingerprint == known.fingerprint:
        return Recovered(opened, "")
    past = SubsetOfShards() if opened.past is None else opened.past
    recovered = past.as_known(opened, known)
    if recovered is not None and recovered.opened.index.fingerprint == known.fingerprint:
        return recovered
    msg = f"the state belongs to dataset {known.fingerprint}"
    msg += f" of {counted(known.num_shards, 'shard')}" if known.num_shards else ""
    msg += f"; this dataset is {opened.index.fingerprint} of {counted(opened.index.num_shards, 'shard')}. Tried "
    msg += past.tried(opened, known)
    hint = "the shards, their order or contents changed since the state was saved, or their cut into samples: the "
    hint += "length of windows, as in format=Tokens(length), is part of the dataset. Name the shards of the saved run, "
    hint += "or open them with its index (index=FILE); `shoal index --append` keeps earlier datasets in the index"
    raise StateError(msg, hint=hint)


def _sizes(opened: OpenedDataset) -> str:
    num_shards = sum(part.index.num_shards for part in opened.parts)
    return f"{counted(num_shards, 'shard')} with {counted(opened.index.num_samples, 'sample')}"
