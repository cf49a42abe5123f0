"""Calls that wait for answers, made side by side in threads: results come in order, and few are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def called_in_order(call: Callable[[_Item], _Result], items: Iterable[_Item], *, num_threads: int) -> Iterator[_Result]:
    """Yield ``call(item)`` for each item, in order; at most ``num_threads`` results wait or are being made.

    With one thread, calls are made as results are asked for. Raises the first error of a call, in this order; calls
    under way are waited for, and no more are begun.

    >>> list(called_in_order(abs, range(-2, 2), num_threads=4))
    [2, 1, 0, 1]
    """
    if num_threads <= 1:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(num_threads, thread_name_prefix="shoal-call") as pool:
        under_way: deque[Future[_Result]] = deque()
        try:
            for item in items:
                under_way.append(pool.submit(call, item))
                if len(under_way) >= num_threads:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
