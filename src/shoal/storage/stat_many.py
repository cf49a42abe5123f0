"""Stat of many objects: one after another in a local store, many at a time in a remote one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from shoal.errors import StorageError
from shoal.storage.storage_errors import is_missing
from shoal.storage.store_protocol import ObjectInfo, Store

_NUM_THREADS = 128  # with 20 ms to a server, as many as keep one processor busy


def stat_all(paths: Sequence[str], store: Store) -> list[ObjectInfo]:
    """Return size and version of every object.

    Raises `StorageError` if `stat` fails for an object; if several are missing, the message counts them.
    """
    if store.reads_ahead:
        return [store.stat(path) for path in paths]
    infos = find_all(paths, store)
    missing = [path for path, info in zip(paths, infos, strict=True) if info is None]
    if missing:
        try:
            store.stat(missing[0])
        except StorageError as error:
            if is_missing(error) and len(missing) > 1:
                error.args = (f"{error.message}; so it is with {len(missing)} of {len(paths)} shards",)
                error.message = error.args[0]
            raise
    return [store.stat(path) if info is None else info for path, info in zip(paths, infos, strict=True)]


def find_all(
    paths: Sequence[str], store: Store, *, but: Callable[[StorageError], bool] = is_missing
) -> list[ObjectInfo | None]:
    """Like `stat_all`, with None for errors that ``but`` accepts: by default, missing objects and dangling links."""

    def find(path: str) -> ObjectInfo | None:
        try:
            return store.find(path)
        except StorageError as error:
            if but(error):
                return None
            raise

    if store.reads_ahead or len(paths) < 2:
        return [find(path) for path in paths]
    return _side_by_side(find, paths)


def _side_by_side(find: Callable[[str], ObjectInfo | None], paths: Sequence[str]) -> list[ObjectInfo | None]:
    """Call ``find`` for each path, from several threads; raises the error of the first failed path."""
    infos: list[ObjectInfo | None] = [None] * len(paths)
    failures: dict[int, BaseException] = {}
    # Threads take the next number: a future for each of 100,000 paths would take as much memory as the results.
    numbers = iter(range(len(paths)))

    def work() -> None:
        for number in numbers:
            if failures:
                return
            try:
                infos[number] = find(paths[number])
            except BaseException as error:  # noqa: BLE001  # raised by the caller
                failures[number] = error

    num_threads = min(_NUM_THREADS, len(paths))
    with ThreadPoolExecutor(num_threads, thread_name_prefix="shoal-stat") as pool:
        working = [pool.submit(work) for _ in range(num_threads)]
        try:
            wait(working)
        except BaseException as error:
            failures[-1] = error
            raise
    if failures:
        raise failures[min(failures)]
    return infos
