"""Counters of a stream, the source of `Dataset.stats`; the throughput of its newest iterator, and its pinned bytes."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from operator import attrgetter, length_hint
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.formats.compiled_cutting import is_compiled
from shoal.stats.run_events import IGNORED, RunEvents

_NO_COUNTS = ("of_workers", "throughput", "pins", "unfinished_lists", "events", "wait_began")
_RESULTS = (
    "num_samples", "num_batches", "num_repeats", "num_filtered", "num_refilled", "num_tokens", "num_padding_tokens",
    "num_cut_documents", "num_dropped_documents", "num_ungrouped_samples", "num_skipped",
)  # fmt: skip
_MEASURED = attrgetter("num_delivered", "num_requests", "read_bytes", "wait_seconds", "make_seconds")


@dataclass(slots=True, weakref_slot=True)
class Counters:
    """Counts since the dataset object was created, over all its iterators in this process, and the newest one's speed.

    ``num_rereads`` counts reads of a unit that an iterator had released before; ``num_repeats`` samples delivered a
    second time, marked in ``__pad__``; ``num_filtered`` samples that a filter dropped; ``num_skipped`` damaged samples
    that were left out (``skipped_ids`` lists the first 1,000); ``num_refilled`` other samples that took the place of
    filtered or skipped ones in a batch; ``num_unmatched`` samples read without a partner (`Dataset.join`), for each of
    several joins. ``make_seconds`` is the time spent on making batches (or samples), and
    ``wait_seconds`` the part of it spent blocked on a read; over all worker processes.

    ``num_reads`` and ``read_bytes`` are the reads that the order needed and whose bytes have arrived, ``num_requests``
    and ``requested_bytes`` the requests to the store: fewer if neighbours share a request, also in the order "full";
    more with retries and repeated reads of damaged bytes. So ``requested_bytes`` over ``read_bytes`` is the bytes moved
    per byte needed. ``in_flight_bytes`` are being requested at this moment. Scans of changed shards are included. Three
    kinds of requests are not counted: redirects, the stat of each remote shard when a process first meets it, and the
    repetition of a request by libcurl after the server has reset an idle connection.

    Among the retried requests (``num_retries``), the store throttled ``num_throttled``, and ``num_corrupt`` responses
    held other bytes than were indexed. ``num_hedges`` duplicate requests were made for late ones, and
    ``num_hedges_won`` duplicates were answered first. ``concurrency`` is the most requests allowed in flight at a time.
    For local files, all counts of this paragraph stay 0.

    For sequences (`Dataset.pack_sequences`), ``num_tokens`` counts tokens of documents, with separators, and
    ``num_padding_tokens`` the other tokens; ``num_cut_documents`` counts the documents that begin in a sequence and do
    not end there, and ``num_dropped_documents`` the documents that were too long, unless the index has their lengths.
    Without sequences, ``num_tokens`` counts the tokens made by `Dataset.tokenize`, some of them ahead.

    For an epoch that grows (``index="grow"``): ``num_pieces`` of the epoch were read, ``num_indexed_segments`` of its
    shards indexed, and ``index_wait_seconds`` of ``wait_seconds`` spent waiting for them. ``from_scans_bytes`` were
    read from files that the scans of remote shards had left on this machine; there was no room for ``not_kept_bytes``.
    Scans of remote shards made ``num_scan_requests`` of ``scanned_bytes``, with ``num_scan_retries``; the requests and
    retries above do not include them.

    Frames of videos (`Dataset.decode_frames`): ``num_frames`` were delivered, and
    ``num_decoded_frames`` decoded from ``video_bytes``, which ``num_video_reads`` read. ``served_video_bytes`` more
    were needed and still in memory, at most ``peak_video_bytes`` at a time.

    Workers of a loader sent ``num_unshared_batches`` through a pipe, which is slower, because shared memory was full.

    ``peak_held_bytes`` is the most bytes held in arrived chunks, read ahead or in use. ``peak_claimed_bytes`` is the
    most bytes claimed: in use, or requested ahead, arrived or not; for local files, read ahead by the system. ``shoal
    plan`` predicts it. ``gives_views`` is true if values are views (``reading(copy=False)``, where the format can);
    views alone then hold ``pinned_bytes``. ``is_compiled`` is true if the compiled module of shoal cuts samples of tar,
    MDS and TFRecord.

    For the newest iterator, from its first ``next()`` to the end of the latest: ``elapsed_seconds``,
    ``inside_seconds`` that its consumer spent inside ``next()``, rates, and the bottleneck. ``wait_share`` of that time
    was spent on waiting for bytes, ``stages_share`` on decoding, functions and making batches, and the rest outside of
    shoal. ``bottleneck`` names the largest of the three: "storage", "stages" or "consumer". Before the first
    ``next()``, rates are 0, and shares and the bottleneck None.

    With a chunk cache (``cache=``, or one that the workers of a loader share), there are also ``num_cache_hits``,
    ``num_cache_fills`` and others (docs/guides/chunk-cache.md).
    """

    num_samples: int = 0
    num_batches: int = 0
    num_repeats: int = 0
    num_unshared_batches: int = 0
    num_filtered: int = 0
    num_refilled: int = 0
    num_tokens: int = 0
    num_padding_tokens: int = 0
    num_cut_documents: int = 0
    num_dropped_documents: int = 0
    num_ungrouped_samples: int = 0
    num_skipped: int = 0
    skipped_ids: list[int] = field(default_factory=list)
    num_reads: int = 0
    num_unmatched: int = 0
    num_rereads: int = 0
    read_bytes: int = 0
    peak_held_bytes: int = 0
    peak_claimed_bytes: int = 0
    pinned_bytes: int = 0
    peak_pinned_bytes: int = 0
    num_requests: int = 0
    requested_bytes: int = 0
    in_flight_bytes: int = 0
    peak_in_flight_bytes: int = 0
    num_retries: int = 0
    num_throttled: int = 0
    num_corrupt: int = 0
    num_hedges: int = 0
    num_hedges_won: int = 0
    concurrency: int = 0
    wait_seconds: float = 0.0
    make_seconds: float = 0.0
    num_pieces: int = 0
    num_indexed_segments: int = 0
    index_wait_seconds: float = 0.0
    from_scans_bytes: int = 0
    not_kept_bytes: int = 0
    num_frames: int = 0
    num_decoded_frames: int = 0
    num_video_reads: int = 0
    video_bytes: int = 0
    served_video_bytes: int = 0
    peak_video_bytes: int = 0
    num_scan_requests: int = 0
    num_scan_retries: int = 0
    scanned_bytes: int = 0
    # Counts by worker processes of their cache use; the cache's own counts are of this process.
    of_workers: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    throughput: Throughput | None = field(default=None, repr=False, compare=False)
    pins: Pins | None = field(default=None, repr=False, compare=False)
    # Iterators over lists: `num_samples` counts all samples of a list, and some are not delivered yet.
    unfinished_lists: set[Iterator[Any]] = field(default_factory=set, repr=False, compare=False)
    events: RunEvents = field(default=IGNORED, repr=False, compare=False)
    # Begin of the wait for bytes under way; 0 if the maker of batches does not wait.
    wait_began: float = field(default=0.0, repr=False, compare=False)

    @property
    def num_delivered(self) -> int:
        """Samples delivered so far."""
        return self.num_samples - sum(map(length_hint, list(self.unfinished_lists)))

    def wait_begins(self) -> float:
        """Record that the maker of batches begins to wait for bytes; return the time, for `waited`."""
        self.wait_began = began = time.perf_counter()
        return began

    def waited(self, began: float, num_bytes: int = 0) -> float:
        """Count the time since ``began`` as waiting for bytes; return it. The waiting thread read ``num_bytes``."""
        ended = time.perf_counter()
        self.wait_began = 0.0
        self.wait_seconds += ended - began
        self.events.waited(began, ended, num_bytes)
        return ended - began

    def take_results(self) -> dict[str, Any]:
        """Return the counts of samples and batches by name, and restart them from 0: the caller adds them up."""
        counts = {name: getattr(self, name) for name in _RESULTS} | {"num_samples": self.num_delivered}
        taken: dict[str, Any] = {name: count for name, count in counts.items() if count}
        for name, count in taken.items():
            setattr(self, name, getattr(self, name) - count)
        if self.skipped_ids:
            taken["skipped_ids"], self.skipped_ids = self.skipped_ids, []
        return taken

    def heights(self, held_bytes: int, claimed_bytes: int) -> None:
        """Record the peaks of a reading: bytes held and claimed so far."""
        self.peak_held_bytes = max(self.peak_held_bytes, held_bytes)
        self.peak_claimed_bytes = max(self.peak_claimed_bytes, claimed_bytes)

    def counts(self) -> dict[str, Any]:
        """Return the counts by name."""
        if self.pins is not None:
            self.pinned_bytes, self.peak_pinned_bytes = self.pins.num_bytes, self.pins.peak_bytes
        counts = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NO_COUNTS}
        counts |= {"num_samples": self.num_delivered, "skipped_ids": list(self.skipped_ids)}
        return counts

    def as_dict(self) -> dict[str, Any]:
        """Return the counts by name, how samples are made, and the rates and shares of the newest iterator."""
        how = {"gives_views": self.pins is not None, "is_compiled": is_compiled}
        return self.counts() | how | (self.throughput or Throughput(self)).rates()


class Throughput:
    """The time of one iterator, from its first ``next()`` to the end of its latest, in three parts.

    Outside of ``next()`` the consumer does its own work. Inside, it waits for bytes, or for their processing (decoding,
    functions, batches). If a thread or processes make the batches, `add` records the time inside, and the time is split
    in proportion to their work. An iterator that makes its own batches counts this time itself (``make_seconds``), and
    only sets ``began``, ``first`` and ``last``: a call of `add` for every sample would cost noticeable time. ``began``
    is the begin of the latest ``next()``. ``is_elsewhere`` if a thread or processes make the batches.

    >>> times = iter([0.0, 3.0, 4.0, 8.0])
    >>> counters = Counters()
    >>> throughput = Throughput(counters, clock=lambda: next(times))
    >>> for _ in range(2):
    ...     began = throughput.clock(); counters.wait_seconds += 2.5; counters.num_samples += 4
    ...     ended = throughput.clock(); counters.make_seconds += ended - began; throughput.add(began, ended)
    >>> throughput.rates()["samples_per_second"], throughput.rates()["wait_share"], throughput.rates()["bottleneck"]
    (1.0, 0.625, 'storage')
    """

    __slots__ = ("__weakref__", "_before", "_counters", "_inside_seconds", "began", "clock", "first", "last")

    def __init__(
        self, counters: Counters, *, is_elsewhere: bool = False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.clock = clock
        self._counters, self._before = counters, _MEASURED(counters)
        self.first: float | None = None
        self.began = self.last = 0.0
        self._inside_seconds: float | None = 0.0 if is_elsewhere else None

    def add(self, began: float, ended: float) -> None:
        """Record a ``next()`` that began and ended at these readings of `clock`."""
        if self.first is None:
            self.first = began
        self._inside_seconds = (self._inside_seconds or 0.0) + ended - began
        self.last = ended

    @property
    def is_inside(self) -> bool:
        """True while a ``next()`` is under way."""
        return self.began > self.last

    @property
    def makes_itself(self) -> bool:
        """True if the iterator makes its own batches; False if a thread or processes make them."""
        return self._inside_seconds is None

    @property
    def inside_seconds(self) -> float:
        """Time in all finished ``next()`` calls."""
        _, _, _, _, make = self._since_begin()
        return make if self._inside_seconds is None else self._inside_seconds

    def _since_begin(self) -> list[Any]:
        since: list[Any] = np.subtract(_MEASURED(self._counters), self._before).tolist()
        return since

    def rates(self) -> dict[str, Any]:
        """Return rates and shares by name; before any measurement rates are 0, shares and the bottleneck None."""
        elapsed = 0.0 if self.first is None else self.last - self.first
        samples, requests, read_bytes, wait, make = self._since_begin()
        rates: dict[str, Any] = {
            "elapsed_seconds": elapsed,
            "inside_seconds": self.inside_seconds if elapsed else 0.0,
            "samples_per_second": samples / elapsed if elapsed else 0.0,
            "requests_per_second": requests / elapsed if elapsed else 0.0,
            "read_bytes_per_second": read_bytes / elapsed if elapsed else 0.0,
            "wait_share": None,
            "stages_share": None,
            "bottleneck": None,
        }
        if elapsed:
            inside = min(1.0, (make if self._inside_seconds is None else self._inside_seconds) / elapsed)
            waiting = inside * (min(1.0, wait / make) if make else 0.0)
            shares = {"storage": waiting, "stages": inside - waiting, "consumer": 1.0 - inside}
            rates |= {"wait_share": waiting, "stages_share": inside - waiting}
            rates["bottleneck"] = max(shares, key=lambda name: shares[name])
        return rates


class Pins:
    """Bytes of released chunks that views keep alive; views may be freed in any thread.

    A view of a few bytes keeps its whole chunk alive. The memory budget does not see that: it releases a chunk after
    the delivery of its last sample.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._refs: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self._numbers = itertools.count()

    @property
    def num_bytes(self) -> int:
        """Bytes kept alive now."""
        return sum(list(self._sizes.values()))

    def keep(
        self, array: weakref.ref[NDArray[np.uint8]], *, refer: Any = weakref.ref, bind: Callable[..., Any] = partial
    ) -> None:
        """Count released bytes for as long as a view keeps them alive.

        ``refer`` and ``bind`` are arguments because records may outlive the names of this module when Python exits.
        """
        number = next(self._numbers)
        chunk = array()
        if chunk is None:
            return
        self._sizes[number] = chunk.nbytes
        self._refs[number] = refer(chunk, bind(self._freed, number))
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)

    def _freed(self, number: int, _: weakref.ref[NDArray[np.uint8]]) -> None:
        self._sizes.pop(number, None)
        self._refs.pop(number, None)
