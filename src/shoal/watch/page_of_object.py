"""A page for a run that has no ``reading(progress="page")``: a live stream, or an object with `stats`."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from shoal.stream.dataset import Dataset
from shoal.watch.page_reporter import address_of
from shoal.watch.page_server import PageServer
from shoal.watch.watched_object import watched
from shoal.watch.watched_run import WatchedRun


class Page:
    """A page that is served until `close`, or the end of a ``with``; `url` is its address on this machine.

    Examples
    --------
    >>> import shoal, shoal.watch
    >>> page = shoal.watch.page(shoal.from_iterable([1, 2, 3]))
    >>> page.url.startswith("http://127.0.0.1:")
    True
    >>> page.close()
    """

    def __init__(self, server: PageServer) -> None:
        self._server = server

    @property
    def url(self) -> str:
        """Address of the page; only this machine can open it."""
        return self._server.url

    def close(self) -> None:
        """Stop serving; no thread and no socket is left."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<shoal.watch.Page: {self.url}>"


def address(run: Any) -> str | None:
    """Return the address of the page of a dataset, or of a loader's dataset; None if it has no page.

    ``reading(progress="page")`` serves the page from the first iterator on.

    Examples
    --------
    >>> import shoal, shoal.watch
    >>> shoal.watch.address(shoal.from_iterable([1, 2, 3])) is None
    True
    """
    dataset = run if isinstance(run, Dataset) else getattr(run, "dataset", None)
    return address_of(dataset.stream.counters) if isinstance(dataset, Dataset) else None


def page(run: Any) -> Page:
    """Serve a page of a run on this machine, for runs without ``reading(progress="page")``, such as live streams.

    Parameters
    ----------
    run
        A live stream, a dataset, a loader of shoal, or another object whose `stats` returns a dict of counts.

    Raises
    ------
    UsageError
        The object has no method `stats`.

    Examples
    --------
    >>> import shoal, shoal.watch
    >>> live = shoal.from_iterable([1, 2, 3])
    >>> with shoal.watch.page(live) as page:
    ...     samples = list(live)
    ...     page.url.startswith("http://127.0.0.1:")
    True
    """
    watched_run = watched(run)
    return Page(PageServer(WatchedRun(watched_run.stats, watched_run.measure, is_live=watched_run.is_live)))
