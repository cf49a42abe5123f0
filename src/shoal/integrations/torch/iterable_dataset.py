"""`shoal.torch.IterableDataset`: a dataset for loaders of other libraries, where each worker has its own part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self, cast

import torch.utils.data

from shoal.errors import StateError, UsageError
from shoal.integrations.torch.shared_state import SharedState
from shoal.pipeline.tensors import tensors
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.batch_maker import BatchMaker
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.workers.foreign_loaders import refuse_batches_of_batches, refuse_second_dealing


class IterableDataset(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A dataset for torch's own and other loaders: each rank has its part, and each worker a part of that.

    In a `torch.utils.data.DataLoader` every sample of the epoch comes exactly once over all ranks and workers. In
    torchdata's ``StatefulDataLoader`` a run resumes exactly, with the same ranks and the same number of workers. If
    these may change, use `shoal.torch.DataLoader`.

    An epoch does not end by itself, since no worker can know whether the others are done: call `set_epoch` before each,
    as with torch's ``DistributedSampler``, or the same order comes again. Persistent workers
    (``persistent_workers=True``) begin where the dataset does, however it was moved: by `set_epoch` and
    `load_state_dict` here or of the dataset itself, between two loops.

    Parameters
    ----------
    dataset
        With `Dataset.batch` it gives batches of tensors, and the loader needs ``batch_size=None``; else it gives single
        samples, which the loader batches.
    """

    def __init__(self, dataset: Dataset) -> None:
        if not isinstance(given := cast("Any", dataset), Dataset):
            msg = f"shoal.torch.IterableDataset wraps a shoal dataset; got {type(given).__name__}"
            raise UsageError(msg, hint="shoal.open(...)")
        self.dataset = dataset
        self._shared, self._seen = SharedState(), 0  # the start position, for persistent workers
        self._has_begun = False
        self._saved: dict[str, Any] | None = None
        dataset.stream.cursor.watch(self._tell)  # by whichever object it is moved

    def __len__(self) -> int:
        """Return the number of items that this rank yields in a whole epoch: batches, or samples."""
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Begin at the start of this epoch next, in workers too; see `Dataset.set_epoch`."""
        self.dataset.set_epoch(epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the state of an iterator of the same worker and rank, or from one of `Dataset.state_dict`.

        Raises
        ------
        StateError
            The state is that of another worker, rank or number of these; or of another dataset or order.
        """
        if "step" in state:
            self._saved = dict(state)
        else:
            self.dataset.load_state_dict(state)

    def __iter__(self) -> _Part:
        """Iterate over the part of this worker."""
        info = torch.utils.data.get_worker_info()
        if info is not None:
            self._begin_as_told()
        partition = self.dataset.stream.partition
        refuse_second_dealing(partition.world_size)
        if partition.batched:
            refuse_batches_of_batches()
        saved, self._saved = self._saved, None
        part = _Part(self.dataset, 0 if info is None else info.id, 1 if info is None else info.num_workers)
        if saved is not None:
            part.load_state_dict(saved)
        return part

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a worker, with the rank, which it may be unable to find out, and the start position."""
        stream = self.dataset.stream
        rank, world_size = stream.spec.ranks.resolve()
        refuse_second_dealing(world_size)
        dataset = self.dataset.partition(rank=rank, world_size=world_size)
        dataset.load_state_dict(stream.start_state())
        return {**self.__dict__, "dataset": dataset, "_seen": self._shared.number, "_has_begun": False}

    def __copy__(self) -> Self:
        """Return a copy over the same dataset, for workers of its own."""
        made = type(self).__new__(type(self))
        made.__setstate__({**self.__dict__, "_shared": SharedState(), "_seen": 0, "_has_begun": False})
        return made

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self.dataset.stream.cursor.watch(self._tell)

    def _tell(self) -> None:
        """Publish a new start position of the dataset to persistent workers."""
        if torch.utils.data.get_worker_info() is None:  # a move in a worker concerns that worker alone
            self._shared.put(self.dataset.stream.start_state())

    def _begin_as_told(self) -> None:
        """In a worker, begin the first pass where this copy was sent to, later ones where the parent's dataset does.

        No worker decides for itself that a pass is over, since the others may disagree.
        """
        if self._has_begun and self._shared.number != self._seen:
            self._seen, state = self._shared.get()
            self.dataset.load_state_dict(state)
        self._has_begun = True


class _Part:
    """One worker's part of an epoch, with a state that only the same worker can use."""

    def __init__(self, dataset: Dataset, worker: int, num_workers: int) -> None:
        self._dataset, self._worker, self._num_workers = dataset, worker, num_workers
        self._begin(0)

    def _begin(self, step: int) -> None:
        stream = self._dataset.stream
        self._start_state, (rank, world_size) = stream.start_state(), stream.spec.ranks.resolve()
        self._here = {"worker": self._worker, "num_workers": self._num_workers, "rank": rank, "world_size": world_size}
        spec = stream.iterator_spec().of_worker(self._worker, self._num_workers, first_step=step)
        convert = partial(map, tensors) if stream.partition.batched else None
        self._iteration = Iteration(spec, BatchMaker(spec, convert))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._iteration)
        except StopIteration:
            dataset, epoch = self._dataset, self._iteration.position.epoch
            # A loaded position was used up. No worker can say that: the loop may not have received what it made ahead.
            if torch.utils.data.get_worker_info() is None and dataset.epoch == epoch:
                dataset.set_epoch(epoch + 1)
                dataset.set_epoch(epoch)
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this worker."""
        return {"start": self._start_state, "step": self._iteration.position.num_yielded, **self._here}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same worker."""
        for name, ours in self._here.items():
            if state.get(name) != ours:
                msg = f"the state was saved with {name}={state.get(name)}; this is {name}={ours}"
                hint = "keep ranks and workers as they were, or use shoal.torch.DataLoader, whose state fits any number"
                raise StateError(msg, hint=hint)
        self._iteration.close()
        self._dataset.load_state_dict(state["start"])
        self._begin(state["step"])

    def close(self) -> None:
        """Stop iterating."""
        self._iteration.close()
