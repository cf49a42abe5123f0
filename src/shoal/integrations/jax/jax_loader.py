"""`shoal.jax.DataLoader`: batches of a dataset as JAX arrays, on any number of processes, exactly resumable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.integrations.jax.jax_arrays import Placing, on_process, rank_of_rows
from shoal.integrations.jax.jax_library import jax_library
from shoal.pipeline.stages import Filter
from shoal.processes.interrupts import InterruptsHeld, begin_elsewhere
from shoal.stats.throughput import Throughput
from shoal.stream.certificate.delivery_sums import Proof
from shoal.stream.checkpoint.position import Position
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_spec import IteratorSpec
from shoal.stream.workers.prefetcher import Ahead


class DataLoader:
    """Batches of a dataset as `jax.Array`, in exactly the order of ``iter(dataset)``.

    A thread of this process makes them ahead of use. The position is the dataset's: ``loader.state_dict()`` is
    ``ds.state_dict()``, the same in all processes, and counts received batches.

    Parameters
    ----------
    dataset
        A dataset with `Dataset.batch`.
    sharding
        Sharding of the rows of a global batch, such as ``NamedSharding(mesh, PartitionSpec("data"))``: batches are then
        arrays over all processes, made from each one's part by ``jax.make_array_from_process_local_data``. All of them
        have one shape, so the dataset needs ``remainder="drop"`` or ``"pad"``; with the latter, every batch marks its
        repeats in ``__pad__``. Default: arrays of this process alone, with however many samples it has.
    num_epochs
        Epochs in all, counted from epoch 0: an iterator continues from one to the next until that many were run, also
        across stops. Default: an iterator ends with its epoch, and the next iterator begins the next epoch.
    prefetch
        Batches that are made, and sent to devices, ahead of use; 0 makes each on request.

    Raises
    ------
    UsageError
        The batches cannot be those of the sharding, or the ranks are not those that it implies for the processes.
    """

    def __init__(
        self, dataset: Dataset, *, sharding: Any = None, num_epochs: int | None = None, prefetch: int = 2
    ) -> None:
        if not isinstance(given := cast("Any", dataset), Dataset):
            msg = f"shoal.jax.DataLoader streams a shoal dataset; got {type(given).__name__}"
            raise UsageError(msg, hint="shoal.open(...).batch(...)")
        if prefetch < 0 or (num_epochs is not None and num_epochs < 1):
            msg = f"prefetch={prefetch}, num_epochs={num_epochs}: out of range"
            raise UsageError(msg, hint="prefetch is 0 or more, num_epochs at least 1, or None for one epoch at a time")
        self.dataset = dataset
        self.sharding = sharding
        self.num_epochs = num_epochs
        self.prefetch = prefetch
        jax_library()
        run = _pass_of(dataset)
        if not run.work.recipe.partition.batched:
            msg = "JAX takes batches, and this dataset gives single samples"
            raise UsageError(msg, hint="ds.batch(global_batch_size=...)")
        if sharding is not None:
            _check_batches(run, sharding)

    def __repr__(self) -> str:
        """Return the dataset, and the destination of its batches."""
        where = "arrays of this process" if self.sharding is None else f"arrays over {self.sharding}"
        return f"<shoal.jax.DataLoader: {self.dataset!r}, {where}>"

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, the same in all processes."""
        return len(self.dataset)

    def __iter__(self) -> DataIterator:
        """Begin at the loaded position if one was loaded for this epoch, else at its start."""
        return DataIterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Begin at the start of this epoch next; does nothing if it is the current one."""
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the newest iterator, counting received batches; see `Dataset.state_dict`."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state; see `Dataset.load_state_dict`."""
        self.dataset.load_state_dict(state)


class DataIterator:
    """Iterator over batches, with the protocol of Grain's iterators: ``next``, `get_state`, `set_state`.

    After an error it raises the same error again: an epoch that failed must not look like one that ended.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self.place: Position
        self._is_stopped = False
        self._batches: Iterator[Any] = iter(())
        self._failure: BaseException | None = None
        self._ahead: Ahead | None = None
        self._begin()

    def get_state(self) -> dict[str, Any]:
        """Return the state after every batch that this iterator gave: a few integers, the same in all processes."""
        return self._run.state(*self.place.position)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state, on any number of processes; batches made ahead are dropped.

        Raises
        ------
        StateError
            The state belongs to another dataset, seed or order; the iterator stays where it was.
        """
        self._loader.dataset.load_state_dict(state)
        self.close()
        self._begin()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._failure is not None:
            raise self._failure
        taken: list[tuple[Any, Proof]] = []
        self._before = (self.place, self.place.num_yielded, self.place.received)
        try:
            return self._next(taken)
        except StopIteration:
            raise
        except BaseException as error:
            self._undo(error, taken)
            if self._is_stopped and isinstance(error, Exception):
                raise StopIteration from None
            raise

    def stop(self) -> None:
        """Give no more batches; returns at once, and a ``next`` that waits for one ends within a moment.

        Unlike `close`, it may be called in a signal handler. The state stays that after everything given.
        """
        self._is_stopped = self._closed = True
        begin_elsewhere(self.close)

    def close(self) -> None:
        """Stop making batches, and give no more."""
        with InterruptsHeld():
            self._closed = True
            self._batches = iter(())
            self._end_line()
            if self._ahead is not None:
                self._ahead.close()
            self._iteration.close()

    def _end_line(self) -> None:
        if self._line is not None:
            self._line.close()

    def _next(self, taken: list[tuple[Any, Proof]]) -> Any:
        """Return the next batch; a batch taken from those made ahead is recorded in ``taken`` first, for `_undo`."""
        began = self._pace.clock()
        try:
            self._take(taken)
            self._before = (self.place, self.place.num_yielded, self.place.received)  # maybe of the next epoch
            with InterruptsHeld():
                self.place.num_yielded += 1
                batch, self.place.received = taken[0]
                if self._line is not None:
                    self._line.step()
                if self.place.num_yielded >= self._run.num_steps:
                    self._end_line()
                    self._run.ended(self.place)  # now, since a loop that counts to len() never calls again
            return batch
        finally:
            self._pace.add(began, self._pace.clock())

    def _undo(self, error: BaseException, taken: list[tuple[Any, Proof]]) -> None:
        """Restore the state before a batch that was not given out, because of an interrupt or an error."""
        with InterruptsHeld():
            place, num_yielded, received = self._before
            place.num_yielded, place.received = num_yielded, received
            if isinstance(error, Exception) and not taken:
                self._failure = error
                self.close()
            elif self._ahead is None:
                self._failure = _interrupted()
                self.close()
            elif taken:
                self._ahead.give_back(taken[0])

    def _take(self, taken: list[tuple[Any, Proof]]) -> None:
        """Append the next batch to ``taken``, with the proof of all that was delivered up to it."""
        while not self._closed:
            try:
                if self._ahead is None:
                    taken.append(next(self._batches))
                else:
                    self._ahead.wait()
                    with InterruptsHeld():
                        taken.append(self._ahead.take())
            except StopIteration:
                if self._is_stopped:
                    break
                self._run.ended(self.place)
                self.close()
                if self._loader.num_epochs is None or self._run.epoch + 1 >= self._loader.num_epochs:
                    break
                self._begin()
            else:
                return
        raise StopIteration

    def _begin(self) -> None:
        """Start making the rest of the dataset's current epoch."""
        loader = self._loader
        run = self._run = _pass_of(loader.dataset)
        self._failure = None
        self.place = run.place()
        self._iteration: Iteration = Iteration(
            run.silent().work, run.counters, epoch=run.epoch, start=run.start, ended=_nothing, state=run.state
        )
        self._pace = run.counters.pace = Throughput(run.counters)
        self._line = run.progress_line(self.place)
        run.follow(self.place)
        self._ahead = None
        self._closed = loader.num_epochs is not None and run.epoch >= loader.num_epochs
        if self._closed:
            self.close()
            return
        if loader.num_epochs is not None and not run.start and not run.num_steps:
            self.close()
            shares = run.work.recipe.partition
            msg = f"no epoch has a batch of {shares.global_batch}: there are {self.place.num_samples} samples"
            raise UsageError(msg, hint='a smaller batch, or remainder="pad"')
        # The default device is that of this thread: another thread may make the arrays.
        placed = _placed(run, self._iteration, loader.sharding, jax_library().config.jax_default_device)
        made = self._iteration.place
        batches = ((batch, made.proof) for batch in placed)  # in the thread that makes them, so that both match
        if loader.prefetch:
            self._ahead = Ahead(batches, limit=loader.prefetch, close=self._iteration.close)
        self._batches = self._ahead or batches


def partition(dataset: Dataset, sharding: Any) -> Dataset:
    """Return the part of this process under a sharding of rows; processes whose devices hold the same rows share it.

    Meant for meshes with tensor or pipeline parallel axes that span several processes. If every process has its own
    rows, in the order of processes, this call is not needed.

    Raises
    ------
    UsageError
        The sharding splits more than rows, leaves this process out, or gives two processes only some rows in common.
    """
    rank, world_size = rank_of_rows(sharding)
    return dataset.partition(rank=rank, world_size=world_size)


def _placed(run: IteratorSpec, batches: Iterator[Any], sharding: Any, device: Any) -> Iterator[Any]:
    """Yield the batches of a pass as JAX arrays."""
    shares = run.work.recipe.partition
    if sharding is None:
        yield from map(Placing(None, device), batches)
        return
    num_local = shares.global_batch // shares.world_size
    place = Placing(sharding, device, shares.global_batch, num_local)
    pads = shares.remainder == "pad"
    for step, batch in enumerate(batches):
        yield place(on_process(batch, _repeated(run, step, num_local)) if pads else batch)


def _repeated(run: IteratorSpec, step: int, num_local: int) -> NDArray[np.bool_]:
    """Return a mask of this process's samples of a step that are repeats; only the last step of an epoch has any."""
    if step < run.num_steps - 1:
        return np.zeros(num_local, dtype=np.bool_)
    work = run.work
    order = work.arrangement.epoch(run.epoch)
    return work.recipe.partition.share(order, work.recipe.rank, step, step + 1, run.start).repeated


def _check_batches(run: IteratorSpec, sharding: Any) -> None:
    """Raise `UsageError` unless every batch of this process is its rows of an array under a sharding."""
    recipe, shares = run.work.recipe, run.work.recipe.partition
    if shares.remainder == "keep":
        msg = f"with sharding= all batches have one shape, and remainder='keep' leaves less than {shares.global_batch}"
        hint = 'batch(..., remainder="drop"), or "pad", which fills the last one with repeats and marks them'
        raise UsageError(msg, hint=hint)
    options = run.work.options
    if any(isinstance(stage, Filter) for stage in recipe.stages) or options.skips or options.quarantine is not None:
        msg = "with sharding= all batches have one shape, and filter() or reading() leaves samples out"
        raise UsageError(msg, hint="map() samples to what the loss ignores, or go without sharding=")
    rank, world_size = rank_of_rows(sharding)
    if (rank, world_size) != (recipe.rank, shares.world_size):
        msg = f"the sharding makes this process part {rank} of {world_size}, and the dataset rank {recipe.rank} of "
        msg += f"{shares.world_size}"
        raise UsageError(msg, hint="shoal.jax.DataLoader(shoal.jax.partition(ds, sharding), sharding=sharding)")
    num_parts = len({str(part) for part in sharding.devices_indices_map((len(sharding.device_set),)).values()})
    if shares.global_batch % max(num_parts, world_size):
        msg = f"a global batch of {shares.global_batch} has no equal parts for the {num_parts} that the sharding makes"
        raise UsageError(msg, hint=f"batch(global_batch_size=...) with a multiple of {num_parts}")


def _pass_of(dataset: Dataset) -> IteratorSpec:
    return dataset._pass()  # noqa: SLF001  # what iter(dataset) does, before it begins


def _interrupted() -> UsageError:
    msg = "this iterator was interrupted while it made a batch, and has lost it"
    return UsageError(msg, hint="iterator.set_state(iterator.get_state()): nothing is lost by that")


def _nothing(_: object) -> None:
    """Do nothing: the receiver counts, not the maker."""
