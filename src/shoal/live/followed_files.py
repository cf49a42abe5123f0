"""Samples of files that appear while a stream runs, file after file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from shoal.errors import ShardError, SourceError, StateError
from shoal.figures import counted
from shoal.indexing.open_source import open_source
from shoal.live.file_listing import FileKey, FileListing, FollowSpec
from shoal.live.live_source import EndOfSourceError, LiveCounters, LiveSource, Sharing, Taken, Waiting
from shoal.order.seeds import key, text_keys
from shoal.storage.sources.source import printed
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.iterating.iterator import Iteration

# Times of files are coarse: 4 to 10 ms behind the clock on Linux, and whole seconds in object stores and on FAT (2 s).
_COARSE_NS = 2_000_000_000
_KEEP_FILES = "give new files names of their own, and do not change files that a state names"


class Place(NamedTuple):
    """A sample by the name of its file, relative to the followed directory, and its number in the file."""

    name: str
    record: int


class FollowedFiles(LiveSource):
    """Samples of files in their order; a place is a file's name and a number in the file.

    The position is the current file and its next record. All files that sort before the current file count as read. A
    new file among them is late: a single rank reads it next. With several ranks a late file is an error, since
    ranks would read the late file at different times.
    """

    kind = "followed"

    def __init__(self, spec: FollowSpec, waiting: Waiting, sharing: Sharing) -> None:
        self._spec, self._waiting, self._sharing = spec, waiting, sharing
        self._counters = waiting.counters
        self._listing = FileListing(spec)
        self._at: FileKey | None = None  # the current file, or the last one
        self._record = 0  # the next record of that file; -1 at its end
        self._behind: list[FileKey] = []  # late files
        self._late: tuple[FileKey, int] | None = None  # the late file under way, and its next record
        self._seen: set[str] | None = None  # names in the last listing
        self._listed_ns = 0  # files that were written after the last listing have a later time
        self._fresh: set[str] = set()  # files in the last listing with a later time
        self._reading: Iterator[tuple[int, Any]] | None = None
        self._datasets: dict[str, Dataset] = {}
        self._fingerprints: dict[str, str] = {}  # of files whose samples a state may name
        self._ready: list[FileKey] = []
        self._name_key = ("", 0)

    def again(self) -> FollowedFiles:
        """Return another source over the files that are complete now."""
        waiting = replace(self._waiting, counters=LiveCounters(), idle_seconds=0.0, stop=None)
        return FollowedFiles(self._spec, waiting, self._sharing)

    # ---- taking

    def take(self) -> Taken:
        """Return the next sample of this share; wait for the next file if necessary."""
        while True:
            if self._reading is None:
                self._begin_file()
            name = self._current.name
            try:
                numbered = next(self._reading or iter(()), None)
            except ShardError as error:
                self._leave_damaged(name, error)
                raise
            if numbered is None:
                self._end_file()
                continue
            record, sample = numbered
            if self._late is not None:
                self._late = self._late[0], record + 1
            else:
                self._record = record + 1
            return Taken(sample, Place(name, record))

    @property
    def _current(self) -> FileKey:
        file = self._late[0] if self._late is not None else self._at
        if file is None:
            raise EndOfSourceError
        return file

    def _leave_damaged(self, name: str, error: ShardError) -> None:
        """Forget a file, so that it is reopened at the same record; add the usual cause to the error."""
        self._reading = None
        self._datasets.pop(name, None)
        self._fingerprints.pop(name, None)  # the complete file has another fingerprint
        cause = f"if {name} is still being written, read it later: follow(settle_seconds=60) or follow(marker='.done')"
        error.hint = f"{cause}. Once the file is complete, continue this stream or load its state. Else {error.hint}"

    def _end_file(self) -> None:
        self._reading = None
        self._datasets.pop(self._current.name, None)
        if self._late is not None:
            self._late = None
        else:
            self._record = -1

    def _begin_file(self) -> None:
        """Continue in the current file, or begin the next one."""
        if self._late is None and self._at is not None and self._record >= 0:
            self._read(self._at, self._record)
            return
        if self._late is not None:
            self._read(*self._late)
            return
        if not self._ready and not self._behind and not self._waiting.until(self._find_files):
            raise EndOfSourceError
        if self._behind:
            self._late = self._behind.pop(0), 0
        else:
            self._at, self._record = self._ready.pop(0), 0
        self._counters.num_files += 1
        self._read(self._current, 0)

    def _read(self, file: FileKey, first: int) -> None:
        try:
            dataset = self._dataset(file.name)
        except ShardError as error:
            self._leave_damaged(file.name, error)
            raise
        self._check_length(file.name, first)
        sharing = self._sharing
        records = records_of(file.name, first, dataset.num_samples, sharing.rank, sharing.world_size)
        self._reading = zip(records, samples_at(dataset, records), strict=True)

    def _dataset(self, name: str) -> Dataset:
        if name not in self._datasets:
            path = self._listing.paths.get(name)
            if path is None:
                self._listing.files()
                path = self._listing.paths.get(name)
            if path is None:
                msg = f"{printed(self._spec.source)}: the file {name} is still unread, but no longer exists"
                raise SourceError(msg, hint="keep a file until all its samples are delivered")
            opened = open_source(path, format=self._spec.format, storage_options=self._spec.storage_options)
            fingerprint = opened.index.fingerprint
            if fingerprint != self._fingerprints.setdefault(name, fingerprint):
                msg = f"the file {name} has changed since the state was saved: its samples are different"
                raise StateError(msg, hint=_KEEP_FILES)
            self._datasets[name] = Dataset(DatasetSpec.of(opened))
        return self._datasets[name]

    def _check_length(self, name: str, num_records: int) -> None:
        """Raise `StateError` if a file has fewer records than were taken."""
        num_samples = self._dataset(name).num_samples
        if num_samples < num_records:
            msg = f"the file {name} has {counted(num_samples, 'sample')}, but had {num_records:,} when it was read"
            raise StateError(msg, hint=_KEEP_FILES)

    # ---- listing

    def _find_files(self) -> bool:
        """List the files; return True if there is a file to read."""
        listed_ns = time.time_ns() - _COARSE_NS
        files = self._listing.files()
        reached = self._at
        if self._seen is None and reached is not None:
            self._check_times(reached, files)
        self._ready = [file for file in files if reached is None or file > reached]
        if reached is not None:
            self._find_late([file for file in files if file < reached])
        names = {file.name for file in files}
        new = names if self._seen is None else names - self._seen
        self._fresh = {name for name in names & (new | self._fresh) if self._listing.written_ns(name) > listed_ns}
        self._seen, self._listed_ns = names, listed_ns
        return bool(self._ready or self._behind)

    def _check_times(self, reached: FileKey, files: Sequence[FileKey]) -> None:
        """Raise `StateError` after a resume if the current file has another time: then times do not show new files."""
        name = reached.name
        listed = next((file for file in files if file.name == name), reached)
        if self._spec.order == "name":
            passed = any(file < reached and self._is_late(file.name) for file in files)
            if not passed or listed not in files or not self._is_late(name):
                return
        elif listed == reached:
            return
        msg = f"the file {name} was read before the state was saved, but has another time now: times do not tell which "
        msg += "files are new"
        hint = "copy directories with their times (cp -p, rsync -t), and do not change files that were read"
        raise StateError(msg, hint=hint)

    def _find_late(self, passed: list[FileKey]) -> None:
        waiting = {file.name for file in self._behind}
        late = [file for file in passed if file.name not in waiting and self._is_late(file.name)]
        if not late or self._at is None:
            return
        self._counters.num_late_files += len(late)
        others = f" and {counted(len(late) - 1, 'other file')}" if late[1:] else ""
        where = f"{late[0].name}{others} came late: {self._at.name} sorts after this file, and was read before"
        if self._sharing.world_size > 1:
            msg = f"{printed(self._spec.source)}: {where}; ranks would read the late file at different times"
            raise SourceError(msg, hint='give files names that ascend, or follow(order="mtime")')
        warnings.warn(f"{where}; the late file is read next", stacklevel=2)
        self._behind += late

    def _is_late(self, name: str) -> bool:
        if self._seen is not None:
            return name not in self._seen
        # The first listing after a resume: files that were written since the last listing of the earlier run.
        return name not in self._fresh and self._listing.written_ns(name) > self._listed_ns

    # ---- states

    def state(self, places: Sequence[Any]) -> dict[str, Any]:
        """Return the file and the record, late files, and fingerprints of all files that a resume reads again."""
        names = {name for name, _ in places} | ({self._late[0].name} if self._late else set())
        if self._at is not None and self._record >= 0:
            names.add(self._at.name)
        self._fingerprints = {name: known for name, known in self._fingerprints.items() if name in names}
        return {
            "files": dict(sorted(self._fingerprints.items())),
            "order": self._spec.order,
            "at": None if self._at is None else [*self._at],
            "record": self._record,
            "late": None if self._late is None else [*self._late[0], self._late[1]],
            "behind": [[*file] for file in self._behind],
            "listed_ns": self._listed_ns,
            "fresh": sorted(self._fresh),
        }

    def resume(self, state: Any, places: Sequence[Any]) -> list[Any]:
        """Continue at a file and record, and read the samples at these places, file by file."""
        if state["order"] != self._spec.order:
            msg = f"the state was saved with order={state['order']!r}; this stream has order={self._spec.order!r}"
            raise StateError(msg, hint=f"follow(order={state['order']!r}) goes on with it")
        self._reading, self._ready, self._seen = None, [], None
        self._at = None if state["at"] is None else FileKey(*state["at"])
        self._record = state["record"]
        self._late = None if state["late"] is None else (FileKey(*state["late"][:2]), state["late"][2])
        self._behind = [FileKey(*file) for file in state["behind"]]
        self._listed_ns, self._fresh = state["listed_ns"], set(state["fresh"])
        self._fingerprints = dict(state["files"])
        records_by_file: dict[str, set[int]] = {}
        for name, record in places:
            records_by_file.setdefault(name, set()).add(record)
        samples: dict[Place, Any] = {}
        for name, numbers in sorted(records_by_file.items()):
            records = sorted(numbers)
            self._check_length(name, records[-1] + 1)
            pairs = zip(records, samples_at(self._dataset(name), records), strict=True)
            samples |= {Place(name, record): sample for record, sample in pairs}
        self._datasets.clear()
        return [samples[Place(*place)] for place in places]

    def number_of(self, place: Any) -> int:
        """Return a hash of the file's name and the record."""
        name, record = place
        if self._name_key[0] != name:
            self._name_key = name, int(text_keys(0, [name])[0])
        return key(self._name_key[1], 0, "followed", record) >> 1

    def label(self, place: Any) -> str:
        """Return the file and the record in words."""
        name, record = place
        return f"sample {record} of {name}"

    def deal(self, states: Sequence[Any], places: Sequence[Sequence[Any]], sharing: Sharing) -> tuple[Any, list[Any]]:
        """Return the furthest position of all ranks, and this rank's share of the undelivered samples before it."""
        if any(state["late"] or state["behind"] for state in states):
            msg = "the state was saved before a late file was read; only a single rank reads late files"
            raise StateError(msg, hint="resume on one rank until the file is read")
        begun = [state for state in states if state["at"] is not None]
        if not begun:
            return states[0], []
        furthest: dict[str, Any] = {**max(begun, key=_position), "files": {}}
        for state in states:
            furthest["files"] |= state["files"]
        self._fingerprints = furthest["files"]
        left = [Place(*place) for own in places for place in own]
        for rank, state in enumerate(states):
            left += self._left_of_rank(rank, len(states), state, furthest)
        return furthest, sorted(left)[sharing.rank :: sharing.world_size]

    def _left_of_rank(self, rank: int, world_size: int, state: Any, furthest: Any) -> list[Place]:
        """Return the places before the furthest position whose samples a rank has not taken."""
        at = None if state["at"] is None else FileKey(*state["at"])
        last = FileKey(*furthest["at"])
        left = []
        for file in self._listing.files():
            if (at is not None and file < at) or file > last:
                continue
            is_known = file.name in furthest["files"] or file.name in furthest["fresh"]
            if not is_known and self._listing.written_ns(file.name) > furthest["listed_ns"]:
                msg = f"the file {file.name} came late: {last.name} was read before, and sorts after it"
                raise StateError(msg, hint="resume on as many ranks as before, or rename the file to sort last")
            first = state["record"] if file == at else 0
            stop = furthest["record"] if file == last else -1
            if first == stop:  # perhaps both are the end of the file
                continue
            stop = self._dataset(file.name).num_samples if stop < 0 else stop
            left += [Place(file.name, record) for record in records_of(file.name, first, stop, rank, world_size)]
        return left


def records_of(name: str, first: int, stop: int, rank: int, world_size: int) -> range:
    """Return the records of a rank in a file, from ``first`` on.

    >>> [list(records_of("a", 0, 5, rank, 2)) for rank in range(2)]
    [[1, 3], [0, 2, 4]]
    """
    # The first rank differs from file to file: otherwise one rank would get all files of one record.
    residue = (rank - crc32(name.encode("utf-8", "surrogateescape"))) % world_size
    return range(first + (residue - first) % world_size, stop, world_size)


def samples_at(dataset: Dataset, records: Sequence[int]) -> Iterator[Any]:
    """Return the samples with these ascending ids; neighbours are read together."""
    if not len(records):
        return iter(())
    chosen = dataset if len(records) == dataset.num_samples else dataset.select(np.asarray(records))
    # Not iter(dataset), which a worker of torch's DataLoader refuses: these records already are the worker's share.
    return Iteration(chosen.partition(rank=0, world_size=1).stream.iterator_spec())


def _position(state: Any) -> tuple[FileKey, float]:
    return FileKey(*state["at"]), float("inf") if state["record"] < 0 else state["record"]
