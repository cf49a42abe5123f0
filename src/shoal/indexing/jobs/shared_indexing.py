"""Indexing by the ranks of a starting job: each runs its own share of the units first, then units of absent ranks.

No rank leads. Every wait has a timeout, because a unit that runs twice does no harm. After the timeout, a rank counts
as absent, and the other ranks divide its share. So a rank that is killed, or never opens the dataset, costs the other
ranks its share and a short wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from shoal.errors import StorageError, UsageError
from shoal.index.table import Index
from shoal.indexing.build import Progress
from shoal.indexing.jobs.index_from_parts import IndexUnits
from shoal.indexing.scan.remote_scans import ScanTraffic
from shoal.processes.interpreters import usable_processors
from shoal.processes.job_rank import JobRank
from shoal.storage.urls import without_secrets

_log = logging.getLogger("shoal")

_Kept = TypeVar("_Kept")

KEEP_SECONDS = 7 * 86_400.0
"""The parts of an abandoned job are removed after this time."""
_LEAST_WAIT_SECONDS = 1.0
_UNKNOWN_WAIT_SECONDS = 5.0  # for a rank without a share, since it does not know how long a unit takes
_LONGEST_PAUSE_SECONDS = 1.0
_JOIN_SECONDS = 2.0  # wait for each of up to four ranks before this one, which may join the parts
_MOST_FAILURES = 5  # of reading all parts
_SIDE_BY_SIDE = 32  # shards of absent ranks in one pass, since as many are read at a time


def index_together(
    units: IndexUnits,
    me: JobRank,
    *,
    keep: Callable[[Index], _Kept],
    find: Callable[[], _Kept | None],
    progress: Progress | None = None,
) -> _Kept | None:
    """Index shards together with the other ranks; None if ranks cannot exchange parts.

    The first rank that sees all parts calls ``keep``, which stores the index; the other ranks ``find`` the index.
    ``progress`` is called with the bytes and samples of this rank's shares. Raises `ShardError`: a shard cannot be
    parsed; `StorageError`: a shard cannot be read, or has changed.
    """
    try:
        return _shared(units, me, keep, find, progress)
    except StorageError as error:
        if not units.parts.failed:
            raise
        directory, source = without_secrets(units.parts.directory), units.request.source.typed
        _log.warning("%s: ranks cannot share the work through %s: %s", source, directory, error.message)
        return None


def _shared(
    units: IndexUnits,
    me: JobRank,
    keep: Callable[[Index], _Kept],
    find: Callable[[], _Kept | None],
    progress: Progress | None,
) -> _Kept | None:
    parts = units.parts
    parts.begin(keep_seconds=KEEP_SECONDS)
    if (kept := find()) is not None:
        parts.close()
        return kept
    text = "%s: rank %d of %d indexes its share of %d units, and exchanges parts with other ranks through %s"
    _log.info(text, units.request.source.typed, *me[:2], units.num_units, without_secrets(parts.directory))
    sharing = Sharing(units, me, progress)
    sharing.run_own_share()
    num_failures = 0
    while parts.is_open():
        sharing.wait_or_take_over()
        if sharing.is_complete() and not sharing.is_finished_by_another():
            try:
                index, _ = units.merged()
            except (StorageError, UsageError):
                num_failures += 1
                if num_failures == _MOST_FAILURES:
                    raise
                continue  # a part was damaged, or another rank is removing them
            kept = keep(index)
            parts.close()
            return kept
    return find()


class Sharing:
    """The work of one rank on some units; by default on all, with the processors of this machine.

    Reads of remote shards are added to ``traffic``. Ranks that leave their share undone are added to ``absent``, and
    removed once they have done some of it: nobody waits for absent ranks.
    """

    def __init__(
        self,
        units: IndexUnits,
        me: JobRank,
        progress: Progress | None,
        numbers: range | None = None,
        *,
        num_processors: int | None = None,
        traffic: ScanTraffic | None = None,
        absent: set[int] | None = None,
    ) -> None:
        self._num_processors = usable_processors() if num_processors is None else num_processors
        self._units, self._me, self._progress, self._traffic = units, me, progress, traffic
        self._numbers = range(units.num_units) if numbers is None else numbers
        self._wait_seconds = _LEAST_WAIT_SECONDS
        self._num_run = 0
        self._is_alone = False
        self._absent = set[int]() if absent is None else absent

    def _due_from(self, number: int) -> int:
        """Return the rank that runs a unit: its own rank, or a present rank if its own rank is absent."""
        rank, world_size = number % self._me.world_size, self._me.world_size
        if rank not in self._absent:
            return rank
        left = [other for other in range(world_size) if other not in self._absent]
        return left[number // world_size % len(left)]

    def run_own_share(self) -> None:
        """Run the units of this rank, then its part of the units of absent ranks."""
        rank, world_size = self._me[:2]
        own = [number for number in self._missing() if number % world_size == rank]
        num_processes = max(1, self._num_processors // self._me.local_size)
        longest_seconds = self._run(own, num_processes=num_processes)
        if of_absent := [number for number in self._numbers if number % world_size != rank == self._due_from(number)]:
            missing = {*self._missing()}
            self._absent -= {number % world_size for number in of_absent if number not in missing}  # they are back
            taken_over = [number for number in missing if self._due_from(number) == rank]
            longest_seconds = max(longest_seconds, self._run(sorted(taken_over), num_processes=num_processes))
            own += taken_over
        # Shards that are read side by side finish in bursts; shards of other ranks come about as often.
        usual_seconds = 2 * longest_seconds if own else _UNKNOWN_WAIT_SECONDS
        self._wait_seconds = max(_LEAST_WAIT_SECONDS, usual_seconds)

    @property
    def is_alone(self) -> bool:
        """True if this rank has run all units, and every other rank was absent."""
        return self._num_run == len(self._numbers) and (self._is_alone or self._me.world_size == 1)

    def is_complete(self) -> bool:
        """Return True if the parts of all units exist."""
        return not self._missing()

    def is_finished_by_another(self) -> bool:
        """Wait for earlier ranks to finish the job, since one rank is enough; return True if one has."""
        ranks_before = 0 if self._is_alone else min(self._me.rank, 4)
        deadline = time.monotonic() + _JOIN_SECONDS * ranks_before
        while time.monotonic() < deadline:
            time.sleep(_JOIN_SECONDS / 10)
            if not self._units.parts.is_open():
                return True
        return False

    def wait_or_take_over(self) -> None:
        """Wait while parts of other ranks come; once none has come for a while, run some of the missing units.

        The present ranks divide the missing units, so that few run twice; the next call waits for the other units.
        """
        missing, since_seconds = self._missing(), time.monotonic()
        while missing and time.monotonic() - since_seconds < self._wait_seconds:
            time.sleep(min(_LONGEST_PAUSE_SECONDS, self._wait_seconds / 10))
            if not self._units.parts.is_open():
                return
            before, missing = missing, self._missing()
            if len(missing) != len(before):
                since_seconds = time.monotonic()
        # If every other rank is absent, this rank uses all processors of its machine.
        self._is_alone = len(missing) == len(self._numbers) - self._num_run and bool(missing)
        self._absent |= {self._due_from(number) for number in missing} - {self._me.rank}
        while (due := self._due(missing)) and self._units.parts.is_open():
            text = "%d of %d units have been missing for %.1f s: this rank takes over %d of them"
            _log.info(text, len(missing), len(self._numbers), time.monotonic() - since_seconds, len(due))
            share = 1 if self._is_alone else self._me.local_size
            self._run(due, num_processes=max(1, self._num_processors // share))
            missing = self._missing()

    def _missing(self) -> list[int]:
        return self._units.parts.missing(self._numbers)

    def _due(self, missing: Sequence[int]) -> list[int]:
        """Return missing units of this rank, as many as are scanned side by side."""
        some, num_shards = [], 0
        for number in missing:
            if self._due_from(number) == self._me.rank and num_shards < _SIDE_BY_SIDE:
                some.append(number)
                num_shards += len(self._units.task(number).shards)
        return some

    def _run(self, numbers: Sequence[int], *, num_processes: int) -> float:
        """Run some units; return the longest time without a finished unit."""
        workers = 0 if num_processes == 1 else num_processes
        longest_seconds, last_seconds = 0.0, time.monotonic()
        running = self._units.run_side_by_side(numbers, workers=workers, progress=self._progress, traffic=self._traffic)
        for _ in running:
            self._num_run += 1
            now_seconds = time.monotonic()
            longest_seconds, last_seconds = max(longest_seconds, now_seconds - last_seconds), now_seconds
        return longest_seconds
