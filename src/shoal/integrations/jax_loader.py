"""`shoal.jax.DataLoader`: batches of a dataset as JAX arrays, on any number of processes, exactly resumable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.pipeline.decode_pool import ThreadChoice, choose_threads
from shoal.pipeline.stages.stage import Stage
from shoal.processes.interrupts import InterruptsHeld
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_stream import Stream
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.ranks import check_agreement
from shoal.stream.workers.prefetch_thread import Prefetcher

_SETTINGS_BYTES = 4096
_DECODED_BYTES = 256 << 20  # samples that wait for their batch


class DataLoader:
    """Batches of a dataset as `jax.Array`, in exactly the order of ``iter(dataset)``.

    A thread of this process makes batches ahead of use; more threads decode images if that is faster (`decoding`). The
    position is the dataset's: ``loader.state_dict()`` equals ``ds.state_dict()``, is the same in all processes, and
    counts received batches.

    Parameters
    ----------
    dataset
        A dataset with `Dataset.batch`.
    sharding
        Sharding of the rows of a global batch, such as ``NamedSharding(mesh, PartitionSpec("data"))``: batches are then
        arrays over all processes, which ``jax.make_array_from_process_local_data`` makes from the part of each process.
        All batches have one shape, so the dataset needs ``remainder="drop"`` or ``"pad"``; with ``"pad"``, every batch
        marks its repeats in ``__pad__``. Default: arrays of this process alone, with its own number of samples.
    num_epochs
        Total number of epochs, counted from epoch 0: an iterator runs through all remaining epochs, also after a
        resume. Default: an iterator ends with its epoch, and the next iterator begins the next epoch.
    prefetch
        Batches made, and sent to devices, ahead of use; 0 makes each batch on request.

    Raises
    ------
    UsageError
        The batches do not fit the sharding, or the ranks differ from the parts of the processes in the sharding.

    Examples
    --------
    >>> for batch in loader:
    ...     texts, labels = batch["txt"], batch["cls"]
    >>> labels, len(loader)
    (Array([0, 0, 0, 0, 0, 0, 1, 0], dtype=int32), 25)
    """

    def __init__(
        self, dataset: Dataset, *, sharding: Any = None, num_epochs: int | None = None, prefetch: int = 2
    ) -> None:
        if not isinstance(cast("Any", dataset), Dataset):
            msg = f"shoal.jax.DataLoader takes a shoal dataset; got {type(dataset).__name__}"
            raise UsageError(msg, hint="shoal.open(...).batch(...)")
        if prefetch < 0 or (num_epochs is not None and num_epochs < 1):
            msg = f"prefetch={prefetch}, num_epochs={num_epochs}: out of range"
            raise UsageError(msg, hint="prefetch is 0 or more, num_epochs at least 1, or None for one epoch at a time")
        self.dataset = dataset
        self.sharding = sharding
        self.num_epochs = num_epochs
        self.prefetch = prefetch
        _jax_library()
        if dataset.stream.spec.batching is None:
            msg = "shoal.jax.DataLoader yields batches, but this dataset yields single samples"
            raise UsageError(msg, hint="ds.batch(global_batch_size=...)")
        if sharding is not None:
            _check_batches(dataset.stream, sharding)

    def __repr__(self) -> str:
        """Return the dataset, and the destination of its batches."""
        where = "arrays of this process" if self.sharding is None else f"arrays over {self.sharding}"
        return f"<shoal.jax.DataLoader: {self.dataset!r}, {where}, decoded in {self.decoding}>"

    @property
    def decoding(self) -> str:
        """The threads that decode, and the reason: "2 threads: ...".

        Examples
        --------
        >>> loader.decoding
        'one thread: no stage decodes images, audio or video, or tokenizes'
        """
        return _threads(self.dataset.stream.spec.stages).words

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, the same in all processes.

        Examples
        --------
        >>> len(loader)
        25
        """
        return self.dataset.stream.length(exactly=True)

    def __iter__(self) -> DataIterator:
        """Iterate from the loaded position of this epoch, else from the start of the epoch.

        Examples
        --------
        >>> next(iter(loader))["cls"]
        Array([2, 0, 1, 0, 0, 2, 0, 0], dtype=int32)
        """
        return DataIterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Start the next iterator at the beginning of this epoch; for the current epoch, the position stays.

        Examples
        --------
        >>> loader.set_epoch(3)
        >>> loader.state_dict()["epoch"]
        3
        """
        self.dataset.set_epoch(epoch)

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


class DataIterator:
    """Iterator over batches, with the protocol of Grain's iterators: ``next``, `get_state`, `set_state`.

    After an error it raises the same error again, so that a failed epoch does not look finished.

    Examples
    --------
    >>> iterator = iter(loader)
    >>> batch, state = next(iterator), iterator.get_state()
    >>> second = next(iterator)
    >>> iterator.set_state(state)
    >>> next(iterator)["txt"] == second["txt"]
    True
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._is_stopped = False
        self._begin()

    def get_state(self) -> dict[str, Any]:
        """Return the state after all yielded batches: a few integers, the same in all processes.

        Examples
        --------
        >>> iterator = iter(loader)
        >>> batch = next(iterator)
        >>> iterator.get_state()["position"]
        8
        """
        return self._iteration.state_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state, on any number of processes; drops prefetched batches.

        Raises
        ------
        StateError
            The state belongs to another dataset, seed or order; the iterator does not move.

        Examples
        --------
        >>> iterator = iter(loader)
        >>> iterator.set_state(loader.dataset.state_at(160))
        >>> sum(1 for batch in iterator)
        5
        """
        self._loader.dataset.load_state_dict(state)
        self.close()
        self._is_stopped = False
        self._begin()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                return next(self._iteration)
            except StopIteration:
                num_epochs = self._loader.num_epochs
                if self._is_over or num_epochs is None or self._iteration.position.epoch + 1 >= num_epochs:
                    raise
            self._begin()

    def stop(self) -> None:
        """Yield no more batches; returns at once, and ends a waiting ``next`` within a moment.

        Unlike `close`, it works in a signal handler, also between two epochs. The state still counts all yielded
        batches.

        Examples
        --------
        >>> iterator = iter(loader)
        >>> batch = next(iterator)
        >>> iterator.stop()
        >>> list(iterator), iterator.get_state()["position"]
        ([], 8)
        """
        self._is_over = self._is_stopped = True
        self._iteration.stop()

    def close(self) -> None:
        """Stop making and yielding batches.

        Examples
        --------
        >>> iterator = iter(loader)
        >>> iterator.close()
        >>> list(iterator)
        []
        """
        self._is_over = True
        self._iteration.close()

    def _begin(self) -> None:
        """Start making the rest of the dataset's current epoch."""
        loader = self._loader
        spec = loader.dataset.stream.iterator_spec()
        self._is_over = loader.num_epochs is not None and spec.epoch >= loader.num_epochs
        if loader.num_epochs is not None and not self._is_over and not spec.start and not spec.num_steps:
            position = spec.position()
            msg = f"no epoch has a batch of {position.partition.global_batch}: there are {position.num_samples} samples"
            raise UsageError(msg, hint='a smaller batch, or remainder="pad"')
        # The default device belongs to this thread, and another thread may make the arrays.
        device = _jax_library().config.jax_default_device
        with InterruptsHeld():
            making = spec.with_threads(_threads(spec.work.pipeline.stages).threaded, ahead_bytes=_DECODED_BYTES)
            making = making.converted(partial(_placed, spec, loader.sharding, device))
            if loader.prefetch and not self._is_over:
                making = making.unobserved().made_ahead()
                self._iteration = Iteration(spec, Prefetcher(Iteration(making), making, limit=loader.prefetch))
            else:
                self._iteration = Iteration(making)
        if self._is_over or self._is_stopped:  # perhaps by a signal handler, a moment ago
            self.close()


def _threads(stages: Sequence[Stage]) -> ThreadChoice:
    return choose_threads(stages, num_threads=None, limit_bytes=_DECODED_BYTES)


def partition(dataset: Dataset, sharding: Any) -> Dataset:
    """Return the part of this process under a sharding of rows; processes with the same rows get the same part.

    Use it for meshes with tensor or pipeline parallel axes over several processes. It is not needed if every process
    has its own rows, in the order of processes.

    Raises
    ------
    UsageError
        The sharding splits more than rows, leaves this process out, or lets two processes share only a part of their
        rows.

    Examples
    --------
    >>> import jax
    >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
    >>> rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    >>> len(shoal.jax.DataLoader(shoal.jax.partition(ds.batch(8, remainder="drop"), rows), sharding=rows))
    25
    """
    rank, world_size = _rank_of_rows(sharding)
    return dataset.partition(rank=rank, world_size=world_size)


def compare_ranks(source: Dataset | DataLoader) -> None:
    """Check once, in every process before the loop, that all processes will train on the same data.

    The check compares dataset, seed, order, epoch, position, batch size and the number of ranks, and makes sure that
    each part of the samples has an owner, and that all parts have equally many owners. The check is one collective call
    with 4 KiB from each process; a single process makes no call.

    Raises
    ------
    UsageError
        Processes differ; raised in all processes, with the ranks, the fields and both values.

    Examples
    --------
    >>> shoal.jax.compare_ranks(loader)  # raises an error in all processes if they differ
    """
    jax = _jax_library()
    if jax.process_count() == 1:
        return
    from jax.experimental import multihost_utils  # noqa: PLC0415  # optional, like jax itself

    dataset = source.dataset if isinstance(source, DataLoader) else source
    settings = json.dumps(dataset.stream.iterator_spec().settings()).encode()
    if len(settings) > _SETTINGS_BYTES:
        msg = f"the settings to compare have {len(settings)} bytes in this process; the limit is {_SETTINGS_BYTES}"
        raise UsageError(msg, hint="give your own order fewer or smaller parameters: they are part of the settings")
    padded = np.zeros(_SETTINGS_BYTES, dtype=np.uint8)
    padded[: len(settings)] = np.frombuffer(settings, dtype=np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded))
    check_agreement([tuple(json.loads(row.tobytes().rstrip(b"\0"))) for row in rows])


def _placed(spec: IteratorSpec, sharding: Any, device: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of a pass as JAX arrays."""
    partition, num_steps = spec.work.pipeline.partition, spec.num_steps
    num_local = partition.global_batch // partition.world_size
    put = _Placement(sharding, device, partition.global_batch, num_local)
    for step, batch in enumerate(batches):
        if sharding is None or partition.remainder != "pad" or not isinstance(batch, dict):
            yield put(batch)
            continue
        # In every batch, since a compiled step requires a uniform structure; only the last batch has repeats.
        repeated = np.zeros(num_local, dtype=np.bool_)
        if step == num_steps - 1:
            order = spec.work.resolved.epoch(spec.epoch)
            repeated = partition.share(order, spec.work.pipeline.rank, step, step + 1, spec.start).repeated
        yield put({**batch, "__pad__": repeated})


def _check_batches(stream: Stream, sharding: Any) -> None:
    """Raise `UsageError` unless the batches of this process fit its rows under a sharding."""
    if stream.spec.ranks.slices:
        msg = "with sharding= JAX splits sequences itself, but partition(context_parallel=) slices the sequences before"
        hint = "leave out context_parallel=: jax.device_put(batch, NamedSharding(mesh, PartitionSpec(rows, context)))"
        raise UsageError(msg, hint=hint)
    options, shares = stream.spec.reading, stream.partition
    if shares.remainder == "keep":
        rest = f"remainder='keep' may leave less than {shares.global_batch}"
        hint = 'set batch(..., remainder="drop"); or "pad", which fills the last batch with marked repeats'
        raise UsageError(f"with sharding= all batches have one shape, but {rest}", hint=hint)
    if stream.spec.has_filters or options.leaves_out:
        msg = "with sharding= all batches have one shape, but filter() or reading() leaves samples out"
        raise UsageError(msg, hint="map() such samples to values that the loss ignores, or leave out sharding=")
    (part, num_processes), (rank, world_size) = _rank_of_rows(sharding), stream.spec.ranks.resolve()
    if (part, num_processes) != (rank, world_size):
        msg = f"the sharding makes this process part {part} of {num_processes}, but the dataset has rank {rank} of "
        hint = "shoal.jax.DataLoader(shoal.jax.partition(ds, sharding), sharding=sharding)"
        raise UsageError(f"{msg}{world_size}", hint=hint)
    num_parts = len({str(part) for part in sharding.devices_indices_map((len(sharding.device_set),)).values()})
    if shares.global_batch % max(num_parts, world_size):
        msg = f"a global batch of {shares.global_batch} cannot be split into the {num_parts} equal parts of the "
        raise UsageError(f"{msg}sharding", hint=f"set batch(global_batch_size=...) to a multiple of {num_parts}")


def _jax_library() -> Any:
    """Import and return the module ``jax``; `UsageError` if it is not installed."""
    try:
        import jax  # noqa: PLC0415  # optional, and slow to import
    except ImportError as error:
        msg = "shoal.jax needs jax, which is not installed"
        raise UsageError(msg, hint="pip install jax, in the variant for your accelerator") from error
    return jax


@dataclass(frozen=True, slots=True)
class _Placement:
    """Destination of a batch's arrays: a device of this process, or all devices of a sharding.

    ``num_rows`` counts the rows of a global batch, and ``num_local`` the rows of this process.
    """

    sharding: Any
    device: Any
    num_rows: int = 0
    num_local: int = 0

    def __call__(self, batch: Any) -> Any:
        """Return the batch with arrays of numbers and booleans as `jax.Array`; other values stay unchanged.

        Raises `UsageError` if a number does not fit JAX's type, or an array has not one row per sample.
        """
        with _jax_library().default_device(self.device):
            return self._placed(batch, "the batch")

    def _placed(self, value: Any, name: str) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            return self._array(_fitting(value, name), name)
        if isinstance(value, Mapping):
            return {key: self._placed(item, repr(key)) for key, item in value.items()}
        if isinstance(value, tuple):
            items = [self._placed(item, f"{name}[{number}]") for number, item in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, list) and any(isinstance(item, np.ndarray | dict | tuple | list) for item in value):
            return [self._placed(item, f"{name}[{number}]") for number, item in enumerate(value)]
        return value

    def _array(self, array: NDArray[Any], name: str) -> Any:
        jax = _jax_library()
        if self.sharding is None:
            return jax.device_put(array)
        if array.ndim < 1 or len(array) != self.num_local:
            msg = f"{name} has shape {array.shape}, but this process has {self.num_local} samples of each global batch"
            raise UsageError(msg, hint="with sharding=, every array of a batch must have a row for each sample")
        return jax.make_array_from_process_local_data(self.sharding, array, (self.num_rows, *array.shape[1:]))


def _fitting(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the array; `UsageError` if JAX would truncate its integers (to 32 bits unless 64 are switched on)."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or not array.size:
        return array
    limits = np.iinfo(_jax_library().dtypes.canonicalize_dtype(array.dtype))
    low, high = int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        msg = f"{name} has integers from {low} to {high}, but JAX would truncate them to {limits.dtype}"
        raise UsageError(msg, hint='jax.config.update("jax_enable_x64", True), or .map() them to smaller numbers')
    return array


def _rank_of_rows(sharding: Any) -> tuple[int, int]:
    """Return the number of this process's part of a global batch under a sharding, and the number of parts.

    Processes with the same rows have the same part: they differ in other axes of the mesh. Raises `UsageError` if the
    sharding splits more than rows, leaves this process out, or lets two processes share only a part of their rows.
    """
    jax = _jax_library()
    try:
        rows_of_devices = sharding.devices_indices_map((len(sharding.device_set),))
    except (AttributeError, IndexError, ValueError) as error:
        msg = f"sharding={sharding!r} does not split the rows of a batch: {error}"
        hint = 'NamedSharding(mesh, PartitionSpec("data")) splits only rows, the first dimension'
        raise UsageError(msg, hint=hint) from error
    rows: dict[int, set[tuple[int, int]]] = {}
    for device, (part,) in rows_of_devices.items():
        start, stop, _ = part.indices(len(sharding.device_set))
        rows.setdefault(device.process_index, set()).add((start, stop))
    parts = sorted({tuple(sorted(own)) for own in rows.values()})
    taken = [part for own in parts for part in own]
    if len(set(taken)) < len(taken) or len({len(own) for own in parts}) > 1:
        msg = f"sharding={sharding!r} gives the devices of two processes some rows in common, but not all"
        raise UsageError(msg, hint="a process must hold whole parts of the rows, as with a mesh of jax.make_mesh()")
    process = jax.process_index()
    if process not in rows:
        msg = f"there is no device of process {process} in sharding={sharding!r}"
        raise UsageError(msg, hint="iterate only in the processes of the mesh")
    return parts.index(tuple(sorted(rows[process]))), len(parts)
