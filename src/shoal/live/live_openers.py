"""`shoal.from_iterable`, `shoal.from_callable` and `shoal.follow`: datasets of live sources."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from shoal.errors import UsageError
from shoal.formats.shard_format import Format
from shoal.hints import did_you_mean
from shoal.live.file_listing import ORDERS, FollowSpec
from shoal.live.followed_files import FollowedFiles
from shoal.live.iterable_source import CallableSource, IterableSource, has_state
from shoal.live.live_dataset import LiveDataset
from shoal.live.live_run import LiveSpec
from shoal.live.live_source import LiveCounters, LiveSource, Sharing, Waiting
from shoal.storage.sources.source import printed

_SHUT_DOWN: tuple[type[BaseException], ...] = (queue.ShutDown,) if hasattr(queue, "ShutDown") else ()


class NoSentinel:
    """Default of ``sentinel``: no value ends the stream."""


def from_iterable(
    source: Iterable[Any] | Callable[[], Iterable[Any]], *, replay: bool | None = None, shared: bool | None = None
) -> LiveDataset:
    """Stream the samples of an iterable, or of a function that returns an iterable; the iterable may be endless.

    Parameters
    ----------
    source
        A sequence, a generator function, any object with ``__iter__``. States use its ``state_dict()`` and
        ``load_state_dict()`` (JSON types) if it has them. A sequence is resumed by index.
    replay
        How other iterables return to a saved position; required to load a state. True: the iterable yields the same
        samples again, and shoal skips up to the position. False: the source continues by itself, like a socket.
    shared
        Required with several ranks (or workers). True: all ranks have the same source, and rank r takes the samples r,
        r + R, ... of R ranks. False: each rank has its own source.

    Raises
    ------
    UsageError
        The source is neither an iterable nor a function, or is an iterator, which ``replay=True`` cannot restart.

    Examples
    --------
    >>> [batch.tolist() for batch in shoal.from_iterable(range(5)).batch(2)]
    [[0, 1], [2, 3], [4]]
    """
    samples: Any = source
    kind = type(samples).__name__
    if isinstance(samples, str | bytes | Mapping):
        msg = f"from_iterable() takes an iterable of samples; got {kind}"
        raise UsageError(msg, hint="shoal.open(path) reads files, and from_iterable([sample, ...]) a list")
    if not isinstance(samples, Iterable) and not callable(samples):
        msg = f"from_iterable() takes an iterable, or a function that makes one; got {kind}"
        raise UsageError(msg, hint="shoal.from_iterable(lambda: read_events())")
    if replay and isinstance(samples, Iterator) and not has_state(samples):
        msg = f"replay=True needs a source that can restart; this is an iterator ({kind})"
        raise UsageError(msg, hint="give a function that makes the iterator: from_iterable(lambda: ..., replay=True)")
    make = partial(_iterable, samples, replay, shared)
    return LiveDataset(LiveSpec(make), f"an iterable ({getattr(samples, '__name__', kind)})")


def from_callable(
    function: Callable[[], Any],
    *,
    sentinel: Any = NoSentinel,
    ends: type[BaseException] | tuple[type[BaseException], ...] = (StopIteration, EOFError, *_SHUT_DOWN),
    empty: type[BaseException] | tuple[type[BaseException], ...] = queue.Empty,
    poll_seconds: float = 0.1,
    idle_seconds: float | None = None,
    stop: Callable[[], bool] | None = None,
    shared: bool = False,
) -> LiveDataset:
    """Stream the results of a function, a sample for each call: ``queue.get`` of a `queue.Queue` or of multiprocessing.

    Parameters
    ----------
    function
        States use its ``state_dict()`` and ``load_state_dict()`` if it is an object with these methods; otherwise a
        resumed run goes on with the next result.
    sentinel
        A value that ends the stream, compared by ``is`` and ``==``.
    ends, empty
        Exceptions that end the stream; exceptions that mean "no sample yet": shoal calls the function again after
        ``poll_seconds``.
    poll_seconds, idle_seconds, stop
        The stream ends after ``idle_seconds`` without a sample (default: never), or if ``stop()`` is true while there
        is not a sample. This needs a function that raises ``empty``: ``lambda: q.get(timeout=1)``.
    shared
        False: each rank (and worker) has a function of its own. True: all functions return the same samples, and rank r
        takes the samples r, r + R, ... of R ranks.

    Examples
    --------
    >>> import queue
    >>> q = queue.Queue()
    >>> for item in (1, 2, 3, None):
    ...     q.put(item)
    >>> list(shoal.from_callable(q.get, sentinel=None))
    [1, 2, 3]
    """
    call: object = function
    if not callable(call):
        msg = f"from_callable() takes a function; got {type(call).__name__}"
        raise UsageError(msg, hint="shoal.from_callable(queue.get), or from_iterable() for an iterable")
    wait = partial(Waiting, poll_seconds=poll_seconds, idle_seconds=idle_seconds, stop=stop)
    wait(LiveCounters())  # refuses wrong arguments now, not when iterating
    signals = {
        "ends": ends if isinstance(ends, tuple) else (ends,),
        "empty": empty if isinstance(empty, tuple) else (empty,),
        "sentinel": sentinel,
    }
    make = partial(_callable, function, wait, signals, shared)
    name = getattr(function, "__qualname__", type(function).__name__)
    return LiveDataset(LiveSpec(make), f"a function ({name})")


def follow(
    source: str | Sequence[str],
    *,
    order: str = "name",
    settle_seconds: float = 0.0,
    marker: str | None = None,
    poll_seconds: float = 1.0,
    idle_seconds: float | None = None,
    stop: Callable[[], bool] | None = None,
    format: str | Format | None = None,  # noqa: A002  # the word of the public interface
    storage_options: Mapping[str, Any] | None = None,
) -> LiveDataset:
    r"""Stream the samples of files that appear while the stream runs; each file is read when it is complete.

    Samples come in the order of the files and of their bytes. All ranks look at the same files, and each of R ranks
    takes every R-th sample. A file is late if a file that sorts after it was read before: a single rank warns and reads
    the late file next; with several ranks it is an error, since each rank would meet it at another time.

    Parameters
    ----------
    source
        A directory (all shards below it) or a glob, local or remote, of any format that `shoal.open` reads:
        ``"events/*.jsonl"``.
    order
        "name": by relative path, for names that ascend, with times or numbers. "mtime": by modification time.
    settle_seconds, marker
        The signs of a complete file. By default a file appears whole: renamed after writing, or uploaded to an object
        store. Otherwise it is complete after ``settle_seconds`` without a change, or when a file of its name plus
        ``marker`` (``".done"``) lies beside it; with both arguments, after both signs.
    poll_seconds, idle_seconds, stop
        The stream looks for new files every ``poll_seconds``. It ends after ``idle_seconds`` without a new file
        (default: never), or if ``stop()`` is true and no sample is left.
    format, storage_options
        As for `shoal.open`.

    Raises
    ------
    UsageError
        An argument is invalid.
    SourceError
        On first use: the directory does not exist.

    Examples
    --------
    >>> [sample["text"] for sample in shoal.follow("code", idle_seconds=0)][:3]
    ['code 0', 'code 1', 'code 2']
    """
    if order not in ORDERS:
        msg = f"files are followed in order of {' or '.join(map(repr, ORDERS))}; got order={order!r}"
        raise UsageError(msg, hint=did_you_mean(str(order), ORDERS).rstrip())
    suffix: object = marker
    if suffix is not None and not (isinstance(suffix, str) and suffix):
        raise UsageError(f"marker is added to the name of a complete file; got {suffix!r}", hint='marker=".done"')
    wait = partial(Waiting, poll_seconds=poll_seconds, idle_seconds=idle_seconds, stop=stop)
    wait(LiveCounters())
    Waiting(LiveCounters(), poll_seconds=settle_seconds)
    spec = FollowSpec(source, order, settle_seconds, marker, format, storage_options)
    return LiveDataset(LiveSpec(partial(_followed, spec, wait)), f"files of {printed(source)}")


# Functions of the module, so that a dataset can be pickled and sent to worker processes.


def _iterable(source: Any, replay: bool | None, shared: bool | None, sharing: Sharing, _: LiveCounters) -> LiveSource:  # noqa: FBT001
    return IterableSource(source, replay, _shared(sharing, shared))


def _callable(
    function: Callable[[], Any],
    wait: Callable[[LiveCounters], Waiting],
    signals: Mapping[str, Any],
    shared: bool,  # noqa: FBT001
    sharing: Sharing,
    counters: LiveCounters,
) -> LiveSource:
    return CallableSource(function, wait(counters).until, sharing=_shared(sharing, shared), **signals)


def _followed(
    spec: FollowSpec, wait: Callable[[LiveCounters], Waiting], sharing: Sharing, counters: LiveCounters
) -> LiveSource:
    return FollowedFiles(spec, wait(counters), sharing)


def _shared(sharing: Sharing, shared: bool | None) -> Sharing:  # noqa: FBT001
    """Return the part of the source that this rank takes: a rank's own source is not shared."""
    if shared is None and sharing.world_size > 1:
        msg = f"there are {sharing.world_size} ranks (or workers), but from_iterable() does not know whether their "
        msg += "sources are the same"
        hint = "set shared=True if ranks divide one source, or shared=False if each rank has its own source"
        raise UsageError(msg, hint=hint)
    return sharing if shared else Sharing()
