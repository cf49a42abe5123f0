"""Runs through epochs that are interrupted at random moments, again and again, and go on each time from the state."""

from __future__ import annotations

import _weakrefset
import contextlib
import gc
import random
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tests.stream.made import at, reading_threads

import shoal
from shoal.errors import UsageError
from shoal.stream.dataset import Dataset

_PACKAGE = str(Path(shoal.__file__).parent)
_FINALIZERS = (weakref.__file__, _weakrefset.__file__)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename in _FINALIZERS:  # Python drops an exception of a finalizer
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


@contextlib.contextmanager
def alarms_interrupt() -> Iterator[None]:
    """A timer counts in the system, and so it interrupts between any two steps of the interpreter.

    But for callbacks of the collector, such as hypothesis has: Python drops what is raised in them.
    """
    before, callbacks = signal.signal(signal.SIGALRM, _interrupt), gc.callbacks[:]
    gc.callbacks.clear()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks.extend(callbacks)


def epoch_of_interrupts(
    ds: Dataset, begin: Callable[[], Any], dice: random.Random, *, most_seconds: float, batch_size: int
) -> int:
    """Every sample of an epoch must come once; gives the number of interrupts that came out of shoal.

    An interrupt that comes while the test has a batch in its hand and has not noted it is no fault: where the traceback
    has no line of shoal, the state may be one batch further.
    """
    order = ds.ids().tolist()
    received: list[int] = []
    iterator: Any = None
    num_inside = 0
    came: BaseException | None = None
    while at(ds)[0] == 0:
        before = len(received)
        came = None
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, most_seconds))
                if iterator is None:
                    iterator = begin()
                for batch in iterator:
                    received.extend(batch["__id__"].tolist())
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                time.sleep(0.002)  # one that came in a finalizer arrives a moment later
        except KeyboardInterrupt as error:
            came = error
        except UsageError as error:
            assert "interrupted" in str(error)  # noqa: PT017  # no other error may come, and this one need not
        epoch, position = at(ds)
        done = len(order) if epoch else position
        is_inside = came is not None and _is_inside(came)
        num_inside += is_inside
        if not is_inside and done - len(received) in range(1, batch_size + 1):
            received = order[:done]
        assert received == order[:done]
        if done == before:
            most_seconds *= 1.2  # a slow machine comes to nothing in the time there was
        if dice.random() < 0.7 or came is None:  # else the same iterator is asked for more
            if iterator is not None:
                iterator.close()
            iterator = None
            ds.load_state_dict(ds.state_dict())
    assert received == order
    iterator = came = None
    gc.collect()  # an error knows the frames it came through
    until = time.monotonic() + 20
    while reading_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert reading_threads() == []
    return num_inside


def _is_inside(error: BaseException) -> bool:
    """Whether it came while shoal was at work."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            return True
        step = step.tb_next
    return False
