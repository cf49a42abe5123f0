"""The dataset object that users hold: a description of a stream; other modules make every decision."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any, Self, SupportsIndex

from shoal.errors import UsageError
from shoal.order.protocol import Order
from shoal.plugins.displays import Sheet, as_html, sheet_of
from shoal.reading.reading_options import ReadingOptions, reading_options
from shoal.stream.choosing.balanced_sampling import sampled
from shoal.stream.choosing.hash_splits import one_split, split_specs
from shoal.stream.choosing.left_out import gaps_without
from shoal.stream.choosing.map_view import MapView
from shoal.stream.ranks import Ranks
from shoal.stream.reporters import check_reporter
from shoal.stream.verbs.dataset_requests import count_of, order_request
from shoal.stream.verbs.frame_verbs import FrameVerbs
from shoal.stream.verbs.growth_verbs import GrowthVerbs
from shoal.stream.verbs.order_questions import OrderQuestions
from shoal.stream.workers.foreign_loaders import refuse_as_list


class Dataset(FrameVerbs, GrowthVerbs, OrderQuestions):
    """A stream of samples from shards: which samples, in which order, and how they are processed.

    Methods that configure the stream return a new dataset, positioned at the start of epoch 0; an existing dataset
    never changes, apart from its position. A sample is a dict of fields. Sample ids count samples in storage order.

    In all examples ``ds`` is ``shoal.open("data")``, four tar shards of 200 short texts about pets: cats have the ids 0
    to 119, dogs 120 to 179, owls 180 to 199. The index has the column ``cls``.

    Examples
    --------
    >>> ds[0]
    {'__key__': 'cat/000', 'txt': b'cat 0', 'cls': b'0'}
    """

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"<shoal.Dataset: {self.stream}>"

    def _repr_html_(self) -> str:
        """Return the dataset as HTML for notebooks, without reading or indexing."""
        return as_html("dataset", self)

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
            "window" (the default), "none", "full", "block", "buffer", another library's, or one of `shoal.orders`.
        seed
            0 to 2**64 - 1; the same on all ranks. Default 0, or the default of the order's library.
        window
            Bytes of data that may mix at a time, across the whole job: ``"16GiB"``; default: 512 MiB.
        chunk
            Bytes read and moved as one unit; default: a 1024th of the window, at least an extent, at most 8 MiB.
        num_canonical_nodes
            Number of parts of the dataset to mix separately, so that ranks need not read the same chunks;
            default one for every 16 chunks of the window, at most 64.
        arguments
            Arguments of the order: ``shuffle("block", chunks=64)``.

        Examples
        --------
        >>> ds.shuffle(seed=0, window="1GiB").ids(epoch=0, stop=4)
        array([184, 111, 177,  95])
        """
        arguments |= {"window": window, "chunk": chunk, "num_canonical_nodes": num_canonical_nodes}
        shuffled = type(self)(self.stream.spec.chosen(methodcaller("in_order", order_request(order, seed, arguments))))
        shuffled.resolved.state_order  # noqa: B018  # an impossible request is refused here, not when iterating
        return shuffled

    def select(self, samples: Any = None, /, **columns: Any) -> Self:
        """Select samples by id (a list, an array, a mask), or by columns of the index.

        Before `shuffle`, ``samples`` are ids of stored samples; after `shuffle`, positions in every epoch. A column
        takes a value, several values, or a function from the column's array to booleans. For a column of texts, the
        function gets an array of the distinct texts, once: ``select(lang=lambda texts: texts != "de")``. A column of
        classes holds numbers; a value may be a class name, but a function gets numbers. The order stays the same.

        Examples
        --------
        >>> ds.select(cls=["dog", "owl"], sample_bytes=lambda num_bytes: num_bytes < 10_000).num_samples
        80
        """
        return type(self)(self.stream.spec.chosen(methodcaller("selected", samples, columns)))

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
            Instead of ``balanced``: the most samples of a class in an epoch, without repeats; epochs take others.
        num_samples
            Samples in an epoch; default: all stored samples. Without other arguments, epochs take the samples in turn.
        replacement
            If false, no sample appears twice in an epoch: high weights are capped, and balanced classes get at most the
            size of the smallest class.

        Raises
        ------
        UsageError
            Arguments contradict each other, a weight is negative, or there are too few samples without repeats.

        Examples
        --------
        >>> print(ds.sample(by="cls", balanced=True).repeats)
        200 samples an epoch, of 200: 27 come more than once (at most 4 times), and 53 (26.7 %) do not come
        """
        rules: dict[str, Any] = {
            "balanced": balanced,
            "limit": limit,
            "num_samples": num_samples,
            "replacement": replacement,
        }
        return type(self)(self.stream.spec.chosen(partial(sampled, weights=weights, by=by, **rules)))

    def take(self, num_samples: int) -> Self:
        """Keep only the first samples: of storage before `shuffle`, of every epoch's order after it.

        Examples
        --------
        >>> ds.take(3).ids().tolist(), ds.shuffle(seed=0).take(3).ids().tolist()
        ([0, 1, 2], [184, 111, 177])
        """
        return type(self)(self.stream.spec.chosen(methodcaller("taken", count_of(num_samples, "take()"))))

    def skip(self, num_samples: int) -> Self:
        """Skip the first samples: of storage before `shuffle`, of every epoch's order after it.

        Examples
        --------
        >>> ds.skip(50).ids(stop=3).tolist()
        [50, 51, 52]
        """
        return type(self)(self.stream.spec.chosen(methodcaller("skipped", count_of(num_samples, "skip()"))))

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

        Examples
        --------
        >>> {name: part.num_samples for name, part in ds.split({"train": 0.9, "val": 0.1}).items()}
        {'train': 185, 'val': 15}
        """
        out = exclude.stream.spec if isinstance(exclude, Dataset) else exclude
        specs = split_specs(self.stream.spec, fractions, by=by, group=group, seed=seed, exclude=out)
        again = partial(one_split, fractions=fractions, by=by, group=group, seed=seed, exclude=out)
        choices = self.stream.spec.choices
        specs = {name: replace(spec, choices=choices.plus(partial(again, name=name))) for name, spec in specs.items()}
        return {name: Dataset(spec) for name, spec in specs.items()}

    def without(self, steps: Any = None, *, positions: Any = None, epoch: int = 0) -> Self:
        """Leave bad batches out of an epoch; all other samples keep their order.

        States list the omitted positions, and a state saved before this call still loads. Batches are cut from the
        remaining samples, so all ranks get equally many batches. `ids` returns the unchanged order.

        Parameters
        ----------
        steps
            One or more steps, numbered as in `batch_ids`, by the global batch of this dataset at this world size.
        positions
            Instead of steps: ranges ``(start, stop)`` of positions, as ``shoal trace`` prints them. Positions do not
            depend on the batch size.
        epoch
            The epoch of these steps or positions.

        Examples
        --------
        >>> len(ds.shuffle(seed=0).batch(8).without(steps=[2, 3]))
        23
        """
        gaps = gaps_without(self.stream, steps, positions, count_of(epoch, "without(epoch=)"))
        return type(self)(replace(self.stream.spec, gaps=gaps))

    def partition(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        replicate: int = 1,
        context_parallel: int = 1,
        context_slices: str = "zigzag",
    ) -> Self:
        """Set the rank and world size, overriding torchrun, SLURM, MPI or a running library.

        Ranks count replicas first, then slices, then parts: ``rank = (part * context_parallel + slice) * replicate +
        replica``. Each part has its own samples, and states count the samples of all parts.

        Parameters
        ----------
        replicate
            Number of consecutive ranks with the same batches: the ranks of a tensor, pipeline or sequence parallel
            group.
        context_parallel
            Number n of slices of each sequence (`pack_sequences`), for the ranks of a context parallel group. A batch
            then has the slice of each array of shape (num_sequences, length, ...), `map` functions of batches included;
            ``cu_seqlens`` and the tables by segment stay those of the whole batch. The length is padded to a multiple
            of 2n, or of n if slices are contiguous.
        context_slices
            "zigzag": of 2n equal chunks, slice r has chunk r and chunk 2n - 1 - r, so that causal attention has the
            same work on each rank. "contiguous": slice r of n. "documents": as "zigzag", of each document alone, which
            ``pack_sequences(multiple_of=)`` must pad to a multiple of 2n.

        Raises
        ------
        UsageError
            Only one of rank and world size is given, or the product of ``replicate`` and ``context_parallel`` does not
            divide the world size. When iterating, with ``context_parallel``: the samples are not packed, or a `map` of
            batches changed the length of some sequences.

        Examples
        --------
        >>> [len(ds.batch(8).partition(rank=rank, world_size=4)) for rank in range(4)]
        [7, 7, 7, 7]
        >>> packed = docs.pack_sequences(16).batch(2)
        >>> for rank in range(2):
        ...     part = packed.partition(rank=rank, world_size=2, context_parallel=2)
        ...     print(next(iter(part))["tokens"][0])
        [137 100 101 102 111 112 113 114]
        [103 104 105 106 107 108 109 110]
        """
        ranks = Ranks.of_arguments(rank, world_size, replicate, context_parallel, context_slices)
        return type(self)(replace(self.stream.spec, ranks=ranks))

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

        Call `reading` anywhere in the chain, once. ``ds[i]`` uses only ``verify``, and raises the sample's error. An
        invalid value, or a second call, raises `UsageError`.

        Parameters
        ----------
        on_error
            "raise" the error of a damaged sample (the default), or "skip" the sample. A sample is damaged if its format
            cannot read it, its checksum is wrong or `decode` cannot decode it. Skipped samples are left out as if by
            `filter`, counted and listed in `stats`. Errors of your functions, of storage, and of a shard that changed
            after indexing are always raised.
        quarantine
            A JSON Lines file of damaged samples, left out without being read; "skip" adds samples. Processes of a
            machine may share the file.
        copy
            If true (the default), values own their bytes. If false, values of tar samples are `memoryview` of their
            chunk, which stays in memory, beyond the window, as long as any value (``pinned_bytes`` in `stats`). Other
            formats and worker processes always copy.
        memory_limit
            Maximum bytes of chunks in the memory of this process (``"512MiB"``): in use, read ahead and in flight. If
            the order needs more, chunks are evicted and read again: ``num_rereads`` in `stats`.
        verify
            "arrival" compares checksums of the index when bytes arrive from a remote store. "always" also compares
            checksums of local files, and of samples that are read alone, by reading their whole extent. Only an index
            of ``shoal index --checksum`` has checksums.
        deadline
            Seconds of retries of a read from a remote store before its error is raised (by default `deadline_seconds`
            of `storage_options`, else 120). An attempt in flight then has `timeout_seconds`, longer while bytes arrive.
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

        Examples
        --------
        >>> sum(1 for sample in ds.reading(on_error="skip", verify="always", memory_limit="512MiB"))
        200
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

    def __len__(self) -> int:
        """Return the length of a whole epoch on this rank: in batches, or in samples without `batch`.

        With ``index="grow"`` the length is an estimate until all shards are indexed; until then loaders have no length,
        since ranks would disagree. `TypeError` if the length is known only after reading (`filter`), or has no end.

        Examples
        --------
        >>> len(ds), len(ds.batch(32))
        (200, 7)
        """
        return self.stream.length()

    def __getitem__(self, sample_id: SupportsIndex) -> Any:
        """Return the sample with this id, after all stages except filters; one read.

        Examples
        --------
        >>> ds.decode()[125]
        {'__key__': 'dog/005', 'txt': 'dog 5', 'cls': 1}
        """
        refuse_as_list()
        return self.stream.by_id[sample_id]

    def show(self, n: int = 16) -> Sheet:
        r"""Read the next ``n`` samples of the order, and return a contact sheet: their values and places.

        The sheet shows itself in a notebook, as text in a terminal (``print``), and as a page (``write("page.html")``).
        Samples have passed all stages before `batch`, filters included, and each is read alone: the position of the
        dataset stays. The samples are the next ones over all ranks; at the end of an epoch there may be fewer.

        Raises
        ------
        StorageError
            Bytes could not be read. A damaged sample is no error: its card shows the damage.
        UsageError
            ``n`` is no whole number of at least 0.

        Examples
        --------
        >>> import pathlib, shoal, tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = pathlib.Path(directory, "0.jsonl").write_text('{"text": "a reef"}\n{"text": "a shoal"}\n')
        ...     print(shoal.open(directory).show(1))
        the next sample at position 0 of epoch 0
        <BLANKLINE>
        0  in 0.jsonl [0, 19)
          text  6 B  a reef
        """
        return sheet_of(self, count_of(n, "show()"))

    def as_map(self) -> MapView:
        """Return the samples by id, for code that requires a list; `shoal.torch.BatchSampler` supplies the order.

        Item ``i`` is ``ds[i]``: in the format set by `format`, and verified with ``reading(verify="always")``.

        Examples
        --------
        >>> ds.decode().as_map()[125]["txt"]
        'dog 5'
        """
        if self.stream.spec.has_filters:
            msg = "as_map() gives a sample for every id, but this dataset has a filter()"
            raise UsageError(msg, hint="select() chooses samples by id or by columns of the index")
        return self.stream.by_id

    def to_hf(self, *, features: Any = None) -> Any:
        """Return the samples as a `datasets.IterableDataset`, in this order; see `shoal.huggingface.to_hf`.

        Examples
        --------
        >>> next(iter(ds.decode().to_hf()))
        {'__key__': 'cat/000', 'txt': 'cat 0', 'cls': 0}
        """
        # The only import of a higher layer: here, so that no framework is imported without a request.
        return importlib.import_module("shoal.huggingface").to_hf(self, features=features)
