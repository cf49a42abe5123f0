"""The dataset object that users hold: a description of a stream; other modules make every decision."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self, SupportsIndex, cast

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_text
from shoal.errors import UsageError
from shoal.indexing.growing.growing_shards import Growth
from shoal.order.arrays.index_ranges import Runs
from shoal.order.protocol import Order
from shoal.order.sampling.weights_and_classes import Repeats
from shoal.quality.expected_quality import ShuffleQuality
from shoal.reading.mixture.mix_request import FOREVER
from shoal.reading.reading_options import ReadingOptions, reading_options
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.choosing.balanced_sampling import sampled
from shoal.stream.choosing.hash_splits import split_specs
from shoal.stream.choosing.index_columns import class_names, key_column
from shoal.stream.choosing.left_out import gaps_without
from shoal.stream.choosing.map_view import MapView
from shoal.stream.quality.predictions import predicted
from shoal.stream.ranks import Ranks
from shoal.stream.reporters import check_reporter
from shoal.stream.verbs.dataset_requests import count_of, order_request
from shoal.stream.verbs.stage_verbs import StageVerbs
from shoal.stream.workers.foreign_loaders import refuse_as_list


class Dataset(StageVerbs):
    """A stream of samples from shards: which samples, in which order, and how they are processed.

    Methods that configure the stream return a new dataset, positioned at the start of epoch 0; an existing dataset
    never changes, apart from its position. A sample is a dict of fields. Sample ids count samples in storage order.
    """

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"<shoal.Dataset: {self.stream}>"

    # ---- order and selection

    def shuffle(
        self,
        order: str | Order = "window",
        *,
        seed: int | None = None,
        window: int | str | None = None,
        chunk: int | str | None = None,
        num_canonical_nodes: int | None = None,
        **arguments: Any,
    ) -> Self:
        """Shuffle the samples: a new order each epoch, identical for identical arguments on any machine.

        Parameters
        ----------
        order
            "window" (the default), "none", "full", "block", "buffer", another library's, or an object of
            `shoal.orders`.
        seed
            0 to 2**64 - 1; the same on all ranks. Default 0, or the default of the order's library.
        window
            Bytes of data that may mix at a time, across the whole job: ``"16GiB"``; default: 512 MiB.
        chunk
            Bytes that are read and moved as one unit; default: a 1024th of the window, at least one extent, at most 8
            MiB.
        num_canonical_nodes
            Number of parts of the dataset to mix separately, so that ranks need not read the same chunks;
            default one for every 16 chunks of the window, at most 64.
        arguments
            Arguments of the order: ``shuffle("block", chunks=64)``.
        """
        arguments |= {"window": window, "chunk": chunk, "num_canonical_nodes": num_canonical_nodes}
        shuffled = type(self)(self.stream.spec.in_order(order_request(order, seed, arguments)))
        shuffled.resolved.state_order  # noqa: B018  # an impossible request is refused here, not when iterating
        return shuffled

    def select(self, samples: Any = None, /, **columns: Any) -> Self:
        """Select samples by id (a list, an array, a mask), or by columns of the index.

        Before `shuffle`, ``samples`` are ids of stored samples; after `shuffle`, positions in every epoch. A column
        takes a value, a collection of values, or a function from the column's array to booleans:
        ``select(sample_bytes=lambda b: b < 1e6)``. For a column of texts, the function is called once, with an array
        of the distinct texts: ``select(lang=lambda texts: texts != "de")``. A column of classes holds numbers, and
        values may be class names: ``select(label="cat")``; a function that compares these numbers with a text is an
        error. The order stays the same.
        """
        return type(self)(self.stream.spec.selected(samples, columns))

    def sample(
        self,
        weights: Any = None,
        *,
        by: Any = None,
        balanced: bool = False,
        limit: int | None = None,
        num_samples: int | None = None,
        replacement: bool = True,
    ) -> Self:
        """Set how often each sample appears in an epoch, by weights or by classes; call before `shuffle`.

        A sample with ``e`` expected copies appears floor(e) or ceil(e) times, and the next epoch continues from there.
        `repeats` counts the samples that appear more than once or not at all. Copies are mixed like other samples.

        Parameters
        ----------
        weights
            The weight of each sample: a column of the index, or an array by sample id.
        by
            The class of each sample instead: a column (``"label"``), ``"shard"``, or an array by sample id.
        balanced
            If true, all classes have equally many samples in an epoch, give or take one.
        limit
            Instead of ``balanced``: the maximum number of samples of each class in an epoch, without repeats. The next
            epoch takes other samples.
        num_samples
            Samples in an epoch; default the number of stored samples. Without other arguments, epochs take the samples
            in turn.
        replacement
            If false, no sample appears twice in an epoch: high weights are capped, and balanced classes have at most as
            many samples as the smallest class.

        Raises
        ------
        UsageError
            Arguments contradict each other, a weight is negative, or there are too few samples without repeats.
        """
        rules = {"balanced": balanced, "limit": limit, "num_samples": num_samples, "replacement": replacement}
        return type(self)(sampled(self.stream.spec, weights=weights, by=by, **rules))

    def take(self, num_samples: int) -> Self:
        """Keep only the first samples: of storage before `shuffle`, of every epoch's order after it."""
        spec = self.stream.spec
        num_left = min(count_of(num_samples, "take()"), spec.num_samples)
        return type(self)(spec.only(Runs.span(0, num_left), "take()"))

    def skip(self, num_samples: int) -> Self:
        """Skip the first samples: of storage before `shuffle`, of every epoch's order after it."""
        spec = self.stream.spec
        first = min(count_of(num_samples, "skip()"), spec.num_samples)
        return type(self)(spec.only(Runs.span(first, spec.num_samples), "skip()"))

    def split(
        self,
        fractions: Mapping[str, float],
        *,
        by: Any = None,
        group: Callable[[Any], Any] | None = None,
        seed: int = 0,
        exclude: Any = None,
    ) -> dict[str, Dataset]:
        """Split stored samples by a hash of their group: a group is in one split, and never moves to another.

        The split of a group depends on the hash, the fractions and the seed alone: not on the machine, other groups, or
        the order of names. With ``g`` groups of equal size, a split of fraction ``f`` gets ``f * g`` groups, give or
        take ``sqrt(f * (1 - f) * g)``.

        Parameters
        ----------
        fractions
            By name, above 0; if their sum is below 1, the remaining samples are in no split.
        by
            The value that samples of a group share: a column of the index (compared by its texts, if it has any),
            ``"shard"``, ``"__key__"`` (read from the headers of tars), or a text or number for each sample by id. By
            default each sample is its own group, identified by the name of its shard and its number in the shard.
        group
            A function from this value to the group: ``lambda key: key.split("_")[0]``.
        seed
            Another seed gives other splits.
        exclude
            Groups to keep out of all splits, as values of ``by`` (sample ids by default); or a dataset of such groups.

        Raises
        ------
        UsageError
            `shuffle`, `sample` or `batch` was called before; the column does not exist; or a split gets no sample.
        """
        out = exclude.stream.spec if isinstance(exclude, Dataset) else exclude
        specs = split_specs(self.stream.spec, fractions, by=by, group=group, seed=seed, exclude=out)
        return {name: Dataset(spec) for name, spec in specs.items()}

    def without(self, steps: Any = None, *, positions: Any = None, epoch: int = 0) -> Self:
        """Leave bad batches out of an epoch; all other samples keep their order.

        The order itself is unchanged: states list the omitted positions, and a state saved before this call still
        loads. Batches are cut from the remaining samples, so all ranks get equally many batches. `ids` returns the
        unchanged order.

        Parameters
        ----------
        steps
            One or more steps, numbered as in `batch_ids`, by the global batch of this dataset at this world size.
        positions
            Instead of steps: ranges ``(start, stop)`` of positions, as ``shoal trace`` prints them. Positions do not
            depend on the batch size.
        epoch
            The epoch of these steps or positions.
        """
        gaps = gaps_without(self.stream, steps, positions, count_of(epoch, "without(epoch=)"))
        return type(self)(replace(self.stream.spec, gaps=gaps))

    def partition(self, *, rank: int | None = None, world_size: int | None = None, replicate: int = 1) -> Self:
        """Set the rank and world size, overriding torchrun, SLURM, MPI or a running library.

        With ``replicate=k``, ranks ``k * i`` to ``k * i + k - 1`` all get part ``i`` of ``world_size / k``: the ranks
        of a tensor, pipeline or sequence parallel group see the same samples.
        """
        return type(self)(replace(self.stream.spec, ranks=Ranks.of_arguments(rank, world_size, replicate)))

    # ---- batches and reading

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
        progress: bool | str = False,
        trace: str | os.PathLike[str] | None = None,
        trace_seconds: float = 60.0,
    ) -> Self:
        """Set how bytes are read and how damaged samples are handled; order and state stay the same.

        May be called anywhere in the chain, once. ``ds[i]`` uses only ``verify``, and raises the sample's error.

        Parameters
        ----------
        on_error
            "raise" the error of a damaged sample (the default), or "skip" the sample. A sample is damaged if its format
            cannot read it, its checksum is wrong or `decode` cannot decode it. Skipped samples are left out as if by
            `filter`, counted and listed in `stats`. Errors of your functions, of storage, and of a shard that changed
            after indexing are always raised.
        quarantine
            A JSON Lines file of damaged samples. Samples listed there are left out without being read; samples that
            "skip" leaves out are added. Several processes of a machine may share it.
        copy
            If true (the default), values own their bytes. If false, values of tar samples are `memoryview` of the bytes
            of their chunk, which stays in memory as long as any value: ``pinned_bytes`` in `stats`, on top of the
            window. Other formats and worker processes always copy.
        memory_limit
            Maximum bytes of chunks in the memory of this process (``"512MiB"``): in use, read ahead and in flight
            together. If the order needs more, chunks are evicted and read again: ``num_rereads`` in `stats`.
        verify
            "arrival" compares checksums of the index when bytes arrive from a remote store. "always" also compares
            checksums of local files, and of samples that are read alone, which are then read with their whole extent.
            An index has checksums if it was built with ``shoal index --checksum``.
        deadline
            Seconds of retries of a read from a remote store before its error is raised (by default
            `deadline_seconds` of `storage_options`, else 120). An attempt in flight at the deadline may finish: it has
            `timeout_seconds` of `storage_options`, and longer while bytes arrive.
        hedge
            If true, a request slower than nearly all others is sent a second time, and the first response is used.
        progress
            If true, show a line on stderr, on rank 0, with throughput and the bottleneck; in a log, every minute.
            "page" serves a page with the run instead, for a browser on this machine, and writes its address on stderr.
        trace
            A file for the first ``trace_seconds`` of requests, waits, stages and batches by thread and process, to open
            in ui.perfetto.dev or chrome://tracing. Rank 0 writes it; with "{rank}" in the path, each rank does.
        trace_seconds
            Seconds from the begin of the first iterator that ``trace`` records.

        Raises
        ------
        UsageError
            An option has an invalid value, or `reading` was called before.
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
            trace=trace,
            trace_seconds=trace_seconds,
        )
        check_reporter(options.progress)
        if self.stream.spec.reading != ReadingOptions():
            msg = "reading() was called before; a second call would override the first"
            raise UsageError(msg, hint="give all options in one call")
        return type(self)(replace(self.stream.spec, reading=options))

    # ---- contents and positions

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch over all ranks, before any filter; an estimate while `growth` goes on."""
        return self.stream.num_samples(0)

    @property
    def growth(self) -> Growth | None:
        """Shards indexed so far and the estimated number of samples of ``index="grow"``; None for a complete index."""
        return self.stream.growth

    @property
    def resolved(self) -> ResolvedOrder:
        """The order resolved to integers; str() gives a call that reproduces the order even if defaults change."""
        return cast("ResolvedOrder", self.stream.resolved)  # a `MixedDataset` has a `ResolvedMixture`

    @property
    def repeats(self) -> Repeats | None:
        """Average repeats and gaps of `sample` in an epoch, as numbers and as a sentence; None without `sample`."""
        return self.stream.spec.repeats

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of the field `cls` (or `label` of Hugging Face), by number; see `class_names`."""
        return class_names(self.stream.spec.opened.one("classes"))

    def class_names(self, field: str) -> tuple[str, ...]:
        """Return the names for a field's numbers: texts in the index, directories, or a Hugging Face ClassLabel."""
        return class_names(self.stream.spec.opened.one("class_names()"), as_text("class_names()", field))

    def index_column(self, name: str) -> NDArray[Any]:
        """Return a column of the index, "shard" or "bytes", as an array by sample id; read-only."""
        return key_column(self.stream.spec.opened.one("index_column()").index, name)

    def ids(self, epoch: int = 0, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """Return the ids at global positions ``[start, stop)`` of an epoch, without reading data; 0.1 us per id."""
        resolved, epoch = self.stream.resolved, count_of(epoch, "ids(epoch=)")
        order = resolved.untouched(epoch)
        if stop is None and order.num_samples > FOREVER // 2:
            raise UsageError(
                "ids() without stop= needs the end of the epoch, and this mixture has no end",
                hint="ids(epoch, start, stop)",
            )
        return resolved.samples_of(epoch, order.ids(start, order.num_samples if stop is None else stop))

    def batch_ids(
        self, step: int, *, epoch: int = 0, rank: int | None = None, world_size: int | None = None
    ) -> NDArray[np.int64]:
        """Return the sample ids of a rank at a step of an epoch that began at position 0, repeats included."""
        ids = self.stream.batch_of_order("batch_ids", step, epoch, rank, world_size)
        return self.stream.resolved.samples_of(epoch, ids)

    def quality(self, *, batch: int | None = None, key: Any = None, rho: float | None = None) -> ShuffleQuality:
        """Predict how well batches will be mixed, from the index and the order alone; no data is read.

        Predictions are within 10 % of measurements; orders without a formula are measured: storage order, and a buffer
        with a key. `shoal.measure.audit` measures any order. For ``index="grow"``, ``first_epoch`` of the result
        predicts the first epoch, which mixes few shards at first; the prediction does not wait for the index.

        Parameters
        ----------
        batch
            Samples in a global batch; default: the global batch of `batch`, else 256.
        key
            The property to mix: the label of each sample by id, a column of the index (``"label"``), ``"shard"`` or
            ``"bytes"``. The correlation of the property inside chunks is measured. Default: the worst case, each
            chunk of a single kind.
        rho
            The correlation inside chunks, if you know it: 0 for data shuffled before writing, 1 for the worst case.
        """
        stream = self.stream
        if batch is None and stream.spec.batching is not None:
            batch = stream.partition.global_batch
        elif batch is None:
            # An estimate may be too high: a third of the estimate is safer than half.
            most = stream.resolved.num_samples // 2 if stream.resolved.knows_end(0) else stream.num_samples(0) // 3
            batch = max(1, min(256, most))
        return predicted(stream.resolved, count_of(batch, "quality(batch=)"), key=key, rho=rho)

    def __len__(self) -> int:
        """Return the length of a whole epoch on this rank: in batches, or in samples without `batch`.

        With ``index="grow"`` the length is an estimate until all shards are indexed; until then loaders have no length,
        since ranks would disagree.

        Raises
        ------
        TypeError
            The length of an epoch is known only after reading (`filter`), or the epoch has no end.
        """
        return self.stream.length()

    def __getitem__(self, sample_id: SupportsIndex) -> Any:
        """Return the sample with this id, after all stages except filters; one read."""
        refuse_as_list()
        return self.stream.by_id[sample_id]

    def as_map(self) -> MapView:
        """Return the samples by id, for code that requires a list; `shoal.torch.BatchSampler` supplies the order.

        Item ``i`` is ``ds[i]``: in the format set by `format`, and verified with ``reading(verify="always")``.
        """
        if self.stream.spec.has_filters:
            msg = "as_map() gives a sample for every id, but this dataset has a filter()"
            raise UsageError(msg, hint="select() chooses samples by id or by columns of the index")
        return self.stream.by_id

    def to_hf(self, *, features: Any = None) -> Any:
        """Return the samples as a `datasets.IterableDataset`, in this order; see `shoal.huggingface.to_hf`."""
        # The only import of a higher layer: here, so that no framework is imported without a request.
        return importlib.import_module("shoal.huggingface").to_hf(self, features=features)
