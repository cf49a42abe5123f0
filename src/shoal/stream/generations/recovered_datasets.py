"""Recovery of the dataset that a state or another rank names, from the shards that exist now."""

from __future__ import annotations

from shoal.errors import StateError
from shoal.figures import counted
from shoal.indexing.generations.subset_of_shards import past_of
from shoal.indexing.opened_dataset import Known, Opened, Recovered


def recovered_part(opened: Opened, known: Known, *, name: str = "") -> Recovered:
    """Return the dataset that a state knew, from the shards that exist now; ``name`` is its name in a mixture.

    Raises `StateError`: no subset of the shards has the fingerprint of the state.
    """
    if opened.index.fingerprint == known.fingerprint:
        return Recovered(opened, "")
    past = past_of(opened)
    for candidate in () if opened.companions else past.candidates(opened, known):
        if candidate.fingerprint() == known.fingerprint:
            recovered = candidate.opened()
            if recovered.index.fingerprint == known.fingerprint:
                return Recovered(recovered, candidate.words)
    tried = "nothing, as the samples are joined with others" if opened.companions else past.tried(opened, known)
    msg = f"source {name!r}: " if name else ""
    msg += f"the state belongs to dataset {known.fingerprint}; this dataset is {opened.index.fingerprint}. "
    num_shards = known.num_shards[-1] if known.num_shards else 0
    msg += f"The state's {counted(num_shards, 'shard')} were not found among " if num_shards else "Not found among "
    msg += f"{counted(opened.index.num_shards, 'shard')}; tried: {tried}"
    hint = "the shards, their order or contents changed since the state was saved, or their cut into samples: the "
    hint += "length of windows, as in format=Tokens(length), is part of the dataset. Name the shards of the saved run, "
    hint += "or open them with its index (index=FILE); `shoal index --append` keeps earlier datasets in the index"
    raise StateError(msg, hint=hint)
