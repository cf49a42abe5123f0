"""`shoal.torch.DataLoader`: batches of a dataset as tensors, from threads or worker processes, exactly resumable."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import SequentialSampler

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.integrations.torch.batch_transfer import can_pin, pinned_array, pinned_for
from shoal.integrations.torch.framework_view import (
    Accelerated,
    AcceleratedPass,
    PreparedMark,
    Shown,
    counted_in_samples,
    original,
)
from shoal.integrations.torch.lightning_epochs import ReportedLength, StepSampler
from shoal.integrations.torch.loader_arguments import check_travels, refuse_contradictions, refuse_decided
from shoal.integrations.torch.worker_processes import Workers, begin_importing_for
from shoal.order.protocol import as_within
from shoal.pipeline.collate import collate
from shoal.pipeline.decode_pool import ThreadChoice, choose_threads
from shoal.pipeline.stages.stage import Stage
from shoal.pipeline.tensors import tensors
from shoal.processes.interrupts import InterruptsHeld
from shoal.processes.start_methods import start_context
from shoal.storage.retry import StoppedError
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator import BatchSource, Iteration
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.refilling.steps_of_pass import StepsOfPass
from shoal.stream.workers.prefetch_thread import Prefetcher
from shoal.stream.workers.worker_source import WorkerSource

_PRELOAD = ("torch.utils.data", "shoal.stream.workers.worker_loop")
_BATCHES_AHEAD = 2
_MOST_WORKERS, _MOST_AHEAD = 4096, 1 << 16
_log = logging.getLogger("shoal")


class DataLoader(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """Batches of a dataset as tensors, in exactly the order of ``iter(dataset)``, from threads or workers.

    The loader takes the arguments of `torch.utils.data.DataLoader` that the dataset does not decide, and behaves like
    it. It is an instance of that class, so frameworks accept it, but uses none of its code. ``sampler`` tells
    frameworks that each rank has its part already, and takes their epochs (`lightning_epochs`). ``len(loader)`` counts
    batches of this rank, and ``len(loader.dataset)`` samples over all ranks, as with torch's loader.

    The loader's position is the dataset's: ``loader.state_dict()`` equals ``ds.state_dict()``, and counts received
    batches, not prefetched ones.

    Parameters
    ----------
    dataset
        A dataset with `Dataset.batch`.
    num_workers
        Processes that make batches: worker ``w`` of ``m`` makes the steps ``t`` of the rank with ``t % m == w``. With
        0, threads of this process make the batches. Choose 0 to read or decode images, and processes if your own Python
        code is slow. Each worker holds its own window; workers share data from a network on disk. With
        ``filter(refill=True)``, workers send samples, and this process makes the batches, with ``collate_fn``.
    collate_fn
        Function from a list of samples to a batch; default: the batch of `Dataset.batch`, with arrays as tensors.
    pin_memory
        True for tensors in pinned memory. With ``num_workers=0``, numeric columns, like tokens, are gathered straight
        into pinned memory, and arrays and tensors of samples are stacked there; all other values are copied. Without an
        accelerator, nothing is pinned, and a warning says so.
    timeout
        Seconds to wait for a batch of a worker; 0 waits without limit.
    worker_init_fn
        Function that each worker calls with its number.
    multiprocessing_context
        Start method of workers: "forkserver" (the default, if available), "spawn" or "fork".
    generator
        Source of the seed of the workers' random numbers. It does not affect the order.
    prefetch_factor
        Batches made ahead of use, per worker; 2 by default. With ``num_workers=0``, 0 makes each batch on request, in
        the calling thread.
    persistent_workers
        True to keep workers for the next epoch. The epochs stay the same: new workers start if the input of the old
        ones changed (a state that leaves samples out, a value in a function object).
    num_threads
        Threads that decode ahead of use and in order, with ``num_workers=0``. Default: one per core, up to 8 (4 without
        simplejpeg), divided among the ranks of a machine, for decoding of images and the stages of shoal before it;
        `decoding` gives the choice and its reason. By default one thread calls the functions of `Dataset.map`,
        `filter` and `decode`, one sample after another; with a number, that many threads call functions of samples at a
        time, so they must be thread-safe. Threads run the stages up to the first with ``max_concurrency``.
    prefetch_bytes
        With ``num_workers=0``, the limit on bytes of ready batches that wait for use, and on bytes of decoded samples.
        One batch is always made ahead.

    Raises
    ------
    UsageError
        Arguments contradict each other, or the dataset decides them.

    Examples
    --------
    >>> for epoch in range(2):
    ...     loader.set_epoch(epoch)
    ...     for batch in loader:
    ...         texts, labels = batch["txt"], batch["cls"]
    >>> labels, len(loader)
    (tensor([0, 1, 0, 2, 1, 1, 2, 2]), 25)
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
    use_stateful_dataloader = True  # accelerate then saves and loads the state with its own

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
        refuse_decided({"batch_size": batch_size, **other})
        if not isinstance(cast("Any", dataset), Dataset):
            msg = f"shoal.torch.DataLoader takes a shoal dataset; got {type(dataset).__name__}"
            raise UsageError(msg, hint="shoal.open(...).batch(...); for other datasets use torch's own loader")
        least = 1 if num_workers else 0
        num_workers = as_within("num_workers", num_workers, 0, _MOST_WORKERS)
        if prefetch_factor is not None:
            prefetch_factor = as_within("prefetch_factor", prefetch_factor, least, _MOST_AHEAD)
        if num_threads is not None:
            num_threads = as_within("num_threads", num_threads, 1, _MOST_WORKERS)
        if timeout < 0:
            raise UsageError(f"timeout={timeout} must not be negative", hint="0 waits without a limit")
        refuse_contradictions(
            num_workers,
            num_threads,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            persistent_workers=persistent_workers or None,
        )
        self.dataset = original(dataset)
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
        # A framework that wants the same batches in each epoch passes this sampler.
        self._keeps_epoch = isinstance(other.get("sampler"), SequentialSampler)
        self._first_epoch = 0
        self.accelerated: Accelerated | None = None
        self._kept_workers: Workers | None = None
        self._newest: weakref.ref[Iteration] | None = None
        self._is_stopped = self._has_logged_stop = False
        self._reported_length = ReportedLength()
        if num_workers:
            begin_importing_for(self.multiprocessing_context, dataset.stream.spec.stages, collate_fn, worker_init_fn)

    def __repr__(self) -> str:
        """Return the dataset, and the threads or processes that decode."""
        return f"<shoal.torch.DataLoader: {self.dataset!r}, decoded in {self.decoding}>"

    @property
    def decoding(self) -> str:
        """The threads or processes that decode, and the reason: "2 threads: ..."; also in `stats`.

        Examples
        --------
        >>> loader.decoding
        'one thread: no stage decodes images, audio or video, or tokenizes'
        """
        if self.num_workers:
            makers = "worker process" if self.num_workers == 1 else "worker processes"
            return f"{self.num_workers} {makers}: num_workers={self.num_workers} was given"
        return self._threads(self.dataset.stream.spec.stages).words

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, the same on all ranks.

        Raises
        ------
        TypeError
            The length is unknown before the end of the epoch: `filter` with ``refill=True``, sequences packed as they
            come, a mixture without end, or the first epoch of ``index="grow"``. The error names alternatives.

        Examples
        --------
        >>> len(loader), len(loader.dataset)
        (25, 200)
        """
        return self._reported_length.of(self.dataset.stream)

    def __iter__(self) -> Iteration | StepsOfPass | AcceleratedPass:  # type: ignore[override]
        """Iterate like ``iter(dataset)``: from the loaded position, else from the start of the current epoch.

        Examples
        --------
        >>> next(iter(loader))["cls"]
        tensor([2, 0, 1, 0, 0, 2, 0, 0])
        """
        stream = self.dataset.stream
        num_steps, stay = stream.num_steps_of_pass, stream.stay
        batches = self._begun() if num_steps is None else StepsOfPass(self._begun(), self._begun, stay, num_steps)
        return batches if self.accelerated is None else self.accelerated.passed(batches, stream.partition)

    def _begun(self) -> Iteration:
        iteration = Iteration(*self._next_start(), renew=self._next_start)
        self._newest = weakref.ref(iteration)
        if self._is_stopped:  # perhaps by a signal handler, a moment ago
            if not self._has_logged_stop:
                self._has_logged_stop = True
                _log.warning("the loader was stopped, and gives no batches before loader.start()")
            iteration.stop()
        return iteration

    def _next_start(self) -> tuple[IteratorSpec, BatchSource | None]:
        """Return the start of the next iterator, and the source of its batches if others make them."""
        spec = self.dataset.stream.iterator_spec(self.collate_fn or collate, waits_for_little=True, in_passes=True)
        if not spec.work.pipeline.partition.batched:
            msg = "a loader yields batches, but this dataset yields single samples"
            raise UsageError(msg, hint="call ds.batch(32), or pass shoal.torch.IterableDataset to torch's loader")
        self._reported_length.compare(self.dataset.stream)
        finish = _tensor_marks if self.collate_fn is not None else tensors
        if self.persistent_workers and (newest := self._newest_iteration) is not None:
            newest.close()
        if not self._is_stopped and not self.num_workers:
            with InterruptsHeld():
                return self._threads_start(spec, finish)
        if not self._is_stopped:
            received = self._pinned_after(finish)
            try:
                workers = self._workers_for(spec.unobserved())
                options: dict[str, Any] = {"stay": self.persistent_workers, "is_stopped": lambda: self._is_stopped}
                return spec, WorkerSource(workers, spec, finish=received, **options)
            except StoppedError:
                workers.close()
        return spec, None

    def _threads_start(
        self, spec: IteratorSpec, finish: Callable[[Any], Any]
    ) -> tuple[IteratorSpec, BatchSource | None]:
        """Return the start of an iterator over batches from threads of this process; from this thread without them."""
        making = spec.with_threads(self._threads(spec.work.pipeline.stages).threaded, ahead_bytes=self.prefetch_bytes)
        if self.pin_memory and can_pin():
            making = making.gathered_into(pinned_array)
            finish = self._pinned_after(finish)
        making = making.converted(partial(map, finish))
        if not self.prefetch_factor:
            return making, None
        making = making.unobserved().made_ahead()
        limits: dict[str, Any] = {"limit": self.prefetch_factor, "limit_bytes": self.prefetch_bytes}
        return spec, Prefetcher(Iteration(making), making, **limits)

    def _threads(self, stages: Sequence[Stage]) -> ThreadChoice:
        return choose_threads(stages, num_threads=self.num_threads, limit_bytes=self.prefetch_bytes)

    def _pinned_after(self, finish: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the function that finishes a batch, and pins it with ``pin_memory``."""
        if not (self.pin_memory and can_pin()):
            return finish
        pin = partial(pinned_for, torch.accelerator.current_device_index())
        return lambda batch: pin(finish(batch))

    @property
    def _newest_iteration(self) -> Iteration | None:
        return None if self._newest is None else self._newest()

    @property
    def sampler(self) -> StepSampler:  # type: ignore[override]  # torch sets it
        """Sampler of the steps of the current epoch, for frameworks that call ``sampler.set_epoch``.

        Examples
        --------
        >>> loader.sampler.set_epoch(3)
        >>> loader.state_dict()["epoch"]
        3
        """
        return StepSampler(self)

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """Samples in a whole batch of this rank; None if batches differ in size.

        Examples
        --------
        >>> loader.batch_size
        8
        """
        return self.dataset.stream.batch_size

    @property
    def drop_last(self) -> bool:  # type: ignore[override]
        """True if the last batch is dropped when it is not whole: ``batch(..., remainder="drop")``.

        Examples
        --------
        >>> loader.drop_last
        False
        """
        return self.dataset.stream.partition.remainder == "drop"

    def set_epoch(self, epoch: int) -> None:
        """Start the next iterator at the beginning of ``epoch``, unless it is the current epoch.

        An iterator that has not yielded a batch moves to this epoch, too. See `Dataset.set_epoch`.

        Examples
        --------
        >>> loader.set_epoch(3)
        >>> loader.state_dict()["epoch"]
        3
        """
        if self._keeps_epoch:
            self.dataset.stream.cursor.name_epoch()  # the same epoch again
        else:
            self.dataset.set_epoch(epoch)

    def name_epoch(self, epoch: int, num_batches: int | None = None) -> None:
        """Begin at the start of an epoch as a framework counts it; see `StepSampler.set_epoch`.

        ``num_batches`` is the framework's number of batches for every epoch.

        Examples
        --------
        >>> loader.name_epoch(3, num_batches=25)
        >>> loader.state_dict()["epoch"]
        3
        """
        loaded = self.dataset.stream.cursor.loaded_epoch
        if loaded is not None:
            self._first_epoch = loaded - epoch
        self.set_epoch(max(0, self._first_epoch + epoch))
        self._reported_length.compare(self.dataset.stream, num_batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the newest iterator, counting received batches; see `Dataset.state_dict`.

        Examples
        --------
        >>> batch = next(iter(loader))
        >>> loader.state_dict()["position"]
        8
        """
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state; see `Dataset.load_state_dict`.

        Examples
        --------
        >>> loader.load_state_dict(loader.dataset.state_at(160))
        >>> sum(1 for batch in loader)
        5
        """
        self.dataset.load_state_dict(state)

    def certificate(self) -> dict[str, Any]:
        """Return a summary of the received samples, in a few numbers; see `Dataset.certificate`.

        Examples
        --------
        >>> batches = list(loader)
        >>> loader.dataset.check_certificate(loader.certificate())
        'epoch 0: all of 200 samples'
        """
        return self.dataset.certificate()

    def stats(self) -> dict[str, Any]:
        """Return `Dataset.stats`, with the counts of worker processes, and `decoding`.

        Examples
        --------
        >>> batches = list(loader)
        >>> loader.stats()["num_batches"], loader.stats()["num_samples"]
        (25, 200)
        """
        return self.dataset.stats() | {"decoding": self.decoding}

    def stop(self) -> None:
        """End the loop over the newest iterator as if there were no more batches, even while it waits for one.

        The call returns at once, also in a signal handler, so that a job with only seconds left can save its state even
        if the storage hangs. The loop ends within two seconds of its request for the next batch, or of the stop if
        workers are starting. A stop before or between loops holds as well: no loop yields a batch before `start`, not
        even after a new state or epoch. `is_stopped` tells whether the loader is stopped.

        Examples
        --------
        >>> for batch in loader:
        ...     loader.stop()
        >>> loader.state_dict()["position"]
        8
        """
        self._is_stopped, self._has_logged_stop = True, False
        if (newest := self._newest_iteration) is not None:
            newest.stop()

    @property
    def is_stopped(self) -> bool:
        """True from `stop` to `start`.

        Examples
        --------
        >>> loader.stop()
        >>> loader.is_stopped
        True
        """
        return self._is_stopped

    def start(self) -> None:
        """Let loops yield batches again after `stop`: from a loaded state, else from the start of the epoch.

        Examples
        --------
        >>> loader.stop()
        >>> loader.start()
        >>> sum(1 for batch in loader)
        25
        """
        self._is_stopped = False

    def close(self) -> None:
        """End persistent workers; iterating again starts new ones.

        Examples
        --------
        >>> loader = shoal.torch.DataLoader(ds.batch(8), num_workers=2, persistent_workers=True)
        >>> loader.close()
        """
        if self.persistent_workers and (newest := self._newest_iteration) is not None:
            newest.close()
        kept, self._kept_workers = self._kept_workers, None
        if kept is not None:
            kept.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy with its own dataset at the same position, and without workers."""
        return {**self.__dict__, "_kept_workers": None, "_newest": None, "accelerated": None}

    def _workers_for(self, spec: IteratorSpec) -> Workers:
        options = {
            "context": self.multiprocessing_context,
            "init": self.worker_init_fn,
            "generator": self.generator,
            "prefetch_factor": self.prefetch_factor,
            "timeout": self.timeout,
        }
        kept, self._kept_workers = self._kept_workers, None
        if kept is not None:
            if kept.serve(spec.work, self.num_workers, **options):
                self._kept_workers = kept
                return kept
            kept.close()
        if self.multiprocessing_context.get_start_method() != "fork":
            check_travels(spec.work.pipeline, self.collate_fn, self.worker_init_fn)
        workers = Workers(spec.work, self.num_workers, **options)
        if self.persistent_workers:
            self._kept_workers = workers
        return workers


def _tensor_marks(batch: Any) -> Any:
    """Return the output of ``collate_fn``; only the marks of repeats become tensors."""
    if isinstance(batch, dict) and "__pad__" in batch:
        return {**batch, "__pad__": tensors(batch["__pad__"])}
    return batch
