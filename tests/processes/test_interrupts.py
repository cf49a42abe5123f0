from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from shoal.processes.interrupts import interrupts_wait


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_comes_when_the_work_is_done() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        interrupt()
        done.append("work")
    assert done == ["work"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_comes_at_once() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        interrupt()
        interrupt()
        done.append("work")
    assert not done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_fails_meanwhile_is_said_with_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, interrupts_wait():
        interrupt()
        raise ValueError
    assert isinstance(caught.value.__context__, ValueError)


def test_without_one_nothing_happens() -> None:
    with interrupts_wait():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_interrupts_are_ignored_or_go_to_another_thread_they_are_left_alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_wait():
        interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = []

    def elsewhere() -> None:
        with interrupts_wait():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
