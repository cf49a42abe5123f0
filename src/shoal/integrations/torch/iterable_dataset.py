"""`shoal.torch.IterableDataset`: a dataset for loaders of other libraries, with a part for each worker."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, cast

import numpy as np
import torch.utils.data

from shoal.errors import StateError, UsageError
from shoal.integrations.torch.batch_transfer import shared_bytes
from shoal.order.states.checked_states import checked
from shoal.order.states.state_fields import WORKER
from shoal.pipeline.tensors import tensors
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.workers.foreign_loaders import refuse_batches_of_batches, refuse_followed, refuse_second_dealing

_SHARED_BYTES = 16_384  # a state has less than 1 KB
_HEAD = np.dtype([("number", "<i8"), ("num_bytes", "<i4"), ("crc", "<u4")])
_TRIES = 1000


class IterableDataset(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """A dataset for torch's own and other loaders: each worker of a rank gets a part of the rank's samples.

    In a `torch.utils.data.DataLoader` every sample of the epoch comes exactly once over all ranks and workers. In
    torchdata's ``StatefulDataLoader`` a run resumes exactly, with the same numbers of ranks and workers. If these may
    change, use `shoal.torch.DataLoader`.

    Call `set_epoch` before each epoch, as with torch's ``DistributedSampler``, or the same order comes again: no worker
    can know whether the other ranks are done. Without workers, call it before the first batch; with workers, before the
    loader makes its iterator, or a ``StatefulDataLoader`` returns its state: workers begin then. Persistent workers
    (``persistent_workers=True``) begin each loop at the position of the dataset, after `set_epoch` and
    `load_state_dict` of this object or of the dataset.

    A state of a ``StatefulDataLoader`` resumes its own pass, even if `set_epoch` names another epoch before that pass
    begins again; later passes follow `set_epoch`.

    Parameters
    ----------
    dataset
        With `Dataset.batch` it yields batches of tensors, and the loader needs ``batch_size=None``; otherwise it yields
        single samples, which the loader batches.

    Examples
    --------
    >>> import torch
    >>> samples = shoal.torch.IterableDataset(ds.decode().shuffle(seed=0))
    >>> next(iter(torch.utils.data.DataLoader(samples, batch_size=4)))["cls"]
    tensor([2, 0, 1, 0])
    """

    def __init__(self, dataset: Dataset) -> None:
        if not isinstance(cast("Any", dataset), Dataset):
            msg = f"shoal.torch.IterableDataset takes a shoal dataset; got {type(dataset).__name__}"
            raise UsageError(msg, hint="shoal.open(...)")
        if (batcher := dataset.stream.spec.batcher).counts_share:
            msg = f"{batcher.verb} fills batches from the samples of all workers, which other loaders keep apart"
            raise UsageError(msg, hint="shoal.torch.DataLoader(ds, num_workers=...)")
        refuse_followed(dataset.stream.spec, "another loader")
        self.dataset = dataset
        self._shared, self._seen = SharedState(), 0  # the start position, for persistent workers
        self._has_begun = False
        self._saved: dict[str, Any] | None = None
        dataset.stream.cursor.watch(self._publish)  # any object may move it

    def __len__(self) -> int:
        """Return the number of batches, or of samples, that this rank yields in a whole epoch."""
        return self.dataset.stream.length(exactly=True)

    def set_epoch(self, epoch: int) -> None:
        """Start the next iterator at the beginning of ``epoch``, in workers too; see `Dataset.set_epoch`.

        Examples
        --------
        >>> samples = shoal.torch.IterableDataset(ds.shuffle(seed=0))
        >>> samples.set_epoch(3)
        >>> next(iter(samples))["__key__"]
        'cat/087'
        """
        self.dataset.set_epoch(epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the state of an iterator of the same worker and rank, or from a state of `Dataset.state_dict`.

        Raises
        ------
        StateError
            The state is of another worker or rank, another number of workers or ranks, or another dataset or order.

        Examples
        --------
        >>> samples = shoal.torch.IterableDataset(ds.shuffle(seed=0))
        >>> samples.load_state_dict(ds.shuffle(seed=0).state_at(120))
        >>> sum(1 for sample in samples)
        80
        """
        if "step" in state:
            self._saved = checked(WORKER, state)
        else:
            self.dataset.load_state_dict(state)

    def __iter__(self) -> _Part:
        """Iterate over the part of this worker."""
        info = torch.utils.data.get_worker_info()
        if info is not None:
            self._load_published()
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
        """Return the state for a worker, with the start position, and the rank, which a worker may not find out."""
        stream = self.dataset.stream
        rank, world_size = stream.spec.ranks.resolve()
        refuse_second_dealing(world_size)
        dataset = self.dataset.partition(rank=rank, world_size=world_size)
        dataset.load_state_dict(stream.start_state())
        return {**self.__dict__, "dataset": dataset, "_seen": self._shared.number, "_has_begun": False}

    def __copy__(self) -> Self:
        """Return a copy over the same dataset, for workers of its own."""
        copied = type(self).__new__(type(self))
        copied.__setstate__({**self.__dict__, "_shared": SharedState(), "_seen": 0, "_has_begun": False})
        return copied

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        self.dataset.stream.cursor.watch(self._publish)

    def _publish(self) -> None:
        """Publish a new start position of the dataset to persistent workers."""
        if torch.utils.data.get_worker_info() is None:  # a move in a worker concerns that worker alone
            self._shared.put(self.dataset.stream.start_state())

    def _load_published(self) -> None:
        """In a worker, move the dataset to the position of the parent's dataset, except in the first pass.

        The copy for the worker has the position of the first pass. No worker decides by itself that a pass is over,
        since other ranks may disagree.
        """
        if self._has_begun and self._shared.number != self._seen:
            self._seen, state = self._shared.get()
            self.dataset.load_state_dict(state)
        self._has_begun = True


class _Part:
    """One worker's part of an epoch, with a state that only the same worker can use.

    The part begins at the position of the dataset at the time of the first batch, so that `set_epoch` works until then.
    A state resumes the part and does not move the dataset, because loaders load a state late: after `set_epoch` for the
    next epoch.
    """

    def __init__(self, dataset: Dataset, worker: int, num_workers: int) -> None:
        self._dataset = dataset
        rank, world_size = dataset.stream.spec.ranks.resolve()
        self._identity = {"worker": worker, "num_workers": num_workers, "rank": rank, "world_size": world_size}
        self._loaded: tuple[dict[str, Any], dict[str, Any]] | None = None  # and the start state of the dataset then
        self._begun: tuple[dict[str, Any], Iteration] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._begun is None:
            self._begun = self._begin()
        iteration = self._begun[1]
        try:
            return next(iteration)
        except StopIteration:
            dataset, epoch = self._dataset, iteration.position.epoch
            # A loaded position was used up. No worker can know that: the loop may not have received prefetched batches.
            if torch.utils.data.get_worker_info() is None and dataset.epoch == epoch:
                dataset.set_epoch(epoch + 1)
                dataset.set_epoch(epoch)
            raise

    def _begin(self) -> tuple[dict[str, Any], Iteration]:
        start, step = self._position()
        stream = self._dataset.stream
        with self._moved_to(start):
            whole = stream.iterator_spec()
        spec = whole.of_worker(self._identity["worker"], self._identity["num_workers"], first_step=step)
        return start, Iteration(spec.converted(partial(map, tensors)) if stream.partition.batched else spec)

    def _position(self) -> tuple[dict[str, Any], int]:
        """Return the state of the dataset at the start of the epoch, and the number of items taken since."""
        if self._begun is not None:
            return self._begun[0], self._begun[1].position.num_yielded
        now = self._dataset.stream.start_state()
        if self._loaded is None:
            return now, 0
        saved, before = self._loaded
        # As with `Dataset.set_epoch`: setting the epoch of a loaded position does not move it.
        names_epoch_of_state = (now["epoch"], now["position"]) == (saved["start"]["epoch"], 0)
        return (saved["start"], saved["step"]) if now == before or names_epoch_of_state else (now, 0)

    @contextmanager
    def _moved_to(self, start: Mapping[str, Any]) -> Iterator[None]:
        """Move the dataset to the start of an epoch, and move it back at the end.

        The dataset keeps the rest of the state: the numbers of its order, and the positions left out.
        """
        dataset, before = self._dataset, self._dataset.stream.start_state()
        if start == before:
            yield
            return
        try:
            dataset.load_state_dict(start)
            yield
        finally:
            dataset.load_state_dict(dataset.state_at(before["position"], epoch=before["epoch"]))
            dataset.stream.cursor.loaded_epoch = None  # no state was loaded into the dataset

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this worker."""
        start, step = self._position()
        return {"start": start, "step": step, **self._identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same worker."""
        saved = checked(WORKER, state)
        for name, own in self._identity.items():
            if saved[name] != own:
                msg = f"the state was saved with {name}={saved[name]}; this worker has {name}={own}"
                hint = "keep ranks and workers as they were, or use shoal.torch.DataLoader, whose state fits any number"
                raise StateError(msg, hint=hint)
        with self._moved_to(saved["start"]):  # so that an invalid state raises in this call
            pass
        self.close()
        self._loaded, self._begun = (saved, self._dataset.stream.start_state()), None

    def close(self) -> None:
        """Stop iterating."""
        if self._begun is not None:
            self._begun[1].close()


class SharedState:
    """The newest state that one process published, in memory that it shares with its workers.

    Only the copy that torch sends to a worker process shares the memory; a plain pickle or a deep copy does not.
    """

    def __init__(self) -> None:
        self._bytes: Any = shared_bytes(_SHARED_BYTES)

    def put(self, state: Mapping[str, Any]) -> int:
        """Publish a state, and return its number; only one process may. `StateError` for an oversized state."""
        data = json.dumps(state).encode()
        array: Any = self._bytes.numpy()
        if len(data) > len(array) - _HEAD.itemsize:
            msg = f"the state has {len(data)} bytes; workers can receive at most {len(array) - _HEAD.itemsize}"
            raise StateError(msg, hint="give your own order fewer parameters: they are stored in every state")
        head = array[: _HEAD.itemsize].view(_HEAD)
        number = int(head["number"][0]) + 1
        array[_HEAD.itemsize : _HEAD.itemsize + len(data)] = np.frombuffer(data, np.uint8)
        head[0] = (number, len(data), zlib.crc32(data, number))
        return number

    @property
    def number(self) -> int:
        """Number of states published so far."""
        head: Any = self._bytes.numpy()[: _HEAD.itemsize].view(_HEAD)
        return int(head["number"][0])

    def get(self) -> tuple[int, dict[str, Any]]:
        """Return the number of the newest state, and the state; `StateError` if it changes all the time."""
        array: Any = self._bytes.numpy()
        for _ in range(_TRIES):
            number, num_bytes, crc = array[: _HEAD.itemsize].view(_HEAD)[0].tolist()
            data = bytes(array[_HEAD.itemsize : _HEAD.itemsize + num_bytes])
            if zlib.crc32(data, number) == crc:
                return number, json.loads(data)
            time.sleep(0.001)  # another process is writing
        msg = "a worker could not read the state to resume from: the state kept changing"
        raise StateError(msg, hint="call set_epoch() and load_state_dict() before the loop begins, not during it")

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self._bytes = attributes["_bytes"].share_memory_()  # a forked worker sees only shared memory
