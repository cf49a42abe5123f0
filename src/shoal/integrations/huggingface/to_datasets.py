"""A dataset as an `IterableDataset` of Hugging Face ``datasets``, with its order, epochs and exact state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from typing import Any, cast

from shoal.errors import StateError, UsageError
from shoal.integrations.huggingface.arrow_tables import datasets_library
from shoal.order.state_dict import State
from shoal.order.states.checked_states import checked
from shoal.order.states.state_fields import PART
from shoal.pipeline.stages.chosen_fields import ToTuple
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.ranks import Ranks
from shoal.stream.workers.foreign_loaders import refuse_followed

# Divisible by every number of ranks up to 16, by all powers of two up to 1024, and by their products: the library deals
# shards to ranks only if the number of ranks divides the number of shards; else each rank skips the others' examples.
_NUM_PARTS = 46_126_080


def to_hf(dataset: Dataset, *, features: Any = None) -> Any:
    """Return the samples as a `datasets.IterableDataset`, in the same order, with a state that resumes exactly.

    ``set_epoch(e)`` chooses the epoch; ``state_dict`` and ``load_state_dict`` are exact, at any position and over any
    number of epochs. The result has the samples of all ranks: ``split_dataset_by_node`` divides them, and the workers
    of a DataLoader divide a rank's part. A state fits only its own split and number of workers; if these change, train
    from the dataset itself.

    The result begins at the loaded position, in that position's epoch, else at the start of the current epoch.

    Parameters
    ----------
    features
        A `datasets.Features`, to declare the types.

    Raises
    ------
    UsageError
        The dataset yields batches, tuples or the part of a rank, which `datasets` makes itself; or `datasets` is
        missing or too old.

    Examples
    --------
    >>> stream = shoal.huggingface.to_hf(ds.decode().shuffle(seed=0)).rename_column("txt", "text")
    >>> next(iter(stream))
    {'__key__': 'owl/004', 'cls': 2, 'text': 'owl 4'}
    """
    if not isinstance(cast("Any", dataset), Dataset):
        msg = f"to_hf() takes a shoal dataset; got {type(dataset).__name__}"
        raise UsageError(msg, hint="shoal.open(...).shuffle(...)")
    spec = dataset.stream.spec
    refuse_followed(spec, "a Hugging Face dataset")
    if spec.batching is not None:
        msg = "Hugging Face datasets hold samples, but this dataset yields batches"
        raise UsageError(msg, hint="leave out batch(), and use .batch(n) of datasets or batch_size= of the loader")
    if spec.batcher.counts_share:
        msg = f"{spec.batcher.verb} fills batches, but Hugging Face datasets hold samples"
        raise UsageError(msg, hint="leave out refill=True, flat_map() or pack_sequences()")
    if any(isinstance(stage, ToTuple) for stage in spec.stages):
        msg = "Hugging Face datasets hold samples with fields, but this dataset yields tuples"
        raise UsageError(msg, hint="use columns() instead of to_tuple()")
    if spec.ranks != Ranks():
        msg = "partition() deals samples to ranks, but that library deals Hugging Face datasets itself"
        hint = "leave out partition(), and call split_dataset_by_node(ds.to_hf(), rank, world_size)"
        raise UsageError(msg, hint=hint)
    datasets = datasets_library()
    start = dataset.state_dict()
    iterable = datasets.IterableDataset(Examples(dataset, start), info=datasets.DatasetInfo(features=features))
    iterable.set_epoch(start["epoch"])
    return iterable


class Examples:
    """The source of the `IterableDataset`, with the methods that the library requires of its own sources.

    It yields the positions ``part``, ``part + num_parts``, and so on; dealing to ranks and workers multiplies both.
    """

    num_shards = _NUM_PARTS
    iter_arrow = features = None  # no tables, and no declared types
    is_typed = sleep_on_threads_shutdown = False

    def __init__(self, dataset: Dataset, start: dict[str, Any]) -> None:
        self._dataset, self._start = dataset, start
        self._epoch, self._part, self._num_parts = 0, 0, 1
        self._in_worker = False
        self._state_dict: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield the samples of this part with their steps; update the state before each sample."""
        state = self._state_dict if self._state_dict is not None else self._init_state_dict()
        self._check(state)
        state["start"] = state["start"] or self._first_state()
        with self._iteration(state["start"], state["taken"]) as iteration:
            for sample in iteration:
                state["taken"] = iteration.position.num_yielded
                yield state["taken"], sample

    def split_shard_indices_by_worker(self, num_shards: int, index: int, contiguous: bool = True) -> range:  # noqa: ARG002, FBT001, FBT002
        """Return the parts of one worker: at least one part."""
        return range(index, self.num_shards, num_shards)

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> Examples:  # noqa: ARG002, FBT001, FBT002
        """Return a copy with every ``num_shards``-th sample of this source."""
        dealt = copy(self)
        dealt._part, dealt._num_parts = self._part + self._num_parts * index, self._num_parts * num_shards  # noqa: SLF001
        dealt._in_worker = _in_worker()  # noqa: SLF001
        dealt._state_dict = None  # noqa: SLF001
        return dealt

    def shift_rngs(self, value: int) -> Examples:
        """Return a copy for a later epoch: the library passes the epoch to its sources by this call.

        The library also calls it with the number of a worker after it dealt the worker's part; that call is ignored.
        """
        if self._in_worker:
            return self
        shifted = copy(self)
        shifted._epoch, shifted._state_dict = self._epoch + value, None  # noqa: SLF001
        return shifted

    def shuffle_data_sources(self, generator: Any) -> Examples:  # noqa: ARG002
        """Return self: the dataset has the order. The library calls this in each epoch, and in shuffle()."""
        caller = sys._getframe(1)  # noqa: SLF001  # there is no other way to know
        if caller.f_code.co_name == "shuffle":
            msg = "shuffle() of Hugging Face datasets would shuffle the order of a shoal dataset again"
            hint = "shoal.open(...).shuffle(seed=...).to_hf(): that library's buffer loses samples when a run resumes"
            raise UsageError(msg, hint=hint)
        return self

    def reshard_data_sources(self) -> Examples:
        """Return self: any number of parts is possible."""
        return self

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
        """Return the current state."""
        return dict(self._state_dict if self._state_dict is not None else self._init_state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Any]:
        """Resume from the state; iteration updates the returned dict.

        Only iteration checks that the state belongs to this part: in a worker, the library first loads the state before
        it deals the worker's part.
        """
        own_state = self._init_state_dict()
        own_state.update(checked(PART, state))
        return own_state

    def _check(self, state: dict[str, Any]) -> None:
        for name, own in (("num_parts", self._num_parts), ("part", self._part)):
            if state[name] != own:
                msg = f"the state was saved with {name}={state[name]}; here {name}={own}"
                hint = "keep ranks, workers and shard() as before; a state of the shoal dataset itself fits any split"
                raise StateError(msg, hint=hint)

    def _first_state(self) -> dict[str, Any]:
        """Return the state at the start of the epoch: the loaded position of this epoch, else position 0."""
        if self._epoch < self._start["epoch"]:
            msg = f"epoch {self._epoch} would begin, but the dataset is already in epoch {self._start['epoch']}"
            hint = f"set_epoch({self._start['epoch']}) on the iterated dataset: map() and others drop the epoch"
            raise UsageError(msg, hint=hint)
        if self._epoch == self._start["epoch"]:
            return self._start
        return replace(State.from_dict(self._start), epoch=self._epoch, position=0).to_dict()

    def _iteration(self, start: dict[str, Any], first_step: int) -> Iteration:
        dataset = self._dataset.partition(rank=0, world_size=1)  # a copy with its own position
        dataset.load_state_dict(start)
        spec = dataset.stream.iterator_spec()
        if self._num_parts > 1:
            spec = spec.of_worker(self._part, self._num_parts)
        return Iteration(replace(spec, first_step=first_step, cursor=None))


def _in_worker() -> bool:
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and torch_data.get_worker_info() is not None
