"""`shoal.torch.DataLoader`: batches of a dataset as tensors, made by threads or worker processes, exactly resumable."""

from __future__ import annotations

import logging
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import SequentialSampler

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.integrations.torch.accelerated_pass import Accelerated, AcceleratedPass, PreparedMark
from shoal.integrations.torch.batch_transfer import can_pin, pinned_array, pinned_for
from shoal.integrations.torch.framework_view import Shown, StepSampler, as_given, counted_in_samples
from shoal.integrations.torch.said_length import SaidLength
from shoal.integrations.torch.worker_processes import WorkerBatches, Workers
from shoal.order.protocol import as_within
from shoal.pipeline.collate import collate
from shoal.pipeline.decode_pool import ThreadChoice, choose_threads
from shoal.pipeline.stages.stage import Stage
from shoal.pipeline.tensors import tensors
from shoal.processes.interrupts import InterruptsHeld
from shoal.processes.start_methods import begin_importing, start_context
from shoal.storage.retry import StoppedError
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.batch_maker import BatchMaker
from shoal.stream.iterating.iterator import Iteration, Source
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.iterating.pipeline_spec import PipelineSpec
from shoal.stream.refilling.steps_of_pass import StepsOfPass
from shoal.stream.workers.prefetch_thread import Prefetcher

_PRELOAD = ("torch.utils.data", "shoal.integrations.torch.worker_processes", "shoal.stream.dataset")
_BATCHES_AHEAD = 2
_MOST_WORKERS, _MOST_AHEAD = 4096, 1 << 16
_OPTIONS_OF_WORKERS = (
    "generator",
    "multiprocessing_context",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)
_FROM_FRAMEWORKS = (StepSampler, SequentialSampler)  # with which Lightning and Fabric make a loader anew
_log = logging.getLogger("shoal")

# Arguments of torch's loader that this one refuses, with their defaults, and what to use here.
_REFUSED = {
    "batch_size": (None, "the dataset makes the batches: ds.batch({value})"),
    "drop_last": (False, 'the dataset decides what happens to the last batch: ds.batch(..., remainder="drop")'),
    "shuffle": (None, "the dataset has the order: ds.shuffle(seed=...)"),
    "sampler": (None, "the dataset has the order: ds.shuffle() and ds.select()"),
    "batch_sampler": (None, "the dataset has order and batches: ds.shuffle().batch(...)"),
    "in_order": (True, "the order of batches is always exact"),
}


class DataLoader(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """Batches of a dataset as tensors, in exactly the order of ``iter(dataset)``, whether made by threads or workers.

    It takes the arguments of `torch.utils.data.DataLoader` that have a meaning here, and gives what that gives. It is
    an instance of that, so frameworks accept it; of its code it uses nothing. ``sampler`` says that samples are shared
    out already, and lets frameworks name the epoch (`framework_view`). ``len(loader)`` counts batches of this rank, and
    ``len(loader.dataset)`` samples over all ranks, as with torch's.

    The position is the dataset's: ``loader.state_dict()`` is ``ds.state_dict()``, and counts received batches, not
    those made ahead.

    Parameters
    ----------
    dataset
        A dataset with `Dataset.batch`.
    num_workers
        Processes that make batches: worker ``w`` of ``m`` makes the steps ``t`` of the rank with ``t % m == w``. With
        0, threads of this process make them; choose that if the work is reading or decoding images, and processes if
        your own Python code is slow. Each worker holds its own window; data from a network are shared on disk. With
        ``filter(refill=True)``, workers send samples, and batches are made of them here, with ``collate_fn``.
    collate_fn
        Function from a list of samples to a batch; default: the batch of `Dataset.batch`, with arrays as tensors.
    pin_memory
        True for tensors in pinned memory. With ``num_workers=0``, numeric columns, like tokens, are gathered straight
        into it, and arrays and tensors of samples are stacked there; all else is copied. Without an accelerator,
        nothing is pinned, and a warning says so.
    timeout
        Seconds to wait for a batch of a worker; 0 waits without limit.
    worker_init_fn
        Function called in each worker with its number.
    multiprocessing_context
        Start method of workers: "forkserver" (the default, if available), "spawn" or "fork".
    generator
        Generator from which torch draws the seed of the workers' random numbers. It does not affect the order.
    prefetch_factor
        Batches made ahead of use, per worker; 2 by default. With ``num_workers=0``, 0 makes each batch on request, in
        the calling thread.
    persistent_workers
        True to keep workers for the next epoch. The epochs are the same: if anything changed that they were started
        with (a state that leaves samples out, a value in a function object), new workers are started.
    num_threads
        Threads that decode ahead of use and in order, with ``num_workers=0``. Default: one per core, up to 8 (4 without
        simplejpeg), divided among the ranks of a machine, for work that gains by it: decoding images, and what shoal
        does to samples before that; `decoding` says what was chosen, and why. Functions given to `Dataset.map`,
        `filter` or `decode` are called by one thread, one sample after another; with a number here, functions of
        samples are called by that many threads at a time, and must be thread-safe.
    prefetch_bytes
        With ``num_workers=0``, bytes of ready batches that may wait for use, and also bytes of decoded samples. One
        batch is made ahead in any case.

    Raises
    ------
    UsageError
        Arguments contradict each other, or are decided by the dataset.
    """

    dataset = Shown[Dataset](counted_in_samples)  # type: ignore[assignment]  # torch has another class of that name
    num_workers = Shown[int]()
    collate_fn = Shown[Any]()
    pin_memory = Shown[bool]()
    timeout = Shown[float]()
    worker_init_fn = Shown[Any]()
    multiprocessing_context = Shown[Any]()
    generator = Shown[Any]()
    prefetch_factor = Shown[int | None]()
    persistent_workers = Shown[bool]()
    pin_memory_device, in_order, batch_sampler = "", True, None
    _is_accelerate_prepared = PreparedMark()
    use_stateful_dataloader = True  # so accelerate saves and loads the state with its own

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
            msg = f"shoal.torch.DataLoader takes a shoal dataset; got {type(given).__name__}"
            raise UsageError(msg, hint="shoal.open(...).batch(...); for other datasets use torch's own loader")
        least = 1 if num_workers else 0
        num_workers = as_within("num_workers", num_workers, 0, _MOST_WORKERS)
        if prefetch_factor is not None:
            prefetch_factor = as_within("prefetch_factor", prefetch_factor, least, _MOST_AHEAD)
        if num_threads is not None:
            num_threads = as_within("num_threads", num_threads, 1, _MOST_WORKERS)
        if timeout < 0:
            raise UsageError(f"timeout={timeout} must not be negative", hint="0 waits without a limit")
        if num_workers:
            _refuse_threads(num_threads, num_workers)
        else:
            _refuse_without_workers(
                worker_init_fn=worker_init_fn,
                multiprocessing_context=multiprocessing_context,
                generator=generator,
                persistent_workers=persistent_workers or None,
            )
        self.dataset = as_given(dataset)
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = start_context(multiprocessing_context, preload=_PRELOAD) if num_workers else None
        self.generator = generator
        self.prefetch_factor = _BATCHES_AHEAD if prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.num_threads = num_threads
        self.prefetch_bytes = parse_bytes(prefetch_bytes, "prefetch_bytes")
        # A framework that wants the same batches in each epoch gives this sampler.
        self._keeps_epoch = isinstance(other.get("sampler"), SequentialSampler)
        self._first_epoch = 0
        self.accelerated: Accelerated | None = None
        self._staying: Workers | None = None
        self._newest: weakref.ref[Iteration] | None = None
        self._is_stopped = self._has_logged_stop = False
        self._said_length = SaidLength()

    def __repr__(self) -> str:
        """Return the dataset, and the makers of its batches."""
        return f"<shoal.torch.DataLoader: {self.dataset!r}, decoded in {self.decoding}>"

    @property
    def decoding(self) -> str:
        """The threads or processes that decode, and why: "2 threads: ..."; also in `stats`."""
        if self.num_workers:
            who = "worker process" if self.num_workers == 1 else "worker processes"
            return f"{self.num_workers} {who}: num_workers={self.num_workers} was asked for"
        return self._threads(self.dataset.stream.spec.stages).words

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, the same on all ranks.

        Raises
        ------
        TypeError
            Nobody knows it before the end of the epoch: `filter` with ``refill=True``, sequences packed as they come,
            a mixture without end, or the first epoch of ``index="grow"``. The error says what has a length.
        """
        return self._said_length.of(self.dataset.stream)

    def __iter__(self) -> Iteration | StepsOfPass | AcceleratedPass:  # type: ignore[override]
        """Iterate as ``iter(dataset)`` does: from the loaded position, else from the start of the current epoch."""
        stream = self.dataset.stream
        num_steps, stay = stream.num_steps_of_pass, stream.stay
        batches = self._begun() if num_steps is None else StepsOfPass(self._begun(), self._begun, stay, num_steps)
        return batches if self.accelerated is None else self.accelerated.passed(batches, stream.partition)

    def _begun(self) -> Iteration:
        iteration = Iteration(*self._next_start(), renew=self._next_start)
        self._newest = weakref.ref(iteration)
        if self._is_stopped:  # perhaps by a signal handler, a moment ago
            self._log_stop()
            iteration.stop()
        return iteration

    def _next_start(self) -> tuple[IteratorSpec, Source | None]:
        """Return where the next iterator begins, and the source of its batches; a stopped loader makes none."""
        if self.num_workers:
            begin_importing(self.multiprocessing_context)
        spec = self.dataset.stream.iterator_spec(self.collate_fn or collate, waits_for_little=True, in_passes=True)
        if not spec.work.pipeline.partition.batched:
            msg = "a loader yields batches, but this dataset yields single samples"
            raise UsageError(msg, hint="ds.batch(32); single samples: shoal.torch.IterableDataset in torch's loader")
        self._said_length.compare(self.dataset.stream)
        finish = _tensor_marks if self.collate_fn is not None else tensors
        if self.persistent_workers and (newest := self._newest_iteration) is not None:
            newest.close()
        if not self._is_stopped and not self.num_workers:
            with InterruptsHeld():
                return spec, self._source_here(spec.unobserved(), finish)
        if not self._is_stopped:
            pinned = self._pinned_after(finish)
            try:
                workers = self._workers_for(spec.unobserved(), finish)
                options: dict[str, Any] = {"stay": self.persistent_workers, "is_stopped": lambda: self._is_stopped}
                return spec, WorkerBatches(workers, spec, finish=pinned, **options)
            except StoppedError:
                workers.close()
        return spec, None

    def _source_here(self, spec: IteratorSpec, finish: Callable[[Any], Any]) -> BatchMaker | Prefetcher:
        """Return the source of batches that threads of this process make, or this thread if none is made ahead."""
        spec = spec.with_threads(self._threads(spec.work.pipeline.stages).threaded)
        if self.pin_memory and can_pin():
            spec = spec.gathered_into(pinned_array)
            finish = self._pinned_after(finish)
        convert = partial(map, finish)
        if self.prefetch_factor:
            spec = spec.made_ahead()
        maker = BatchMaker(spec, convert)
        if not self.prefetch_factor:
            return maker
        return Prefetcher(Iteration(spec, maker), spec, limit=self.prefetch_factor, limit_bytes=self.prefetch_bytes)

    def _threads(self, stages: Sequence[Stage]) -> ThreadChoice:
        return choose_threads(stages, num_threads=self.num_threads, limit_bytes=self.prefetch_bytes)

    def _pinned_after(self, finish: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the function that finishes a batch, and pins it if asked to."""
        if not (self.pin_memory and torch.accelerator.is_available()):
            return finish
        pin = partial(pinned_for, torch.accelerator.current_device_index())
        return lambda batch: pin(finish(batch))

    @property
    def _newest_iteration(self) -> Iteration | None:
        return None if self._newest is None else self._newest()

    @property
    def sampler(self) -> StepSampler:  # type: ignore[override]  # torch sets it
        """The steps of the current epoch, for frameworks: ``sampler.set_epoch`` names the epoch."""
        return StepSampler(self)

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """Samples in a whole batch of this rank; None where batches differ in size."""
        return self.dataset.stream.batch_size

    @property
    def drop_last(self) -> bool:  # type: ignore[override]
        """True if the last batch is dropped when it is not whole: ``batch(..., remainder="drop")``."""
        return self.dataset.stream.partition.remainder == "drop"

    def set_epoch(self, epoch: int) -> None:
        """Begin at the start of this epoch next, unless it is the current one; see `Dataset.set_epoch`.

        An iterator that has yielded nothing yet follows.
        """
        if self._keeps_epoch:
            self.dataset.stream.cursor.name_epoch()  # which is to come again
        else:
            self.dataset.set_epoch(epoch)

    def name_epoch(self, epoch: int, num_batches: int | None = None) -> None:
        """Begin at the start of an epoch as a framework counts it; see `StepSampler.set_epoch`.

        ``num_batches`` are those after which it ends every epoch, whatever it is told of later ones.
        """
        loaded = self.dataset.stream.cursor.loaded_epoch
        if loaded is not None:
            self._first_epoch = loaded - epoch
        self.set_epoch(max(0, self._first_epoch + epoch))
        self._said_length.compare(self.dataset.stream, num_batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the newest iterator, counting received batches; see `Dataset.state_dict`."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state; see `Dataset.load_state_dict`."""
        self.dataset.load_state_dict(state)

    def certificate(self) -> dict[str, Any]:
        """Return a summary of what was received, in a few numbers; see `Dataset.certificate`."""
        return self.dataset.certificate()

    def stats(self) -> dict[str, Any]:
        """Return `Dataset.stats`, with the counts of worker processes, and `decoding`."""
        return self.dataset.stats() | {"decoding": self.decoding}

    def stop(self) -> None:
        """End the loop over the newest iterator as if there were no more batches, even while it waits for one.

        It returns at once, and may be called in a signal handler: a job with only seconds left can thus save its state,
        whatever the storage does. The loop ends within two seconds of its request for the next batch, or of the stop if
        workers are being started. Between two loops, or before the first, a stop holds as well: no loop gives a batch
        before `start`, whatever state is loaded or epoch set. `is_stopped` tells whether that is so.
        """
        self._is_stopped, self._has_logged_stop = True, False
        if (newest := self._newest_iteration) is not None:
            newest.stop()

    @property
    def is_stopped(self) -> bool:
        """True from `stop` to `start`."""
        return self._is_stopped

    def start(self) -> None:
        """Let loops give batches again after `stop`: from a loaded state, else from the start of the epoch."""
        self._is_stopped = False

    def _log_stop(self) -> None:
        if not self._has_logged_stop:
            self._has_logged_stop = True
            _log.warning("the loader was stopped, and gives no batches before loader.start()")

    def close(self) -> None:
        """End persistent workers; iterating again starts new ones."""
        if self.persistent_workers and (newest := self._newest_iteration) is not None:
            newest.close()
        staying, self._staying = self._staying, None
        if staying is not None:
            staying.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy, which has its own dataset at the same position, and no workers yet."""
        return {**self.__dict__, "_staying": None, "_newest": None, "accelerated": None}

    def _workers_for(self, spec: IteratorSpec, finish: Callable[[Any], Any]) -> Workers:
        options = {name: getattr(self, name) for name in _OPTIONS_OF_WORKERS}
        given = (spec.work, self.num_workers, finish, options)
        staying, self._staying = self._staying, None
        if staying is not None:
            if staying.serve(*given):
                self._staying = staying
                return staying
            staying.close()
        if options["multiprocessing_context"].get_start_method() != "fork":
            _check_travels(spec.work.pipeline, self.collate_fn, options["worker_init_fn"])
        workers = Workers(*given)
        if self.persistent_workers:
            self._staying = workers
        return workers


def _refuse(given: dict[str, Any]) -> None:
    """Raise `UsageError` for arguments that the dataset decides, `TypeError` for unknown ones."""
    for name, value in given.items():
        if name not in _REFUSED:
            raise TypeError(f"DataLoader() got an unexpected keyword argument {name!r}")
        default, hint = _REFUSED[name]
        if isinstance(given.get("sampler"), _FROM_FRAMEWORKS) and name in ("sampler", "shuffle"):
            continue
        if value is not default:
            raise UsageError(f"{name}={value!r} is not an option of this loader", hint=hint.format(value=value))


def _refuse_threads(num_threads: int | None, num_workers: int) -> None:
    if num_threads is not None:
        msg = f"num_threads={num_threads} with num_workers={num_workers}: threads decode only without workers"
        raise UsageError(msg, hint="num_workers=0 and num_threads=1 or more; or leave num_threads out")


def _refuse_without_workers(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            msg = f"{name}= is for worker processes, but num_workers is 0"
            raise UsageError(msg, hint="num_workers=1 or more; with 0, threads of this process make the batches")


def _check_travels(pipeline: PipelineSpec, *functions: Any) -> None:
    for thing in (*pipeline.stages, *pipeline.batch_stages, *functions):
        try:
            pickle.dumps(thing)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            msg = f"{thing!r} cannot be sent to worker processes: {error}"
            hint = (
                "define the function at the top of a module (no lambda, no function in a function); or num_workers=0; "
                'or multiprocessing_context="fork", if nothing was read from a network before'
            )
            raise UsageError(msg, hint=hint) from error


def _tensor_marks(batch: Any) -> Any:
    """Return the output of ``collate_fn`` as it is, except that the marks of repeats become tensors."""
    if isinstance(batch, dict) and "__pad__" in batch:
        return {**batch, "__pad__": tensors(batch["__pad__"])}
    return batch
