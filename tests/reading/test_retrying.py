"""What is transient is tried again until a deadline; what is final, and what comes after it, is said at once."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from shoal.errors import StorageError
from shoal.storage import retry
from shoal.storage.memory_store import MemoryStore
from shoal.storage.retry import (
    RetryControl,
    RetryingStore,
    RetryRule,
    StoppedError,
    retried,
    retry_control,
    unwrap_retries,
)
from shoal.storage.store_protocol import Buffer, ObjectInfo, Reader, Store

SECRET = "http://user:pass@host:81/a/b.tar?key=secret"


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.errors: list[StorageError] = []

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    monkeypatch.setattr(retry, "_logged_seconds", 0.0)
    with retry_control(RetryControl(made.pause, made.errors.append)):
        yield made


class Failing(Store):
    """A store that fails so many times in a row, then answers."""

    def __init__(self, num_failures: int, *, transient: bool = True, retry_after_seconds: float | None = None) -> None:
        self.num_failures = num_failures
        self.num_asked = 0
        self._say = {"transient": transient, "retry_after_seconds": retry_after_seconds}

    def _answer(self) -> None:
        self.num_asked += 1
        if self.num_asked <= self.num_failures:
            msg = f"503 number {self.num_asked}"
            raise StorageError(msg, hint="ask again", **self._say)  # type: ignore[arg-type]

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        self._answer()
        return bytes(range(first_byte, end_byte))

    def stat(self, path: str) -> ObjectInfo:
        self._answer()
        return ObjectInfo(path, 7)

    def find(self, path: str) -> ObjectInfo | None:
        self._answer()
        return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield ObjectInfo(f"{prefix}/a", 1)
        self._answer()
        yield ObjectInfo(f"{prefix}/b", 2)

    def delete(self, path: str) -> None:
        raise NotImplementedError

    def put(self, path: str, data: object) -> None:
        self._answer()

    def map(self, path: str) -> memoryview:
        raise NotImplementedError  # a store that is tried again is read in pieces

    def reader(self, path: str) -> Reader:
        raise NotImplementedError  # the same

    def advise(self, path: str, first_byte: int, end_byte: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.num_asked = -1


VERBS: list[Callable[[RetryingStore], object]] = [
    lambda store: store.read_range("a", 2, 5),
    lambda store: store.stat("a"),
    lambda store: store.find("a"),
    lambda store: [info.path for info in store.list("a")],
    lambda store: store.put("a", b"x"),
    lambda store: store.reader("a")(2, 5),
]
ANSWERS = [b"\2\3\4", ObjectInfo("a", 7), None, ["a/a", "a/b"], None, b"\2\3\4"]


@pytest.mark.parametrize(("verb", "answer"), [*zip(VERBS, ANSWERS, strict=True)])
def test_every_verb_is_tried_again_until_it_answers(verb: Callable, answer: object, clock: Clock) -> None:
    store = Failing(6)
    assert verb(RetryingStore(store)) == answer
    assert store.num_asked == 7
    assert len(clock.pauses) == len(clock.errors) == 6


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_final_is_said_at_once(verb: Callable, clock: Clock) -> None:
    store = Failing(1, transient=False)
    with pytest.raises(StorageError, match=r"^503 number 1\n"):
        verb(RetryingStore(store))
    assert not clock.pauses
    assert not clock.errors


def test_what_may_be_one_servers_mistake_is_worth_a_few_attempts(clock: Clock) -> None:
    def changed() -> None:
        clock.now += 1
        msg = "another version"
        raise StorageError(msg, worth_attempts=4)

    with pytest.raises(StorageError, match=r"^another version$"):
        retried(changed, RetryRule(), what="read")
    assert len(clock.pauses) == 3
    assert clock.now < 1004 + 0.1 + 0.2 + 0.4


def test_pauses_are_random_below_a_bound_that_doubles(clock: Clock) -> None:
    rule = RetryRule(first_pause_seconds=0.5, most_pause_seconds=4.0, deadline_seconds=1e9)
    for _ in range(40):
        RetryingStore(Failing(7), rule).stat("a")
    bounds = [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    for attempt, bound in enumerate(bounds):
        pauses = clock.pauses[attempt::7]
        assert 0 <= min(pauses) < bound / 4
        assert bound * 3 / 4 < max(pauses) < bound
    assert len(set(clock.pauses)) == 7 * 40


def test_pauses_stay_short_while_the_store_answers_others(clock: Clock) -> None:
    with retry_control(RetryControl(clock.pause, clock.errors.append, is_lively=lambda: True)):
        RetryingStore(Failing(30, retry_after_seconds=None)).stat("a")
    assert max(clock.pauses) < 1.0
    assert sum(pause > 0.5 for pause in clock.pauses) > 3


def test_answers_of_different_servers_do_not_add_up(clock: Clock) -> None:
    """What one of them says again and again is believed; what each says once is not."""
    said = iter([1, 2, 3, 4, 1, 2, 3, 1, 2, 1])

    def changed() -> None:
        msg = f"version {(evidence := next(said))}"
        raise StorageError(msg, worth_attempts=4, evidence=evidence)

    with pytest.raises(StorageError, match=r"^version 1$"):
        retried(changed, RetryRule(), what="read")
    assert len(clock.pauses) == 9


def test_a_server_is_given_the_time_it_asks_for(clock: Clock) -> None:
    RetryingStore(Failing(3, retry_after_seconds=30.0)).stat("a")
    assert all(30.0 <= pause < 31.0 for pause in clock.pauses)


def test_the_deadline_ends_it_and_the_error_says_all(clock: Clock) -> None:
    rule = RetryRule(first_pause_seconds=1.0, most_pause_seconds=8.0, deadline_seconds=60.0)
    with pytest.raises(StorageError) as caught:
        RetryingStore(Failing(10**9), rule).read_range(SECRET, 100, 200)
    error = caught.value
    attempts = len(clock.pauses) + 1
    assert f"could not read bytes [100, 200) of http://host:81/a/b.tar: {attempts} attempts in" in str(error)
    assert f"the last answer: 503 number {attempts}" in str(error)
    assert error.hint == "ask again"
    assert "secret" not in str(error)
    assert "pass" not in str(error)
    assert not error.transient
    assert isinstance(error.__cause__, StorageError)
    assert error.__cause__.transient
    assert 40 < sum(clock.pauses) <= 60


def test_what_takes_long_is_logged_now_and_then(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong name of a host must not look like a program that hangs; nor a thousand failures fill the log."""
    rule = RetryRule(first_pause_seconds=0.1, most_pause_seconds=10.0)
    RetryingStore(Failing(4), rule).stat(SECRET)
    assert not caplog.records
    for _ in range(20):
        with pytest.raises(StorageError):
            RetryingStore(Failing(10**9), replace(rule, deadline_seconds=10.0)).stat(SECRET)
    lasted_seconds = sum(clock.pauses)
    assert 2 <= len(caplog.records) <= lasted_seconds / 30 + 1
    said = caplog.records[0].getMessage()
    assert said.startswith("could not look at http://host:81/a/b.tar so far (attempt ")
    assert "retrying until 10 s are over; the last answer: 503 number" in said
    assert "secret" not in caplog.text


def test_a_server_that_asks_for_more_time_than_there_is_is_not_waited_for(clock: Clock) -> None:
    with pytest.raises(StorageError, match=r"1 attempt in 0\.0 s.*asked to wait 900 s") as caught:
        RetryingStore(Failing(5, retry_after_seconds=900.0)).stat("a")
    assert "reading(deadline=1800)" in caught.value.hint
    assert not clock.pauses


def test_who_runs_the_thread_may_change_the_deadline_and_stop(clock: Clock) -> None:
    with (
        retry_control(RetryControl(clock.pause, clock.errors.append, deadline_seconds=0.001)),
        pytest.raises(StorageError, match=r"deadline is 0\.001 s"),
    ):
        RetryingStore(Failing(50), RetryRule(first_pause_seconds=5.0)).stat("a")
    with (
        retry_control(RetryControl(lambda _: True, clock.errors.append)),
        pytest.raises(StoppedError, match="could not look at a: the stream was closed"),
    ):
        RetryingStore(Failing(5)).stat("a")


class LosingAnswers(MemoryStore):
    """A store that writes, and whose answers to so many writes are lost; meanwhile others may write, too."""

    def __init__(self, num_lost: int, *, meanwhile: bytes | None = None) -> None:
        super().__init__()
        self.num_lost, self.meanwhile = num_lost, meanwhile

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:
        written = super().put_if(path, data, replaces=replaces)
        if self.num_lost:
            self.num_lost -= 1
            if self.meanwhile is not None:
                self.put(path, self.meanwhile)
            msg = "the connection broke off"
            raise StorageError(msg, transient=True)
        return written


@pytest.mark.parametrize("num_lost", [0, 1, 3])
@pytest.mark.parametrize("data", [b"bytes", [b"by", b"tes"]])
@pytest.mark.parametrize(("meanwhile", "is_ours"), [(None, True), (b"BYTES", False), (b"longer than that", False)])
def test_what_was_written_is_known_though_its_answer_was_lost(
    num_lost: int, data: Buffer | Sequence[Buffer], meanwhile: bytes | None, is_ours: bool, clock: Clock
) -> None:
    path = "memory://retrying/put_if"
    store = LosingAnswers(num_lost, meanwhile=meanwhile)
    store.delete(path)
    assert RetryingStore(store).put_if(path, data, replaces=None) is (is_ours or num_lost == 0)
    assert not RetryingStore(store).put_if(path, data, replaces=None)  # one that was there before is not ours
    store.delete(path)


def test_a_whole_object_is_read_in_pieces(clock: Clock) -> None:
    assert RetryingStore(Failing(2)).map("a") == bytes(range(7))
    assert len(clock.pauses) == 2


def test_closing_closes_what_is_inside() -> None:
    store = Failing(0)
    RetryingStore(store).close()
    assert store.num_asked == -1


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        retried(lambda: 1 // 0, RetryRule(), what="divide")


def test_it_pickles_with_its_rule() -> None:
    store = pickle.loads(pickle.dumps(RetryingStore(Failing(3), RetryRule(deadline_seconds=5.0))))
    assert store.rule == RetryRule(deadline_seconds=5.0)
    assert store.reads_ahead is False
    assert unwrap_retries(store) == (store.store, store.rule)
    assert unwrap_retries(store.store) == (store.store, RetryRule())
