"""`shoal.from_iterable`, `shoal.from_callable` and `shoal.follow`: from a live source to a dataset."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from shoal.errors import UsageError
from shoal.formats.shard_format import Format
from shoal.hints import did_you_mean
from shoal.live.followed_files import ORDERS, FollowedFiles, FollowSpec
from shoal.live.iterable_source import CallableSource, IterableSource, has_state
from shoal.live.live_counters import LiveCounters
from shoal.live.live_dataset import LiveDataset
from shoal.live.live_run import LiveSpec, MakeSource
from shoal.live.live_source import LiveSource, Sharing, Waiting
from shoal.storage.sources.source import SourceLike, printed

_SHUT_DOWN: tuple[type[BaseException], ...] = (queue.ShutDown,) if hasattr(queue, "ShutDown") else ()


class NoSentinel:
    """Default of ``sentinel``: no value ends the stream."""


def from_iterable(
    source: Iterable[Any] | Callable[[], Iterable[Any]], *, replay: bool | None = None, shared: bool | None = None
) -> LiveDataset:
    """Stream the samples of an iterable, or of one that a function makes; it may be endless.

    Parameters
    ----------
    source
        A sequence, a generator function, any object with ``__iter__``. If it has ``state_dict()`` and
        ``load_state_dict()`` (JSON types), states keep its position that way. A sequence is entered at any number.
    replay
        The way to a saved position in other iterables. True: the iterable gives the same samples again, and is read up
        to there. False: it goes on by itself, as a socket does. Required to load a state of such a source.
    shared
        With several ranks (or workers): True, all have the same source, and rank r takes the samples r, r + R, ... of
        R ranks; False, each has a source of its own. Required if there are several.

    Raises
    ------
    UsageError
        The source is no iterable or function, or ``replay=True`` and it is an iterator, which cannot begin anew.

    Examples
    --------
    >>> [batch.tolist() for batch in from_iterable(range(5)).batch(2)]
    [[0, 1], [2, 3], [4]]
    """
    given: Any = source
    if isinstance(given, str | bytes | Mapping):
        msg = f"from_iterable() takes an iterable of samples; got {type(given).__name__}"
        raise UsageError(msg, hint="shoal.open(path) reads files, and from_iterable([sample, ...]) a list")
    if not isinstance(given, Iterable) and not callable(given):
        msg = f"from_iterable() takes an iterable, or a function that makes one; got {type(given).__name__}"
        raise UsageError(msg, hint="shoal.from_iterable(lambda: read_events())")
    if replay and isinstance(given, Iterator) and not has_state(given):
        msg = f"replay=True begins anew, and this source is an iterator ({type(given).__name__}), which cannot"
        raise UsageError(msg, hint="give the function that makes it: from_iterable(lambda: ..., replay=True)")
    name = getattr(given, "__name__", type(given).__name__)
    return _dataset(partial(_iterable, given, replay, shared), f"an iterable ({name})")


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
    """Stream what a function returns, a sample for each call: ``queue.get`` of a `queue.Queue` or of multiprocessing.

    Parameters
    ----------
    function
        If it is an object with ``state_dict()`` and ``load_state_dict()``, states keep its position that way; otherwise
        a resumed run goes on with what it returns then.
    sentinel
        A value that ends the stream, compared by ``is`` and ``==``.
    ends, empty
        Exceptions that end the stream, and those that say that there is nothing yet: the function is called again after
        ``poll_seconds``.
    poll_seconds, idle_seconds, stop
        The stream ends after so many seconds without a sample (default: never), or if ``stop()`` is true when there is
        nothing. This needs a function that raises ``empty``: ``lambda: q.get(timeout=1)``.
    shared
        False: each rank (and worker) has a function of its own. True: they all return the same samples, and rank r
        takes the samples r, r + R, ... of R ranks.

    Examples
    --------
    >>> import queue
    >>> q = queue.Queue()
    >>> for item in (1, 2, 3, None):
    ...     q.put(item)
    >>> list(from_callable(q.get, sentinel=None))
    [1, 2, 3]
    """
    given: object = function
    if not callable(given):
        msg = f"from_callable() takes a function; got {type(given).__name__}"
        raise UsageError(msg, hint="shoal.from_callable(queue.get), or from_iterable() for an iterable")
    wait = partial(Waiting, poll_seconds=poll_seconds, idle_seconds=idle_seconds, stop=stop)
    wait(LiveCounters())  # wrong arguments are refused here, not when iterating
    how = {
        "ends": ends if isinstance(ends, tuple) else (ends,),
        "empty": empty if isinstance(empty, tuple) else (empty,),
        "sentinel": sentinel,
    }
    return _dataset(
        partial(_callable, function, wait, how, shared),
        f"a function ({getattr(function, '__qualname__', type(function).__name__)})",
    )


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
    r"""Stream the samples of files that appear while the stream runs: each is read once it is complete.

    Samples come in the order of the files, and of their bytes. All ranks look at the same files and take every R-th
    sample of each. A file is late if one that sorts after it was read before: a single rank warns and reads it
    next; with several it is an error, as ranks would meet it at different times.

    Parameters
    ----------
    source
        A directory (all shards below it) or a glob, local or remote, of any format that `shoal.open` reads:
        ``"events/*.jsonl"``.
    order
        "name": of the relative path, for names that ascend, with times or numbers. "mtime": of the modification time.
    settle_seconds, marker
        How a complete file is recognised. By default it appears whole: written under another name and renamed, or
        uploaded to an object store. Else it is complete after so many seconds without a change, or when a file of its
        name plus ``marker`` (``".done"``) lies beside it; with both arguments, when both are true.
    poll_seconds, idle_seconds, stop
        How often to look for new files; the stream ends after so many seconds without any (default: never), or if
        ``stop()`` is true when there is nothing left to read.
    format, storage_options
        As for `shoal.open`.

    Raises
    ------
    UsageError
        An argument is invalid.
    SourceError
        When it is first used: the directory does not exist.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     _ = pathlib.Path(directory, "0.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    ...     [sample["x"] for sample in follow(directory, idle_seconds=0)]
    [1, 2]
    """
    if order not in ORDERS:
        msg = f"files are followed in order of {' or '.join(map(repr, ORDERS))}; got order={order!r}"
        raise UsageError(msg, hint=did_you_mean(str(order), ORDERS).rstrip())
    said: object = marker
    if said is not None and not (isinstance(said, str) and said):
        raise UsageError(f"marker is what is added to the name of a complete file; got {said!r}", hint='marker=".done"')
    wait = partial(Waiting, poll_seconds=poll_seconds, idle_seconds=idle_seconds, stop=stop)
    wait(LiveCounters())
    Waiting(LiveCounters(), poll_seconds=settle_seconds)
    what: SourceLike = source
    spec = FollowSpec(what, order, settle_seconds, marker, format, storage_options)
    return _dataset(partial(_followed, spec, wait), f"files of {printed(what)}")


def _dataset(make: MakeSource, name: str) -> LiveDataset:
    return LiveDataset(LiveSpec(make), name)


# Functions of the module, so that a dataset can be pickled and sent to worker processes.


def _iterable(source: Any, replay: bool | None, shared: bool | None, sharing: Sharing, _: LiveCounters) -> LiveSource:  # noqa: FBT001
    return IterableSource(source, replay, _shared(sharing, shared))


def _callable(
    function: Callable[[], Any],
    wait: Callable[[LiveCounters], Waiting],
    how: Mapping[str, Any],
    shared: bool,  # noqa: FBT001
    sharing: Sharing,
    counters: LiveCounters,
) -> LiveSource:
    return CallableSource(function, wait(counters).until, sharing=_shared(sharing, shared), **how)


def _followed(
    spec: FollowSpec, wait: Callable[[LiveCounters], Waiting], sharing: Sharing, counters: LiveCounters
) -> LiveSource:
    return FollowedFiles(spec, wait(counters), sharing)


def _shared(sharing: Sharing, shared: bool | None) -> Sharing:  # noqa: FBT001
    """Return the part of the source that this rank takes: all of it if it is the rank's own."""
    if shared is None and sharing.world_size > 1:
        msg = f"there are {sharing.world_size} ranks (or workers), and from_iterable() does not know whether their "
        msg += "sources are the same"
        hint = "shared=True if they are: each takes its part of the samples; shared=False if each has its own"
        raise UsageError(msg, hint=hint)
    return sharing if shared else Sharing()
