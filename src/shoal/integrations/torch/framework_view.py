"""A loader as frameworks see it: an instance of torch's loader, with the attributes that they read.

Frameworks read ``sampler``, ``dataset`` and other attributes for three reasons: to set the epoch, to deal samples to
ranks, and to make another loader from them. `StepSampler` takes epochs, and shows that samples are dealt already. If
accelerate makes a loader from the attributes in `_VIEWS`, that loader gets its batches from this one.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

from torch.utils.data import Dataset

from shoal.integrations.torch.lightning_epochs import Step
from shoal.order.partition import Partition
from shoal.stream.dataset import Dataset as ShoalDataset
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.refilling.steps_of_pass import StepsOfPass

T = TypeVar("T")
_log = logging.getLogger("shoal")
_NO_EFFECT = {
    "split_batches": "batch(global_batch_size=n) gives the size of a batch over all ranks",
    "dispatch_batches": "each rank reads its own part",
}


def counted_in_samples(dataset: ShoalDataset) -> ShoalDataset:
    """Return the dataset with the length that training code expects: samples over all ranks."""
    view: ShoalDataset = object.__new__(_kind_in_samples(cast("Any", type(dataset))))
    view.__dict__ = dataset.__dict__
    return view


def original(dataset: ShoalDataset) -> ShoalDataset:
    """Return the argument of `counted_in_samples`, or an equal dataset."""
    kind = getattr(type(dataset), "_original_kind", None)
    if kind is None:
        return dataset
    plain: ShoalDataset = object.__new__(kind)
    plain.__dict__ = dataset.__dict__
    return plain


@cache
def _kind_in_samples(kind: type[ShoalDataset]) -> type[ShoalDataset]:
    def length(dataset: ShoalDataset) -> int:
        return dataset.stream.num_rows()

    def reduced(dataset: ShoalDataset) -> Any:
        return counted_in_samples, (original(dataset),)

    # __new__: the verbs return ordinary datasets.
    methods = {"__len__": length, "__new__": lambda _, *arguments: kind(*arguments), "__reduce__": reduced}
    return type(kind.__name__, (kind,), {**methods, "__doc__": kind.__doc__, "_original_kind": kind})


class Steps(Dataset):  # type: ignore[type-arg]
    """The batches of a loader by `Step`: a dataset for a loader of torch.

    The loader makes the batches, with its workers, state, counters and certificate. Steps in order cost as much as a
    loop; a step out of order starts a new pass there, without reading the samples before it.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._pass: Any = None
        self._next = Step(-1, 0)

    def __len__(self) -> int:
        """Return the number of samples in an epoch, over all ranks."""
        return len(self._loader.dataset)

    def __getitem__(self, step: Step) -> Any:
        """Return the batch of a step."""
        if step != self._next:
            self._begin(step)
        batch = next(self._pass)
        self._next = Step(step.epoch, step.number + 1)
        return batch

    __getitems__ = __getitem__  # torch calls it if a sampler yields batches

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
        for _ in itertools.islice(self._pass, num_read):  # only reading shows the ends of filled batches
            pass


def _identity(batch: Any) -> Any:
    return batch


# The attributes for code that makes another loader from the attributes of this one, by the module of the code.
_VIEWS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "accelerate.data_loader": {
        "dataset": Steps,
        "collate_fn": lambda _: _identity,
        "num_workers": lambda _: 0,
        "pin_memory": lambda _: False,
        "persistent_workers": lambda _: False,
        "timeout": lambda _: 0,
        **dict.fromkeys(("worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor"), lambda _: None),
    }
}


class Shown(Generic[T]):
    """An attribute of torch's loader: modules in `_VIEWS` see their value, all other modules ``shown_as(value)``."""

    def __init__(self, shown_as: Callable[[T], T] | None = None) -> None:
        self._shown_as = shown_as

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, loader: Any, owner: type | None = None) -> T:
        if loader is None:
            return cast("T", self)
        views = _VIEWS.get(sys._getframe(1).f_globals.get("__name__", ""))  # noqa: SLF001  # the caller's module
        if views and self._name in views:
            return cast("T", views[self._name](loader))
        value: T = loader.__dict__[self._name]
        return value if self._shown_as is None else self._shown_as(value)

    def __set__(self, loader: Any, value: T) -> None:
        loader.__dict__[self._name] = value


class Accelerated(NamedTuple):
    """The request of ``Accelerator.prepare``: the device for the batches of a loader; None does not move them."""

    device: Any

    @classmethod
    def by_caller(cls, depth: int = 2) -> Accelerated | None:
        """Return the request of the calling ``Accelerator``; None for any other caller."""
        frame = sys._getframe(depth)  # noqa: SLF001  # accelerate passes nothing to a prepared loader
        if frame.f_globals.get("__name__") != "accelerate.accelerator":
            return None
        accelerator: Any = frame.f_locals["self"]
        for name, hint in _NO_EFFECT.items():
            if getattr(accelerator, name, None):
                _log.warning("%s=True of accelerate has no effect on shoal.torch.DataLoader: %s", name, hint)
        is_placed = frame.f_locals.get("device_placement")
        is_placed = accelerator.device_placement if is_placed is None else is_placed
        return cls(accelerator.device if is_placed else None)

    def passed(self, batches: Iteration | StepsOfPass, partition: Partition) -> AcceleratedPass:
        """Return a pass over these batches."""
        return AcceleratedPass(batches, self.device, has_repeats=partition.remainder == "pad")


class PreparedMark:
    """The attribute that marks loaders as prepared by accelerate: always true.

    ``Accelerator.prepare`` reads it, does not change the loader, and sets it. The loader keeps the caller's request.
    """

    def __get__(self, loader: Any, owner: type | None = None) -> bool:
        if loader is not None:
            loader.accelerated = Accelerated.by_caller() or loader.accelerated
        return True

    def __set__(self, loader: Any, value: Any) -> None:
        pass


class AcceleratedPass:
    """The batches of a pass, which is the active loader of accelerate's ``GradientState`` while it lasts.

    So ``accelerator.accumulate`` steps at the end of an epoch, as with torch's loader. ``gather_for_metrics`` reads
    ``remainder``: it keeps the whole last batch (0), or the batch has repeats (-1: unknown).
    """

    def __init__(self, batches: Iteration | StepsOfPass, device: Any, *, has_repeats: bool) -> None:
        from accelerate.state import GradientState  # noqa: PLC0415  # the caller of prepare() has imported it
        from accelerate.utils import send_to_device  # noqa: PLC0415

        self._batches, self._device, self._send = batches, device, send_to_device
        self._state: Any = GradientState()
        self._is_active = self.end_of_dataloader = False
        self.remainder = -1 if has_repeats else 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self._is_active:
            self._is_active = True
            self._state._add_dataloader(self)  # noqa: SLF001  # as a loader of accelerate does
        try:
            batch = next(self._batches)
        except BaseException:
            self._leave()
            raise
        self.end_of_dataloader = self._batches.is_at_end
        return batch if self._device is None else self._send(batch, self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)  # state_dict(), stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading and yielding."""
        self._leave()
        self._batches.close()

    def _leave(self) -> None:
        if self._is_active:
            self._is_active = False
            self._state._remove_dataloader(self)  # noqa: SLF001
