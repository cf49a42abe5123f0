"""`shoal.torch.DataLoader`: batches of a dataset as tensors, made by threads or worker processes, exactly resumable."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

from shoal.errors import UsageError
from shoal.integrations.torch.received_batches import ByWorkers, InThread, Received
from shoal.integrations.torch.tensor_batches import tensors
from shoal.integrations.torch.worker_processes import Workers
from shoal.order.window.sizing_by_bytes import parse_bytes
from shoal.processes.forks import start_context
from shoal.processes.interrupts import InterruptsHeld
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator_spec import IteratorSpec

__all__ = ["DataLoader"]

_PRELOAD = ("torch.utils.data", "shoal.integrations.torch.worker_processes", "shoal.stream.dataset")
_BATCHES_AHEAD = 2

# What torch's loader takes and this one does not: what to use here.
_REFUSED = {
    "batch_size": (None, "the dataset makes the batches: ds.batch({value})"),
    "drop_last": (False, 'the dataset says what becomes of the last batch: ds.batch(..., remainder="drop")'),
    "shuffle": (None, "the dataset has the order: ds.shuffle(seed=...)"),
    "sampler": (None, "the dataset has the order: ds.shuffle() and ds.select()"),
    "batch_sampler": (None, "the dataset has order and batches: ds.shuffle().batch(...)"),
    "in_order": (True, "the order of batches is exact, and cannot be given up"),
}


class DataLoader:
    """Batches of a dataset as torch wants them, in exactly the order of ``iter(dataset)``, whatever makes them.

    It takes the arguments of `torch.utils.data.DataLoader` that have a meaning here, and gives what that gives. It is
    no subclass of it: frameworks take those apart and put their own samplers in, which would lose samples; this one
    they leave alone, and it shards by rank itself.

    The position is the dataset's: ``loader.state_dict()`` is ``ds.state_dict()``, and counts batches that were
    received, not those that were made ahead.

    Parameters
    ----------
    dataset
        With `Dataset.batch`.
    num_workers
        Processes that make batches: worker ``w`` of ``m`` makes steps ``t`` of the rank with ``t % m == w``. With 0
        batches are made in threads of this process; choose that where the work is reading or the decoding of images,
        and processes where Python code of your own is slow. Each worker holds a window of its own; what comes over a
        network they share on disk.
    collate_fn
        Makes a batch of a list of samples; by default it is what `Dataset.batch` makes, with tensors for its arrays.
    pin_memory
        Whether tensors come in pinned memory. With ``num_workers=0`` columns of numbers, like tokens, are gathered
        straight into it, and arrays and tensors of samples are stacked there; all else is copied. Without an
        accelerator a warning says that they are not.
    timeout
        Seconds to wait for a batch of a worker; 0 waits as long as it takes.
    worker_init_fn
        Called in each worker with its number.
    multiprocessing_context
        How workers are started: "forkserver" (the default, where there is one), "spawn" or "fork".
    generator
        Where torch draws the seed of the workers' random numbers from. It does not touch which sample comes when.
    prefetch_factor
        Batches that are made ahead of their use, for each worker; 2 by default. With ``num_workers=0`` and 0 they are
        made when they are asked for, in the thread that asks.
    persistent_workers
        Whether workers stay for the next epoch. The epochs are the same: where anything changed that they were
        started with (a state that leaves samples out, a value in a function object), new ones are started.
    num_threads
        With ``num_workers=0``, threads that decode, ahead of use and in order. By default as many as there are cores,
        up to 4, for what gains by it: the decoding of images, and what shoal does to samples before. Functions that
        were given to `Dataset.map`, `filter` or `decode` are called by one thread, one sample after the other; with a
        number here, functions of samples are called by so many threads at a time, and must stand that.
    prefetch_bytes
        With ``num_workers=0``, how many bytes of ready batches may wait for their use, and how many of decoded
        samples. One batch is made ahead in any case.

    Raises
    ------
    UsageError
        Arguments that cannot be had together, or that the dataset decides.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: None = None,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        num_threads: int | None = None,
        prefetch_bytes: int | str = "256MiB",
        **other: Any,
    ) -> None:
        _refuse({"batch_size": batch_size, **other})
        if not isinstance(given := cast("Any", dataset), Dataset):
            msg = f"shoal.torch.DataLoader streams a shoal dataset; got {type(given).__name__}"
            raise UsageError(msg, hint="shoal.open(...).batch(...); for other datasets there is torch's own loader")
        least = 1 if num_workers else 0
        if num_workers < 0 or timeout < 0 or (prefetch_factor is not None and prefetch_factor < least):
            msg = f"num_workers={num_workers}, timeout={timeout}, prefetch_factor={prefetch_factor}: out of range"
            raise UsageError(msg, hint="none may be negative; workers need prefetch_factor=1 or more")
        self.dataset = dataset
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.prefetch_factor = _BATCHES_AHEAD if prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        if num_threads is not None and (num_threads < 1 or num_workers):
            msg = f"num_threads={num_threads} with num_workers={num_workers}: threads decode where there are no workers"
            raise UsageError(msg, hint="num_workers=0 and num_threads=1 or more; or leave num_threads out")
        self.num_threads = num_threads
        self.prefetch_bytes = parse_bytes(prefetch_bytes, "prefetch_bytes")
        worker_options = {
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
        }
        if not num_workers:
            worker_options["persistent_workers"] = persistent_workers or None
            if given := [name for name, value in worker_options.items() if value is not None]:
                msg = f"{given[0]}= is for worker processes, and there are none"
                raise UsageError(msg, hint="num_workers=1 or more; with 0 threads of this process make the batches")
        self._worker_init_fn, self._generator = worker_init_fn, generator
        self._context = start_context(multiprocessing_context, preload=_PRELOAD) if num_workers else None
        self._staying: Workers | None = None
        self._serving: Received | None = None
        self._newest: weakref.ref[Received] | None = None

    def __repr__(self) -> str:
        """The dataset, and who makes its batches."""
        who = f"{self.num_workers} workers" if self.num_workers else "threads"
        return f"<shoal.torch.DataLoader: {self.dataset!r} by {who}>"

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return len(self.dataset)

    def __iter__(self) -> Received:
        """Iterate as ``iter(dataset)`` does: from the loaded position, else from the start of the current epoch."""
        run = _pass_of(self.dataset, self.collate_fn)
        if not run.work.recipe.partition.batched:
            msg = "a loader gives batches, and this dataset gives single samples"
            raise UsageError(msg, hint="ds.batch(32); single samples: shoal.torch.IterableDataset in torch's loader")
        made_by = run.silent()
        finish = _tensor_marks if self.collate_fn is not None else tensors
        if not self.num_workers:
            made_by = made_by.with_threads(num_threads=self.num_threads, limit_bytes=self.prefetch_bytes)
            num_ahead, limit_bytes = self.prefetch_factor, self.prefetch_bytes
            with InterruptsHeld():
                made = InThread(made_by, finish, num_ahead, limit_bytes=limit_bytes, pin_memory=self.pin_memory)
                return self._noted(Received(run, made))
        if self._serving is not None:
            self._serving.close()
        workers = self._workers_for(made_by, finish)
        workers.begin(made_by)
        received = Received(run, ByWorkers(workers, run, stay=self.persistent_workers))
        self._serving = received if self.persistent_workers else None
        return self._noted(received)

    def _noted(self, received: Received) -> Received:
        self._newest = weakref.ref(received)
        return received

    def set_epoch(self, epoch: int) -> None:
        """Begin at the start of this epoch next, unless it is the current one; see `Dataset.set_epoch`."""
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator is, counting what was received; see `Dataset.state_dict`."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved; see `Dataset.load_state_dict`."""
        self.dataset.load_state_dict(state)

    def certificate(self) -> dict[str, Any]:
        """What was received, in a few numbers; see `Dataset.certificate`."""
        return self.dataset.certificate()

    def stats(self) -> dict[str, Any]:
        """The counts of `Dataset.stats`, those of worker processes included."""
        return self.dataset.stats()

    def stop(self) -> None:
        """End the loop over the newest iterator as if there were no more batches, also where it waits for one.

        It returns at once, and may be called in a signal handler: so a job that has some seconds to end in can save its
        state, whatever the storage does. The loop ends within two seconds of its asking for the next batch. Iterating
        again goes on as usual: from a state that is loaded, else from the start of the epoch.
        """
        newest = None if self._newest is None else self._newest()
        if newest is not None:
            newest.stop()

    def close(self) -> None:
        """End workers that stayed; iterating again starts new ones."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.close()
        staying, self._staying = self._staying, None
        if staying is not None:
            staying.close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy has a dataset of its own, which stands at the same position, and no workers yet."""
        return {**self.__dict__, "_staying": None, "_serving": None, "_newest": None}

    def _workers_for(self, run: IteratorSpec, finish: Callable[[Any], Any]) -> Workers:
        context: Any = self._context
        options = {
            "pin_memory": self.pin_memory,
            "timeout": self.timeout,
            "worker_init_fn": self._worker_init_fn,
            "multiprocessing_context": context,
            "generator": self._generator,
            "prefetch_factor": self.prefetch_factor,
            "persistent_workers": self.persistent_workers,
        }
        given = (run.work, self.num_workers, finish, options)
        staying, self._staying = self._staying, None
        if staying is not None:
            if staying.serve(*given):
                self._staying = staying
                return staying
            staying.close()
        if context.get_start_method() != "fork":
            _check_travels(run, self.collate_fn, self._worker_init_fn)
        workers = Workers(*given)
        if self.persistent_workers:
            self._staying = workers
        return workers


def _pass_of(dataset: Dataset, collate_fn: Callable[[list[Any]], Any] | None) -> IteratorSpec:
    return dataset._pass(collate_fn) if collate_fn is not None else dataset._pass()  # noqa: SLF001


def _refuse(given: dict[str, Any]) -> None:
    """`UsageError` for what the dataset decides, `TypeError` for what nobody knows."""
    for name, value in given.items():
        if name not in _REFUSED:
            msg = f"DataLoader() got an unexpected keyword argument {name!r}"
            raise TypeError(msg)
        default, hint = _REFUSED[name]
        if value is not default:
            msg = f"{name}={value!r} is not for this loader"
            raise UsageError(msg, hint=hint.format(value=value))


def _check_travels(run: IteratorSpec, *functions: Any) -> None:
    recipe = run.work.recipe
    for thing in (*recipe.stages, *recipe.batch_stages, *functions):
        try:
            pickle.dumps(thing)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            msg = f"{thing!r} cannot be sent to worker processes: {error}"
            hint = (
                "define the function at the top of a module (no lambda, no function in a function); or num_workers=0; "
                'or multiprocessing_context="fork", where nothing was read from a network before'
            )
            raise UsageError(msg, hint=hint) from error


def _tensor_marks(batch: Any) -> Any:
    """What ``collate_fn`` made, as it is, but for the marks of repeats, which shoal adds."""
    if isinstance(batch, dict) and "__pad__" in batch:
        return {**batch, "__pad__": tensors(batch["__pad__"])}
    return batch
