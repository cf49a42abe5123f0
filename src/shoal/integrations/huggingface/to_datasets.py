"""A dataset as an `IterableDataset` of Hugging Face ``datasets``: its order, its epochs and its exact state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any, cast

from shoal.errors import StateError, UsageError
from shoal.integrations.huggingface.datasets_library import datasets_library
from shoal.order.state import State
from shoal.pipeline.stages import ToTuple
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.ranks.ranks import Ranks

__all__ = ["Examples", "to_hf"]

# Divisible by every number of ranks up to 16, by all powers of two up to 1024, and by products of these: the library
# gives each rank shards of its own only where their number can be divided, and every example to skip over otherwise.
_NUM_PARTS = 46_126_080


def to_hf(dataset: Dataset, *, features: Any = None) -> Any:
    """The samples of a dataset as a `datasets.IterableDataset`, in the same order, with a state that resumes exactly.

    ``set_epoch(e)`` chooses the epoch; ``state_dict`` and ``load_state_dict`` are exact, at any place of the epoch and
    in any number of them. It is the order over all ranks: ``split_dataset_by_node`` deals it out, and a DataLoader's
    workers share what a rank gets, each sample once. A state fits the split and number of workers that it was saved
    with; where these change, train from the dataset itself.

    It begins at the position that was loaded, in its epoch, else at the start of the current one.

    Parameters
    ----------
    features
        A `datasets.Features`, where the types are to be known.

    Raises
    ------
    UsageError
        The dataset gives batches, tuples or the part of a rank, which that library makes itself; or the library is
        missing or too old.
    """
    if not isinstance(given := cast("Any", dataset), Dataset):
        msg = f"to_hf() takes a shoal dataset; got {type(given).__name__}"
        raise UsageError(msg, hint="shoal.open(...).shuffle(...)")
    described = dataset._description  # noqa: SLF001  # what the user described
    if described.batching is not None:
        msg = "Hugging Face datasets hold samples, and this dataset gives batches"
        raise UsageError(msg, hint="leave out batch(); there is .batch(n) of datasets, and the loader's batch_size=")
    if any(isinstance(stage, ToTuple) for stage in described.stages):
        msg = "Hugging Face datasets hold samples with fields, and this dataset gives tuples"
        raise UsageError(msg, hint="columns() in place of to_tuple()")
    if described.ranks != Ranks():
        msg = "partition() deals samples to ranks, and Hugging Face datasets are dealt by that library"
        raise UsageError(msg, hint="leave out partition(), and split_dataset_by_node(ds.to_hf(), rank, world_size)")
    datasets = datasets_library()
    start = dataset.state_dict()
    made = datasets.IterableDataset(Examples(dataset, start), info=datasets.DatasetInfo(features=features))
    made.set_epoch(start["epoch"])
    return made


class Examples:
    """The source behind such an `IterableDataset`, with the methods that the library asks of its own.

    Of every ``num_parts`` positions it gives the one at ``part``: dealing it to ranks and workers multiplies these.
    """

    def __init__(self, dataset: Dataset, start: dict[str, Any]) -> None:
        self._dataset, self._start = dataset, start
        self._epoch, self._part, self._num_parts = 0, 0, 1
        self._in_worker = False
        self._state_dict: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Every sample of this part with its step, and the state moved on before each."""
        state = self._state_dict if self._state_dict is not None else self._init_state_dict()
        self._check(state)
        state["start"] = state["start"] or self._first_state()
        with self._iteration(state["start"], state["taken"]) as iteration:
            for sample in iteration:
                state["taken"] = iteration.place.num_yielded
                yield state["taken"], sample

    @property
    def num_shards(self) -> int:
        """Parts that it can still be dealt in."""
        return _NUM_PARTS

    def split_shard_indices_by_worker(self, num_shards: int, index: int, contiguous: bool = True) -> range:  # noqa: ARG002, FBT001, FBT002
        """Which parts are one worker's: never none."""
        return range(index, self.num_shards, num_shards)

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> Examples:  # noqa: ARG002, FBT001, FBT002
        """Every ``num_shards``-th sample of these."""
        dealt = copy(self)
        dealt._part, dealt._num_parts = self._part + self._num_parts * index, self._num_parts * num_shards  # noqa: SLF001
        dealt._in_worker = _in_worker()  # noqa: SLF001
        dealt._state_dict = None  # noqa: SLF001
        return dealt

    def shift_rngs(self, value: int) -> Examples:
        """The same of a later epoch: so the library tells its sources which it is.

        A worker shifts once more, by its number, after it was given its part; that is not for us.
        """
        if self._in_worker:
            return self
        shifted = copy(self)
        shifted._epoch, shifted._state_dict = self._epoch + value, None  # noqa: SLF001
        return shifted

    def shuffle_data_sources(self, generator: Any) -> Examples:  # noqa: ARG002
        """The same: the order is that of the dataset. The library asks for this with each epoch, and with shuffle()."""
        caller = sys._getframe(1)  # noqa: SLF001  # there is no other way to know
        if caller.f_code.co_name == "shuffle":
            msg = "shuffle() of Hugging Face datasets was asked for, over the order of a shoal dataset"
            hint = "shoal.open(...).shuffle(seed=...).to_hf(): that library's buffer loses samples when a run resumes"
            raise UsageError(msg, hint=hint)
        return self

    def reshard_data_sources(self) -> Examples:
        """The same: it can be dealt in any number of parts."""
        return self

    @property
    def iter_arrow(self) -> None:
        """There are no tables."""
        return

    @property
    def is_typed(self) -> bool:
        """Whether the types are known from the source."""
        return False

    @property
    def features(self) -> None:
        """Not known from the source."""
        return

    @property
    def sleep_on_threads_shutdown(self) -> bool:
        """Whether the library has to wait for threads of pyarrow."""
        return False

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {
            "type": "shoal",
            "part": self._part,
            "num_parts": self._num_parts,
            "epoch": self._epoch,
            "start": None,
            "taken": 0,
        }
        return self._state_dict

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return dict(self._state_dict if self._state_dict is not None else self._init_state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Any]:
        """Go on there; the dict that is given back moves.

        Whether it is a state of this part shows when iteration begins: in a worker the library loads it a first time
        before it has said which part is the worker's.
        """
        mine = self._init_state_dict()
        mine.update(state)
        return mine

    def _check(self, state: dict[str, Any]) -> None:
        for name, ours in (("type", "shoal"), ("num_parts", self._num_parts), ("part", self._part)):
            if state[name] != ours:
                msg = f"the state was saved with {name}={state[name]}; this is {name}={ours}"
                hint = "keep ranks, workers and shard() as they were; a state of the shoal dataset itself fits any"
                raise StateError(msg, hint=hint)

    def _first_state(self) -> dict[str, Any]:
        """Where the epoch begins: at the position that was loaded, if it was one of this epoch."""
        if self._epoch < self._start["epoch"]:
            msg = f"epoch {self._epoch} would begin, and the dataset stood in epoch {self._start['epoch']}"
            hint = f"set_epoch({self._start['epoch']}) on what is iterated: map() and the like forget it"
            raise UsageError(msg, hint=hint)
        if self._epoch == self._start["epoch"]:
            return self._start
        return replace(State.from_dict(self._start), epoch=self._epoch, position=0).to_dict()

    def _iteration(self, start: dict[str, Any], first_step: int) -> Iteration:
        dataset = self._dataset.partition(rank=0, world_size=1)  # with a position of its own
        dataset.load_state_dict(start)
        run = dataset._pass()  # noqa: SLF001  # what iter(dataset) does, before it is shared
        parts = self._num_parts
        work = run.work.of_worker(self._part, parts) if parts > 1 else run.work
        return work.iterate(
            run.counters, epoch=run.epoch, start=run.start, ended=_nothing, state=run.state, first_step=first_step
        )


def _in_worker() -> bool:
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and torch_data.get_worker_info() is not None


def _nothing(_: object) -> None:
    """The library counts epochs."""
