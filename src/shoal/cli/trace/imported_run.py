"""The dataset of a run as Python makes it, for a trace of what no option can say: splits, selections, samplings."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from shoal.cli.options.source_options import imported_object
from shoal.errors import UsageError
from shoal.order.state_dict import State
from shoal.reading.growing.resolved_growing import ResolvedGrowing
from shoal.reading.resolved_order import Resolved
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.iterating.rows import Rows
from shoal.stream.mixing.mixed_dataset import MixedDataset


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """A dataset, and the ``module:NAME`` that it was imported from."""

    name: str
    dataset: Dataset

    def __str__(self) -> str:
        return self.name

    def order(self, epoch: int | None, state: State | None) -> tuple[Dataset, Resolved]:
        """Return the samples as they are stored, and their order, after a state was loaded.

        Raises
        ------
        StateError
            The state is of another dataset, selection or order.
        UsageError
            The dataset fills batches with what it reads.
        """
        dataset = self.dataset
        if (batcher := dataset.stream.spec.batcher).counts_share:
            msg = f"{self.name} fills batches with {batcher.verb}: reading alone tells what is in them"
            field = batcher.ids_field
            raise UsageError(
                msg, hint=f"with_ids() before it adds the sample ids to each batch, as the field {field!r}"
            )
        if state is not None:
            dataset.load_state_dict(state.to_dict())
        resolved = dataset.stream.resolved
        if isinstance(resolved, ResolvedGrowing):
            number = dataset.epoch if epoch is None else epoch
            return Dataset(DatasetSpec.of(resolved.growing.whole)), resolved.of_epoch(number)
        if isinstance(dataset, MixedDataset):
            return MixedDataset(replace(dataset.stream.spec, rows=Rows(), batching=None, batch_stages=())), resolved
        return Dataset(DatasetSpec.of(dataset.stream.opened)), resolved


def imported_run(text: str) -> ImportedRun:
    """Return the dataset that ``module:NAME`` names, or that the function of this name returns."""
    found = imported_object(text)
    made = found() if callable(found) and not isinstance(found, Dataset) else found
    if not isinstance(made, Dataset):
        msg = f"{text} is {type(made).__name__}, and no dataset of shoal, nor a function that returns one"
        raise argparse.ArgumentTypeError(msg)
    return ImportedRun(text, made)
