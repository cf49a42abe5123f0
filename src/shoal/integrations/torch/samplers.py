"""Samplers in the order of a dataset, for torch's own loader over `Dataset.as_map`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.errors import UsageError
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator_spec import IteratorSpec
from shoal.stream.map_view import batches_of_ids
from shoal.stream.workers.foreign_loaders import refuse_second_dealing

__all__ = ["BatchSampler", "Sampler"]


class BatchSampler:
    """The sample ids of each batch of this rank, in the order of ``iter(dataset)``.

    For ``torch.utils.data.DataLoader(ds.as_map(), batch_sampler=shoal.torch.BatchSampler(ds))``. A loader asks for ids
    ahead of their use, so only the loop knows what it received: `state_dict` is told. Repeats at the end of an epoch
    are not marked.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        if not self._pass().work.recipe.partition.batched:
            msg = "a batch sampler gives batches, and this dataset gives single samples"
            raise UsageError(msg, hint="ds.batch(32), or shoal.torch.Sampler(ds)")

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[list[int]]:
        """Begin at the loaded position, else at the start of the epoch; it stays there until `set_epoch`."""
        run = self._pass()
        refuse_second_dealing(run.work.recipe.partition.world_size)
        return batches_of_ids(run)

    def set_epoch(self, epoch: int) -> None:
        """Begin at the start of this epoch next, unless it is the current one."""
        self.dataset.set_epoch(epoch)

    def state_dict(self, num_received: int) -> dict[str, Any]:
        """The state after so many batches of the current pass; see `Dataset.state_dict`."""
        run = self._pass()
        place = run.place()
        place.num_yielded = num_received
        return run.state(*place.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved; see `Dataset.load_state_dict`."""
        self.dataset.load_state_dict(state)

    def _pass(self) -> IteratorSpec:
        return self.dataset._pass()  # noqa: SLF001  # what iter(dataset) would do


class Sampler:
    """The sample ids of this rank one by one, in the order of ``iter(dataset)``; otherwise as `BatchSampler`.

    For a dataset without batches: torch's loader cuts them, and so it is exact on one rank only if all batches are
    equal, and may give ranks different numbers of them. Prefer `BatchSampler`.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        if dataset._pass().work.recipe.partition.batched:  # noqa: SLF001
            msg = "a sampler gives single samples, and this dataset gives batches"
            raise UsageError(msg, hint="shoal.torch.BatchSampler(ds)")

    def __len__(self) -> int:
        """Samples of a whole epoch on this rank."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        """Begin at the loaded position, else at the start of the epoch."""
        run = self.dataset._pass()  # noqa: SLF001
        refuse_second_dealing(run.work.recipe.partition.world_size)
        return (ids[0] for ids in batches_of_ids(run))

    def set_epoch(self, epoch: int) -> None:
        """Begin at the start of this epoch next, unless it is the current one."""
        self.dataset.set_epoch(epoch)
