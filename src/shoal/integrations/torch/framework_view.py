"""A loader as frameworks see it: an instance of torch's, with the attributes that they read.

Frameworks look at ``sampler``, ``dataset`` and the like for three reasons: to name the epoch, to share samples out
among ranks, and to make another loader of them. `StepSampler` takes the names of epochs, and says that samples are
shared out already; the loader that accelerate makes of the attributes in `_VIEWS` gets its batches from this one.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from torch.utils.data import BatchSampler, Dataset, DistributedSampler

from shoal.integrations.torch.framework_states import meet_lightning
from shoal.stream.dataset import Dataset as ShoalDataset

T = TypeVar("T")


class Step(NamedTuple):
    """A batch of this rank, by its epoch and its number in the whole epoch."""

    epoch: int
    number: int


class Loader(Protocol):
    """A loader whose attributes are shown."""

    @property
    def dataset(self) -> ShoalDataset:
        """The dataset that it was made with."""

    @property
    def batch_size(self) -> int | None:
        """Samples in a whole batch of this rank; None where batches differ in size."""

    @property
    def drop_last(self) -> bool:
        """True if the last batch is dropped when it is not whole."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def name_epoch(self, epoch: int, num_batches: int | None = None) -> None:
        """Begin at the start of an epoch as a framework counts it, which ends it after so many batches."""


class StepSampler(DistributedSampler, BatchSampler):  # type: ignore[type-arg]
    """The sampler of a loader: the steps of the current epoch, of this rank alone, from the start of the epoch.

    It is one of torch's ``DistributedSampler``, so that no framework adds another; and one of batches, so
    that ``accelerate.skip_first_batches`` can leave out the first batches.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.rank, self.num_replicas = loader.dataset.stream.spec.ranks.resolve()
        self.epoch = loader.dataset.epoch
        self.batch_size: Any = loader.batch_size
        self.drop_last = loader.drop_last

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch of the next pass.

        Fabric counts epochs from 0 in each process. So the first name after a state was loaded stands for the epoch of
        that state, and later names for later epochs.
        """
        self._loader.name_epoch(epoch, meet_lightning(self._loader))

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch on this rank."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the steps of the current epoch."""
        epoch = self._loader.dataset.epoch
        try:
            numbers: Any = range(len(self))
        except TypeError:
            numbers = itertools.count()
        return (Step(epoch, number) for number in numbers)


def counted_in_samples(dataset: ShoalDataset) -> ShoalDataset:
    """Return the dataset with the length that training code expects of ``loader.dataset``: samples over all ranks."""
    view: ShoalDataset = object.__new__(_kind_in_samples(cast("Any", type(dataset))))
    view.__dict__ = dataset.__dict__
    return view


def as_given(dataset: ShoalDataset) -> ShoalDataset:
    """Return the dataset that `counted_in_samples` was called with, or an equal one."""
    kind = getattr(type(dataset), "_kind_as_given", None)
    if kind is None:
        return dataset
    given: ShoalDataset = object.__new__(kind)
    given.__dict__ = dataset.__dict__
    return given


@cache
def _kind_in_samples(kind: type[ShoalDataset]) -> type[ShoalDataset]:
    def length(dataset: ShoalDataset) -> int:
        return dataset.stream.num_rows()

    def reduced(dataset: ShoalDataset) -> Any:
        return counted_in_samples, (as_given(dataset),)

    # What its verbs make are datasets as ever.
    methods = {"__len__": length, "__new__": lambda _, *given: kind(*given), "__reduce__": reduced}
    return type(kind.__name__, (kind,), {**methods, "__doc__": kind.__doc__, "_kind_as_given": kind})


class Steps(Dataset):  # type: ignore[type-arg]
    """The batches of a loader by `Step`: a dataset for a loader of torch.

    Batches are made by the loader, so that its workers, state, counters and certificate serve here as well. Steps in
    order cost what a loop costs; a step out of order begins there, without reading what is before it.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._pass: Any = None
        self._next = Step(-1, 0)

    def __len__(self) -> int:
        """Return the number of samples in an epoch, over all ranks."""
        return self._loader.dataset.stream.num_rows()

    def __getitem__(self, step: Step) -> Any:
        """Return the batch of a step."""
        if step != self._next:
            self._begin(step)
        batch = next(self._pass)
        self._next = Step(step.epoch, step.number + 1)
        return batch

    __getitems__ = __getitem__  # what torch asks for where a sampler yields batches

    def _begin(self, step: Step) -> None:
        if self._pass is not None:
            self._pass.close()
        ds, num_read = self._loader.dataset, 0
        if ds.stream.spec.batcher.counts_share:
            num_read, step = step.number, Step(step.epoch, 0)
        position = step.number * ds.stream.partition.global_batch
        if (ds.epoch, ds.stream.cursor.start.number) != (step.epoch, position):
            ds.load_state_dict(ds.state_at(position, epoch=step.epoch))
        self._pass = iter(self._loader)
        for _ in itertools.islice(
            self._pass, num_read
        ):  # of batches that are filled, only reading shows where they end
            pass


def _as_it_is(made: Any) -> Any:
    return made


# What code sees that makes another loader of the attributes of this one, by its module.
_VIEWS: dict[str, dict[str, Callable[[Loader], Any]]] = {
    "accelerate.data_loader": {
        "dataset": Steps,
        "collate_fn": lambda _: _as_it_is,
        "num_workers": lambda _: 0,
        "pin_memory": lambda _: False,
        "persistent_workers": lambda _: False,
        "timeout": lambda _: 0,
        **dict.fromkeys(("worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor"), lambda _: None),
    },
}


class Shown(Generic[T]):
    """An attribute of torch's loader that a loader keeps as it was given, and shows as `_VIEWS` says.

    All others see what ``shown_as`` makes of it.
    """

    def __init__(self, shown_as: Callable[[T], T] | None = None) -> None:
        self._shown_as = shown_as

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, loader: Any, owner: type | None = None) -> T:
        if loader is None:
            return cast("T", self)
        views = _VIEWS.get(sys._getframe(1).f_globals.get("__name__", ""))  # noqa: SLF001  # who asks
        if views and self._name in views:
            return cast("T", views[self._name](loader))
        given: T = loader.__dict__[self._name]
        return given if self._shown_as is None else self._shown_as(given)

    def __set__(self, loader: Any, value: T) -> None:
        loader.__dict__[self._name] = value
