"""The object users hold: a description of what to stream. It composes the rooms and decides nothing itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StateError, UsageError
from shoal.formats.decoding.decoders import Decoder
from shoal.indexing.open_source import Opened
from shoal.order.arrays.index_ranges import Runs
from shoal.order.partition import Partition, check_rank
from shoal.order.protocol import Order
from shoal.pipeline.collate import collate
from shoal.pipeline.features import features_of
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.stages import FEATURES, Decode, Filter, Map, Rename, SelectColumns, ToTuple, WithIds
from shoal.quality.outlook import ShuffleQuality
from shoal.reading.cached_ranges import cache_counts
from shoal.reading.options import reading_options
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stats.counters import Counters
from shoal.stream.certificate.certificate import Certificate, differences
from shoal.stream.certificate.delivery_ledger import RecordHashes
from shoal.stream.checkpoint.cursor import Cursor
from shoal.stream.checkpoint.dataset_state import resumed, state_for
from shoal.stream.dataset_requests import Batching, count_of, order_request
from shoal.stream.framework_doors import handed_over
from shoal.stream.index_columns import class_names, key_column
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_spec import IteratorSpec, pass_of
from shoal.stream.map_view import MapView, map_view
from shoal.stream.ranks.ranks import Ranks
from shoal.stream.shuffle_quality import quality_of
from shoal.stream.skipped_steps import gaps_of
from shoal.stream.spec import DatasetSpec
from shoal.stream.workers.foreign_loaders import refuse_as_list, refuse_in_worker

__all__ = ["Dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples of some shards, in some order, on their way to a trainer.

    Every method that describes returns a new dataset, which begins at the start of epoch 0; only the position moves.
    A sample is a dict of fields. Sample ids are those of storage order, from 0, whatever is chosen or shuffled.
    """

    _description: DatasetSpec
    _counters: Counters = field(default_factory=Counters, init=False, repr=False)
    _cursor: Cursor = field(default_factory=Cursor, init=False, repr=False)

    def __repr__(self) -> str:
        """What it streams, in a line; the default would print the columns of the index."""
        return f"<shoal.Dataset: {self._description.summary()}>"

    # ---- order and choice

    def shuffle(
        self,
        order: str | Order = "window",
        *,
        seed: int = 0,
        window: int | str | None = None,
        chunk: int | str | None = None,
        num_canonical_nodes: int | None = None,
    ) -> Dataset:
        """Samples in random order, another one each epoch, the same for the same arguments on any machine.

        Parameters
        ----------
        order
            "window" (the default), "none", "full", "block" or "buffer", or an object of `shoal.orders`.
        seed
            0 to 2**64 - 1; the same on all ranks.
        window
            Bytes of data that may mix at a time, over the whole job: ``"16GiB"``; default 512 MiB.
        chunk
            Bytes that are read and move as one; default a 512th of the window, from one extent of the index to 8 MiB.
        num_canonical_nodes
            Shares of the dataset that mix apart, so that ranks need not read the same chunks; default one for every
            16 chunks of the window, at most 64.
        """
        self._description.refuse_after_batch("shuffle()")
        if self._description.request is not None:
            msg = "this dataset is shuffled already; a second shuffle() would hide the first"
            raise UsageError(msg, hint="a larger window= mixes more")
        request = order_request(order, seed=seed, window=window, chunk=chunk, num_canonical_nodes=num_canonical_nodes)
        shuffled = Dataset(self._description.in_order(request))
        shuffled.resolved.order  # noqa: B018  # a request that cannot be met is refused here, not when iterating
        return shuffled

    def select(self, samples: Any = None, /, **columns: Any) -> Dataset:
        """Only some samples: by id (a list, an array, a mask), or by columns of the index.

        Before `shuffle`, ids of stored samples; after it, positions of every epoch. A column is given a value, a
        collection of values, or a function from its array to truth values: ``select(sample_bytes=lambda b: b < 1e6)``.
        The numbers that stand for texts and classes go by those, too: ``select(label="cat")``. Samples stay in the
        order they had.
        """
        if (samples is None) == (not columns):
            msg = "select() takes samples, or columns of the index by name"
            raise UsageError(msg, hint="select([3, 5, 8]) or select(sample_bytes=lambda size: size < 1_000_000)")
        described = self._description.selected_by(columns) if columns else self._description.selected(samples)
        return Dataset(described)

    def take(self, num_samples: int) -> Dataset:
        """Only the first samples: of storage before `shuffle`, of every epoch's order after it."""
        count = count_of(num_samples, "take()")
        return Dataset(self._description.only(Runs.span(0, min(count, self.num_samples)), "take()"))

    def skip(self, num_samples: int) -> Dataset:
        """All but the first samples: of storage before `shuffle`, of every epoch's order after it."""
        count = count_of(num_samples, "skip()")
        return Dataset(self._description.only(Runs.span(min(count, self.num_samples), self.num_samples), "skip()"))

    def without(self, steps: Any = None, *, positions: Any = None, epoch: int = 0) -> Dataset:
        """Past some bad batches: these are left out of an epoch, and everything else comes as it would have come.

        The order stays untouched: the positions left out are listed in states, and a state from before loads here.
        Batches are cut from what is left, so ranks still get equally many. `ids` has the order itself.

        Parameters
        ----------
        steps
            One step or several, as `batch_ids` counts them: with the global batch of this dataset at this world size.
        positions
            Ranges ``(start, stop)`` of positions instead, as ``shoal trace`` shows them; they depend on no batch size.
        epoch
            Whose steps or positions these are.
        """
        gaps = gaps_of(self._description, self._arrangement, steps, positions, count_of(epoch, "without(epoch=)"))
        return Dataset(self._description.without(self._arrangement.gaps.plus(gaps)))

    def partition(self, *, rank: int | None = None, world_size: int | None = None, replicate: int = 1) -> Dataset:
        """The part of one rank of so many, instead of what torchrun, SLURM, MPI or a running library says.

        With ``replicate=k``, ranks ``k * i`` to ``k * i + k - 1`` all get part ``i`` of ``world_size / k``: the ranks
        of a tensor, pipeline or sequence parallel group see the same samples.
        """
        return Dataset(self._description.dealt_to(Ranks.asked(rank, world_size, replicate)))

    # ---- what becomes of samples

    def map(self, function: Callable[[Any], Any]) -> Dataset:
        """Every sample (after `batch`: every batch) through a function."""
        return Dataset(self._description.then(Map(function)))

    def filter(self, function: Callable[[Any], Any]) -> Dataset:
        """Only samples for which the function is true.

        Batches are cut before: they may be short, and a rank that would get nothing gets a marked repeat.
        """
        return Dataset(self._description.then(Filter(function), "filter()"))

    def decode(self, *decoders: str | Mapping[str, Decoder], allow_pickle: bool = False) -> Dataset:
        """Fields from bytes to what their suffix means, as WebDataset names them; images and features where asked.

        Without arguments ``txt``, ``cls``, ``json``, ``npy``, ``npz``, ``mp`` and ``cbor`` (and others of their kind,
        also with ``.gz`` after it) are decoded, and everything else stays bytes: video and audio, too.

        Parameters
        ----------
        decoders
            "pil", "rgb8", "rgb", "torchrgb", ... for images; "hf" for what Hugging Face ``datasets`` says of columns
            (images as pictures, audio as the bytes of its file), "hf-names" for that with classes by name; or mappings
            from suffix to function, ``{"flac": function}``. Later ones win.
        allow_pickle
            Whether ``pkl``, ``pickle``, ``pyd``, ``pth``, ``pt`` and arrays of objects are read, which runs whatever
            code is in them; without it they stay bytes, and such an array is an error.

        Raises
        ------
        UsageError
            There is no such decoder, the library that it needs is not installed, or no features are described.
        """
        features = features_of(self._opened) if any(name in FEATURES for name in decoders) else None
        stage = Decode(decoders, allow_pickle=allow_pickle, features=features)
        return Dataset(self._description.then(stage, "decode()"))

    def rename(self, **names: str) -> Dataset:
        """Fields under new names: ``rename(image="jpg;jpeg;png")`` takes the first alternative that is there."""
        return Dataset(self._description.then(Rename(names), "rename()"))

    def columns(self, *names: str) -> Dataset:
        """Only these fields; where it stands first, formats of columns (Parquet, Arrow, MDS) decode no others."""
        return Dataset(self._description.then(SelectColumns(names), "columns()"))

    def to_tuple(self, *names: str) -> Dataset:
        """The values of these fields as a tuple; alternatives as in `rename`."""
        return Dataset(self._description.then(ToTuple(names), "to_tuple()"))

    def with_ids(self) -> Dataset:
        """The sample id as the field ``__id__``, and the epoch as ``__epoch__``: together what random numbers need."""
        return Dataset(self._description.then(WithIds(), "with_ids()"))

    def format(self, name: str) -> Dataset:
        """Batches, or samples where there are no batches, in another form; where it stands does not matter.

        Numbers have the type in which they are stored (a column of int16 stays one), however they are read. "python"
        gives Python's own values; "numpy" arrays, dates and times too, and lists of what has no common shape or has
        gaps; "arrow" a `pyarrow.Table`, with the types of Parquet and Arrow shards; "torch" what "numpy" gives, with
        tensors in place of arrays. Without it times are Python's. Functions of `map` before `batch` get samples as
        they are stored.
        """
        return Dataset(self._description.formatted(Formatting(name)))

    def batch(
        self, size: int | None = None, *, global_batch_size: int | None = None, remainder: str = "keep"
    ) -> Dataset:
        """Batches of ``size`` samples on each rank, or of ``global_batch_size`` over all ranks.

        Numbers, and arrays or tensors that are alike, are stacked, the rest are lists; dicts and tuples in samples
        are such of columns, as torch's ``default_collate`` makes them. ``remainder`` says what becomes of the last,
        incomplete global batch: "keep" it (dealt evenly; a rank left without a sample gets a repeat), "pad" it with
        repeats, or "drop" it. Repeats are marked true in the field ``__pad__`` of batches that hold one.
        """
        self._description.refuse_after_batch("batch()")
        if (size is None) == (global_batch_size is None):
            msg = "batch() takes a size for each rank, or global_batch_size="
            raise UsageError(msg, hint="batch(256) or batch(global_batch_size=4096)")
        number = count_of(size if size is not None else global_batch_size, "batch()")
        if not number:
            msg = "batch() needs at least one sample; got 0"
            raise UsageError(msg)
        Partition(number, 1, remainder)  # an unknown remainder is refused here, not when iterating
        return Dataset(self._description.in_batches(Batching(number, size is None, remainder)))

    def reading(
        self,
        *,
        on_error: str = "raise",
        quarantine: str | os.PathLike[str] | None = None,
        copy: bool = True,
        memory_limit: int | str | None = None,
        verify: str = "arrival",
        deadline: float | None = None,
        hedge: bool = False,
        progress: bool = False,
    ) -> Dataset:
        """How bytes are read, and what becomes of damaged samples; order and state stay what they are.

        May stand anywhere, once. ``ds[i]`` reads without it: who asks for one sample gets that, or its error.

        Parameters
        ----------
        on_error
            "raise" the error of a damaged sample (the default), or "skip" the sample. Damaged are samples that their
            format cannot read, whose checksum is wrong or which `decode` cannot decode. They are left out as `filter`
            does it, counted and listed in `stats`. Errors of your functions, of a shard that is another than was
            indexed, and of storage are raised in any case.
        quarantine
            A file of damaged samples, JSON Lines. Those it lists are left out and not looked at; those that "skip"
            leaves out are added. Several processes of a machine may share it.
        copy
            Whether values own their bytes (the default). If not, values of tar samples are `memoryview` of the bytes
            of their chunk, which stays in memory as long as any of them: ``pinned_bytes`` in `stats`, beyond the
            window. Other formats copy all the same, and so do worker processes.
        memory_limit
            Bytes of chunks that this process may have in memory at most (``"512MiB"``), in use, read ahead and under
            way together. Where the order needs more, chunks are let go and read again: ``num_rereads`` in `stats`.
        verify
            Checksums of the index are compared when bytes arrive from a remote store ("arrival"), or also for files
            of this machine, and for samples that are read alone, which are then read with their extent ("always"). An
            index has them if it was made with ``shoal index --checksum``.
        deadline
            Seconds for which one read from a remote store is tried again before its error is raised (by default
            `deadline_seconds` of `storage_options`, else 120); a last try that is under way then is waited for,
            `timeout_seconds` of `storage_options` or longer if bytes come.
        hedge
            Whether a request that is later than nearly all others is made a second time, and the first answer taken.
        progress
            A line on stderr, on rank 0, that shows rates, and who holds up whom; in a log, each minute and at the end.

        Raises
        ------
        UsageError
            A value is none that the option can have, or `reading` was called before.
        """
        options = reading_options(
            on_error=on_error,
            quarantine=quarantine,
            copy=copy,
            memory_limit=memory_limit,
            verify=verify,
            deadline=deadline,
            hedge=hedge,
            progress=progress,
        )
        return Dataset(self._description.read_by(options))

    # ---- what comes when

    @property
    def num_samples(self) -> int:
        """Samples of an epoch over all ranks, before any filter."""
        return self._arrangement.num_samples

    @property
    def resolved(self) -> ResolvedOrder:
        """The order in integers; printed, it is a call that gives this order whatever the defaults become."""
        return self._arrangement

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of the field `label`, by number; see `class_names`."""
        return class_names(self._opened)

    def class_names(self, field: str) -> tuple[str, ...]:
        """The names that numbers of a field stand for: texts in the index, directories, Hugging Face's ClassLabel."""
        return class_names(self._opened, field)

    def index_column(self, name: str) -> NDArray[Any]:
        """What the index knows of each stored sample by id: one of its columns, "shard" or "bytes"; read-only."""
        return key_column(self._opened.index, name)

    def ids(self, epoch: int = 0, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """The sample ids at global positions ``[start, stop)`` of an epoch, reading nothing; 0.1 us each."""
        order = self._arrangement.untouched(count_of(epoch, "ids(epoch=)"))
        return self._arrangement.stored_ids(order.ids(start, order.num_samples if stop is None else stop))

    def batch_ids(
        self, step: int, *, epoch: int = 0, rank: int | None = None, world_size: int | None = None
    ) -> NDArray[np.int64]:
        """The sample ids that a rank receives at a step of an epoch that began at position 0, repeats included."""
        here, size = self._description.ranks.resolve()
        size = size if world_size is None else count_of(world_size, "batch_ids(world_size=)")
        here = here if rank is None else count_of(rank, "batch_ids(rank=)")
        check_rank(here, size)
        step = count_of(step, "batch_ids()")
        partition = self._description.partition(size)
        order = self._arrangement.epoch(count_of(epoch, "batch_ids(epoch=)"))
        num_batches = partition.num_batches(order.num_samples)
        if step >= num_batches:
            msg = f"step {step} was asked for; an epoch has steps 0 to {num_batches - 1} at world size {size}"
            raise UsageError(msg)
        return self._arrangement.stored_ids(partition.share(order, here, step, step + 1).ids)

    def quality(self, *, batch: int | None = None, key: Any = None, rho: float | None = None) -> ShuffleQuality:
        """How well batches will be mixed, from the index and the order alone; nothing is read.

        Predicted within 10 % of what is measured; measured where there is no formula: storage order, and a buffer with
        a key. `shoal.measure.audit` measures any order.

        Parameters
        ----------
        batch
            Samples of a global batch; default that of `batch`, else 256.
        key
            What should be mixed: the label of each sample by id, a column of the index (``"label"``), ``"shard"`` or
            ``"bytes"``. Its correlation inside chunks is measured. Default: the worst case, chunks of one kind each.
        rho
            That correlation, where you know it: 0 for data that were shuffled when written, 1 for the worst case.
        """
        if batch is None:
            size = self._description.partition(self._description.ranks.resolve()[1]).global_batch
            batch = size if self._description.batching is not None else max(1, min(256, self.num_samples // 2))
        return quality_of(self._arrangement, count_of(batch, "quality(batch=)"), key=key, rho=rho)

    def __len__(self) -> int:
        """What this rank yields in a whole epoch: batches, or samples without `batch`."""
        rank, world_size = self._description.ranks.resolve()
        partition = self._description.partition(world_size)
        if self._description.batching is not None:
            return partition.num_batches(self._arrangement.num_samples_of(self.epoch))
        if self._description.filters:
            msg = "how many samples filter() keeps is not known before they are read"
            raise TypeError(msg)
        return partition.num_samples_of(rank, self._arrangement.num_samples_of(self.epoch))

    def __getitem__(self, sample_id: SupportsIndex) -> Any:
        """The sample with this id, through all stages but filters; one read."""
        refuse_as_list()
        return self._by_id[sample_id]

    def as_map(self) -> MapView:
        """The samples by id, for code that insists on a list; `shoal.torch.BatchSampler` gives it the order.

        Sample ``i`` of it is ``ds[i]``: in the format that `format` asks for, and verified where `reading` says so.
        """
        if self._description.filters:
            msg = "as_map() gives a sample for every id, and this dataset has a filter()"
            raise UsageError(msg, hint="select() chooses samples by id or by columns of the index")
        return self._by_id

    def to_hf(self, *, features: Any = None) -> Any:
        """The samples as a `datasets.IterableDataset`, in this order; see `shoal.huggingface.to_hf`."""
        return handed_over(self, "huggingface", "to_hf", features=features)

    # ---- running

    def __iter__(self) -> Iteration:
        """Iterate on this rank: from the loaded position if one was loaded for this epoch, else from its start."""
        refuse_in_worker()
        return self._pass().iterate()

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator runs through."""
        return self._cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin at the start of this epoch next, unless it is the current one: then nothing moves."""
        number = count_of(epoch, "set_epoch()")
        if number != self._cursor.epoch:
            self._cursor.begin(number, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator is: a few integers, the same on every rank; any one resumes all.

        Raises
        ------
        StateError
            Several ranks get single samples, of which `filter` or `reading` leaves some out, and an epoch is under way.
        """
        return self._arrangement.state_at(*self._cursor.position)

    def state_at(self, position: int, *, epoch: int = 0) -> dict[str, Any]:
        """The state of a run that has come to this position of an epoch: to begin there, with `load_state_dict`.

        Positions count samples over all ranks, as in `ids`: a run that another library began, and that has seen so
        many samples of the epoch, goes on there.
        """
        return state_for(self._arrangement, position, epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved: at any world size, with any batch size.

        Numbers that `shuffle` left open (a window in bytes) are taken from the state. What its run left out
        (`without`) is left out here too, beside what this dataset leaves out.

        Raises
        ------
        StateError
            The state belongs to another dataset, seed or order, or to a newer shoal; both sides are named. Or it was
            changed after it was saved: it has a checksum.
        """
        saved, arrangement = resumed(self._description, self._arrangement, state)
        self.__dict__["_arrangement"] = arrangement
        self._cursor.begin(saved.epoch, arrangement.number_of(saved.epoch, saved.position))
        self._cursor.delivered.forget()

    def certificate(self) -> dict[str, Any]:
        """What this rank really delivered since this object was made, or a state was loaded: a few numbers an epoch.

        A sum over position, id and checksum of every sample that `iter`, or a DataLoader of shoal, has given;
        marked repeats, and what `filter` dropped, do not count. Summed over ranks (`shoal.merge_certificates`) it is
        the same for any world size, workers and batch size, and changes if a sample was missing, came twice, was
        another or came elsewhere. Keep it beside the state: a run that goes on from there merges both.
        """
        arrangement, opened = self._arrangement, self._opened
        kind = RecordHashes(opened.index).kind
        parts = {epoch: part.among(arrangement, epoch) for epoch, part in self._cursor.delivered.parts().items()}
        seed, index = arrangement.request.seed, opened.index.fingerprint
        return Certificate(index, seed, arrangement.state_order, kind, parts, arrangement.gaps).to_dict()

    def check_certificate(self, certificate: Mapping[str, Any]) -> None:
        """Find out from the index alone whether exactly the samples that were due have been delivered.

        Raises
        ------
        StateError
            Others were; what differs is told epoch by epoch. Or the certificate is of another dataset or order.
        """
        request = self._description.order_request.adopting((given := Certificate.from_dict(certificate)).at(0))
        if found := differences(given, replace(self._arrangement, request=request, _epochs={})):
            msg = "; ".join(found)
            raise StateError(msg, hint="merge the certificates of all ranks, and those of earlier parts of the run")

    def stats(self) -> dict[str, Any]:
        """What happened since this dataset object was made, and how fast its newest iterator goes."""
        return self._counters.as_dict() | cache_counts(self._opened, self._counters.of_workers)

    # ---- inside

    @property
    def _opened(self) -> Opened:
        return self._description.opened

    @cached_property
    def _arrangement(self) -> ResolvedOrder:
        return self._description.arrangement()

    @cached_property
    def _by_id(self) -> MapView:
        return map_view(self._description, self._arrangement, self._cursor)

    def _pass(self, collate: Callable[[list[Any]], Any] = collate) -> IteratorSpec:
        """What the next iterator does, for it or for processes that share its work."""
        return pass_of(self._description, self._arrangement, self._counters, self._cursor, collate)
