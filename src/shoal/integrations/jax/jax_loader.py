"""`shoal.jax.DataLoader`: batches of a dataset as JAX arrays, on any number of processes, exactly resumable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, cast

import numpy as np

from shoal.errors import UsageError
from shoal.integrations.jax.jax_arrays import Placement, jax_library, rank_of_rows
from shoal.pipeline.decode_pool import ThreadChoice, choose_threads
from shoal.pipeline.stages.stage import Stage
from shoal.processes.interrupts import InterruptsHeld
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_stream import Stream
from shoal.stream.iterating.batch_maker import BatchMaker
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.ranks import check_agreement
from shoal.stream.workers.prefetch_thread import Prefetcher

_SETTINGS_BYTES = 4096
_DECODED_BYTES = 256 << 20  # of samples that wait for their batch


class DataLoader:
    """Batches of a dataset as `jax.Array`, in exactly the order of ``iter(dataset)``.

    A thread of this process makes them ahead of use, and others decode images, where that gains; `decoding` says in how
    many, and why. The position is the dataset's: ``loader.state_dict()`` is
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
            msg = f"shoal.jax.DataLoader takes a shoal dataset; got {type(given).__name__}"
            raise UsageError(msg, hint="shoal.open(...).batch(...)")
        if prefetch < 0 or (num_epochs is not None and num_epochs < 1):
            msg = f"prefetch={prefetch}, num_epochs={num_epochs}: out of range"
            raise UsageError(msg, hint="prefetch is 0 or more, num_epochs at least 1, or None for one epoch at a time")
        self.dataset = dataset
        self.sharding = sharding
        self.num_epochs = num_epochs
        self.prefetch = prefetch
        jax_library()
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
        """The threads that decode, and why: "2 threads: ..."."""
        return _threads(self.dataset.stream.spec.stages).words

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, the same in all processes."""
        return self.dataset.stream.length(exactly=True)

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
        self._is_stopped = False
        self._begin()

    def get_state(self) -> dict[str, Any]:
        """Return the state after every batch that this iterator gave: a few integers, the same in all processes."""
        return self._iteration.state_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state, on any number of processes; batches made ahead are dropped.

        Raises
        ------
        StateError
            The state belongs to another dataset, seed or order; the iterator stays where it was.
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
        """Give no more batches; returns at once, and a ``next`` that waits for one ends within a moment.

        Unlike `close`, it may be called in a signal handler, also between two epochs. The state stays that after
        everything given.
        """
        self._is_over = self._is_stopped = True
        self._iteration.stop()

    def close(self) -> None:
        """Stop making batches, and give no more."""
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
        # The default device is that of this thread: another thread may make the arrays.
        device = jax_library().config.jax_default_device
        with InterruptsHeld():
            making = spec.unobserved().with_threads(_threads(spec.work.pipeline.stages).threaded)
            is_ahead = bool(loader.prefetch) and not self._is_over
            making = making.made_ahead() if is_ahead else making
            source: BatchMaker | Prefetcher = BatchMaker(making, partial(_placed, spec, loader.sharding, device))
            if is_ahead:
                source = Prefetcher(Iteration(making, source), making, limit=loader.prefetch)
            self._iteration = Iteration(spec, source)
        if self._is_over or self._is_stopped:  # perhaps by a signal handler, a moment ago
            self.close()


def _threads(stages: Sequence[Stage]) -> ThreadChoice:
    return choose_threads(stages, num_threads=None, limit_bytes=_DECODED_BYTES)


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


def compare_ranks(source: Dataset | DataLoader) -> None:
    """Check once that all processes are about to train on the same data; call it in every process, before the loop.

    It compares dataset, seed, order, epoch, position, batch size and the number of ranks; and checks that each part of
    the samples has an owner, and all parts equally many. It makes one collective call with 4 KiB from each process;
    with one process there is nothing to compare.

    Raises
    ------
    UsageError
        Processes differ; raised in all of them, with the ranks, the fields and both sides.
    """
    jax = jax_library()
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
    everybody = np.asarray(multihost_utils.process_allgather(padded))
    check_agreement([tuple(json.loads(row.tobytes().rstrip(b"\0"))) for row in everybody])


def _placed(spec: IteratorSpec, sharding: Any, device: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of a pass as JAX arrays."""
    partition, num_steps = spec.work.pipeline.partition, spec.num_steps
    num_local = partition.global_batch // partition.world_size
    put = Placement(sharding, device, partition.global_batch, num_local)
    for step, batch in enumerate(batches):
        if sharding is None or partition.remainder != "pad" or not isinstance(batch, dict):
            yield put(batch)
            continue
        # In all batches, since a compiled step requires a uniform structure; only the last one has repeats.
        repeated = np.zeros(num_local, dtype=np.bool_)
        if step == num_steps - 1:
            order = spec.work.resolved.epoch(spec.epoch)
            repeated = partition.share(order, spec.work.pipeline.rank, step, step + 1, spec.start).repeated
        yield put({**batch, "__pad__": repeated})


def _check_batches(stream: Stream, sharding: Any) -> None:
    """Raise `UsageError` unless every batch of this process is its rows of an array under a sharding."""
    options, shares = stream.spec.reading, stream.partition
    if shares.remainder == "keep":
        msg = (
            f"with sharding= all batches have one shape, but remainder='keep' may leave less than {shares.global_batch}"
        )
        hint = 'batch(..., remainder="drop"), or "pad", which fills the last one with repeats and marks them'
        raise UsageError(msg, hint=hint)
    if stream.spec.filters or options.leaves_out:
        msg = "with sharding= all batches have one shape, but filter() or reading() leaves samples out"
        raise UsageError(msg, hint="map() such samples to values that the loss ignores, or leave out sharding=")
    (rank, world_size), ours = rank_of_rows(sharding), stream.spec.ranks.resolve()
    if (rank, world_size) != ours:
        msg = (
            f"the sharding makes this process part {rank} of {world_size}, and the dataset rank {ours[0]} of {ours[1]}"
        )
        raise UsageError(msg, hint="shoal.jax.DataLoader(shoal.jax.partition(ds, sharding), sharding=sharding)")
    num_parts = len({str(part) for part in sharding.devices_indices_map((len(sharding.device_set),)).values()})
    if shares.global_batch % max(num_parts, world_size):
        msg = (
            f"a global batch of {shares.global_batch} cannot be split into the {num_parts} equal parts of the sharding"
        )
        raise UsageError(msg, hint=f"batch(global_batch_size=...) with a multiple of {num_parts}")
