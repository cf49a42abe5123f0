"""Samplers in the order of a dataset, for torch's own loader over `Dataset.as_map`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.errors import UsageError
from shoal.stream.choosing.map_view import batches_of_ids
from shoal.stream.dataset import Dataset
from shoal.stream.workers.foreign_loaders import refuse_followed, refuse_second_dealing


class BatchSampler:
    """Sampler of each batch's sample ids on this rank, in the order of ``iter(dataset)``.

    Use: ``torch.utils.data.DataLoader(ds.as_map(), batch_sampler=shoal.torch.BatchSampler(ds))``. A loader requests ids
    ahead of use, so the loop must pass its number of received batches to `state_dict`. Repeats at the end of an epoch
    are not marked.

    Examples
    --------
    >>> sampler = shoal.torch.BatchSampler(ds.shuffle(seed=0).batch(4))
    >>> next(iter(sampler)), len(sampler)
    ([184, 111, 177, 95], 50)
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        _refuse_sequences(dataset, "a batch sampler")
        _refuse_growth(dataset)
        if dataset.stream.spec.batching is None:
            msg = "a batch sampler yields batches, but this dataset yields single samples"
            raise UsageError(msg, hint="ds.batch(32), or shoal.torch.Sampler(ds)")
        if (batcher := dataset.stream.spec.batcher).counts_share:
            msg = f"a batch sampler yields ids, but the ids of {batcher.verb} are known only when samples are read"
            raise UsageError(msg, hint="shoal.torch.DataLoader(ds)")

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch on this rank."""
        return self.dataset.stream.length(exactly=True)

    def __iter__(self) -> Iterator[list[int]]:
        """Begin at the loaded position, else at the start of the epoch, in every pass until `set_epoch`."""
        refuse_second_dealing(self.dataset.stream.partition.world_size)
        return batches_of_ids(self.dataset.stream.iterator_spec())

    def set_epoch(self, epoch: int) -> None:
        """Start the next iterator at the beginning of ``epoch``, unless it is the current epoch.

        Examples
        --------
        >>> sampler = shoal.torch.BatchSampler(ds.shuffle(seed=0).batch(4))
        >>> sampler.set_epoch(3)
        >>> next(iter(sampler))
        [87, 129, 99, 10]
        """
        self.dataset.set_epoch(epoch)

    def state_dict(self, num_received: int) -> dict[str, Any]:
        """Return the state after ``num_received`` batches of the current pass; see `Dataset.state_dict`.

        Examples
        --------
        >>> sampler = shoal.torch.BatchSampler(ds.shuffle(seed=0).batch(4))
        >>> sampler.state_dict(num_received=10)["position"]
        40
        """
        stream = self.dataset.stream
        position = stream.iterator_spec().position()
        position.num_yielded = num_received
        return stream.resolved.state_at(*position.resume_point, tokenizers=stream.spec.tokenizers)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state; see `Dataset.load_state_dict`.

        Examples
        --------
        >>> sampler = shoal.torch.BatchSampler(ds.shuffle(seed=0).batch(4))
        >>> sampler.load_state_dict(sampler.state_dict(num_received=10))
        >>> sum(1 for ids in sampler)
        40
        """
        self.dataset.load_state_dict(state)


class Sampler:
    """Sampler of single sample ids on this rank, in the order of ``iter(dataset)``; otherwise like `BatchSampler`.

    For a dataset without batches: torch's loader cuts the batches, so the order is exact only on one rank with equal
    batches, and ranks may get different numbers of batches. Prefer `BatchSampler`.

    Examples
    --------
    >>> import torch
    >>> ds = ds.decode().shuffle(seed=0)
    >>> loader = torch.utils.data.DataLoader(ds.as_map(), batch_size=4, sampler=shoal.torch.Sampler(ds))
    >>> next(iter(loader))["cls"]
    tensor([2, 0, 1, 0])
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        _refuse_sequences(dataset, "a sampler")
        _refuse_growth(dataset)
        if dataset.stream.spec.batching is not None:
            msg = "a sampler yields single samples, but this dataset yields batches"
            raise UsageError(msg, hint="shoal.torch.BatchSampler(ds)")

    def __len__(self) -> int:
        """Return the number of samples in a whole epoch on this rank."""
        return self.dataset.stream.length(exactly=True)

    def __iter__(self) -> Iterator[int]:
        """Begin at the loaded position, else at the start of the epoch."""
        refuse_second_dealing(self.dataset.stream.partition.world_size)
        return (ids[0] for ids in batches_of_ids(self.dataset.stream.iterator_spec()))

    def set_epoch(self, epoch: int) -> None:
        """Start the next iterator at the beginning of ``epoch``, unless it is the current epoch.

        Examples
        --------
        >>> sampler = shoal.torch.Sampler(ds.shuffle(seed=0))
        >>> sampler.set_epoch(3)
        >>> next(iter(sampler))
        87
        """
        self.dataset.set_epoch(epoch)


def _refuse_sequences(dataset: Dataset, what: str) -> None:
    """Raise `UsageError` if the rows of batches are not samples: they have no ids that a sampler could yield."""
    rows = dataset.stream.spec.rows
    if rows.verb or rows.divider:
        does = f"{rows.verb} joins several samples" if rows.verb else f"{rows.divider} makes several of one"
        raise UsageError(f"{what} yields ids of samples, but {does}", hint="shoal.torch.DataLoader(ds)")


def _refuse_growth(dataset: Dataset) -> None:
    """Raise `UsageError` if ids of the sampler belong to another dataset than `Dataset.as_map`."""
    spec, epoch = dataset.stream.spec, dataset.epoch
    refuse_followed(spec, "the loader of a sampler")
    if spec.in_epoch(epoch).coming is not None:
        msg = f"epoch {epoch} reads another dataset than as_map(), which has the samples of the next epoch"
        raise UsageError(msg, hint="shoal.torch.DataLoader(ds); or call extended() before the first sample of an epoch")
