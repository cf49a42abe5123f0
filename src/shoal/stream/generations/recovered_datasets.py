"""Recovery of the dataset that a state or another rank names, from the shards that exist now."""

from __future__ import annotations

from shoal.errors import StateError
from shoal.figures import counted
from shoal.indexing.generations.subset_of_shards import SubsetOfShards
from shoal.indexing.opened_dataset import Known, Opened, Recovered


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
    msg = f"the state belongs to dataset {known.fingerprint}; this dataset is {opened.index.fingerprint}. "
    msg += f"{counted(known.num_shards, 'shard')} of the state were not found among " if known.num_shards else "Not in "
    msg += f"{counted(opened.index.num_shards, 'shard')}; tried: {past.tried(opened, known)}"
    hint = "the shards, their order or contents changed since the state was saved, or their cut into samples: the "
    hint += "length of windows, as in format=Tokens(length), is part of the dataset. Name the shards of the saved run, "
    hint += "or open them with its index (index=FILE); `shoal index --append` keeps earlier datasets in the index"
    raise StateError(msg, hint=hint)
