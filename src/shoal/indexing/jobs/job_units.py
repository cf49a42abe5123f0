"""Units of a job on shards, for jobs of all kinds: the cuts between units, and the parts that units leave.

Units are consecutive shards, cut by bytes and count alone. They leave parts of the result in a directory that all
machines share, until the job is finished. A file named ``plan`` marks a job as open. It comes before the first part,
and goes before the last: a late unit finds no mark, and removes its part again. The machine that finishes the job reads
and checks the parts, and writes one object that readers trust.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from itertools import groupby
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from shoal.errors import IndexFileError, StorageError, UsageError
from shoal.figures import counted
from shoal.storage.objects.torch_store import TorchStore
from shoal.storage.storage_errors import is_missing
from shoal.storage.store_protocol import Buffer, ObjectInfo, Store
from shoal.storage.urls import join, relative, scheme_of, without_secrets

_MOST_UNITS = 512  # more parts cost more requests than they save, up to the limits below
_LEAST_BYTES, _MOST_BYTES = 256 << 20, 16 << 30
_LEAST_SHARDS, _MOST_SHARDS = 8, 256
_MOST_NAMED = 10
_MARK, _PART = "plan", ".part"
_LISTINGS = 20  # of a local directory that changes meanwhile

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Part = TypeVar("_Part")


def cut_units(num_bytes: Sequence[int]) -> list[int]:
    """Return the first shard of each unit, and the number of shards.

    There are about 512 units: more if units would exceed 16 GiB or 256 shards, fewer if units would fall below 256 MiB
    or 8 shards. The units depend on the sizes alone, so all machines compute the same units.

    >>> cut_units([100 << 20] * 7)
    [0, 2, 4, 6, 7]
    """
    limit_bytes = min(max(sum(num_bytes) // _MOST_UNITS, _LEAST_BYTES), _MOST_BYTES)
    limit_shards = min(max(len(num_bytes) // _MOST_UNITS, _LEAST_SHARDS), _MOST_SHARDS)
    cuts, unit_bytes = [0], 0
    for shard, size in enumerate(num_bytes):
        unit_bytes += size
        if shard > cuts[-1] and (unit_bytes > limit_bytes or shard - cuts[-1] == limit_shards):
            cuts.append(shard)
            unit_bytes = size
    return [*cuts, len(num_bytes)]


def spans(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, with runs as spans.

    >>> spans([1, 2, 3, 7])
    '1-3, 7'
    """
    runs = [[number for _, number in group] for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join([*texts[:_MOST_NAMED], *(["..."] if len(texts) > _MOST_NAMED else [])])


def check_unit(number: int, num_units: int) -> None:
    """Raise `UsageError` if the unit does not exist."""
    if not 0 <= number < num_units:
        raise UsageError(f"there is no unit {number}: this job has {num_units}, numbered from 0")


def missing_units(missing: Sequence[int], num_units: int, *, then: str) -> UsageError:
    """Return the error that names missing units; ``then`` ends its hint."""
    msg = f"{len(missing)} of {counted(num_units, 'unit')} are missing: {spans(missing)}"
    return UsageError(msg, hint=f"run them, then finish again; {then}")


def _noting_failure(
    method: Callable[Concatenate[UnitParts, _Arguments], _Result],
) -> Callable[Concatenate[UnitParts, _Arguments], _Result]:
    @wraps(method)
    def noting(self: UnitParts, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        try:
            return method(self, *arguments, **named)
        except StorageError:
            self.failed = True
            raise

    return noting


class UnitParts:
    """The parts of one job, below ``directory``; ``plan`` identifies the job. Can be pickled.

    ``store`` forgets cached facts each time, so nobody else should read from it. Raises `StorageError` if the directory
    cannot be read or written; ``failed`` is then True, which tells such errors from errors of shards.
    """

    def __init__(self, directory: str, plan: str, store: Store) -> None:
        self.failed = False
        self.directory, self.plan, self._store = directory, plan, store
        self.home = join(directory, plan)

    def __reduce__(self) -> tuple[object, ...]:
        return UnitParts, (self.directory, self.plan, self._store)

    @_noting_failure
    def begin(self, *, keep_seconds: float) -> None:
        """Begin or continue the job; remove jobs (even this job) that have written nothing for ``keep_seconds``.

        One listing of the directory, and one write.
        """
        jobs: dict[str, list[ObjectInfo]] = {}
        for info in self._listed(self.directory):
            jobs.setdefault(relative(info.path, self.directory).partition("/")[0], []).append(info)
        now_ns = time.time_ns()
        for plan, infos in jobs.items():
            times = [info.modified_ns for info in infos if info.modified_ns is not None]
            if len(times) == len(infos) and now_ns - max(times) > keep_seconds * 1e9:
                self._remove(plan, infos)
        self._store.put(self._path(_MARK), b"")

    @_noting_failure
    def is_open(self) -> bool:
        """Return True while the job is open."""
        self._store.close()  # drops cached facts about files of other machines
        return self._store.find(self._path(_MARK)) is not None

    @_noting_failure
    def put(self, number: int, data: Sequence[Buffer]) -> None:
        """Store the part of a unit, unless the job was finished."""
        path = self._path(_name(number))
        try:
            self._store.put(path, data)
        except StorageError:
            if self.is_open():
                raise
        else:
            if not self.is_open():
                self._store.delete(path)
                self._remove_directories(self.plan)

    @_noting_failure
    def get(self, number: int) -> bytes | None:
        """Return the stored part of a unit; None if there is no part."""
        path = self._path(_name(number))
        try:
            return self._read(path)
        except StorageError:
            self._store.close()  # another machine wrote the same part again, or removes it
            return self._read(path)

    def read(self, number: int, decoded: Callable[[bytes], _Part]) -> _Part | None:
        """Return the decoded part of a unit; None if there is no part, or if it was damaged and therefore removed."""
        data = self.get(number)
        with suppress(IndexFileError, ValueError, TypeError, KeyError):
            return None if data is None else decoded(data)
        self.drop(number)  # so that the unit runs again
        return None

    def read_all(self, num_units: int, decoded: Callable[[bytes], _Part]) -> list[_Part]:
        """Return the decoded parts of all units; `UsageError` names missing units. One request a unit."""
        parts = {number: self.read(number, decoded) for number in range(num_units)}
        if missing := [number for number, part in parts.items() if part is None]:
            then = f"parts are looked for in {without_secrets(self.directory)}"
            raise missing_units(missing, num_units, then=then)
        return [part for part in parts.values() if part is not None]

    @_noting_failure
    def drop(self, number: int) -> None:
        """Remove the part of a unit, so that the unit runs again."""
        self._store.delete(self._path(_name(number)))

    @_noting_failure
    def missing(self, numbers: Sequence[int]) -> list[int]:
        """Return the units without a part; one listing, or a request for each unit if that costs less."""
        self._store.close()
        if isinstance(self._store, TorchStore):  # it would list the objects of all jobs
            return [number for number in numbers if self._store.find(self._path(_name(number))) is None]
        names = self._names()
        return [number for number in numbers if _name(number) not in names]

    @_noting_failure
    def close(self) -> None:
        """End the job once its result is written, and remove its parts."""
        self._store.delete(self._path(_MARK))
        self._remove(self.plan, self._listed(self.home))

    def _read(self, path: str) -> bytes | None:
        info = self._store.find(path)
        return None if info is None else bytes(self._store.read_range(path, 0, info.num_bytes))

    def _remove(self, plan: str, infos: Sequence[ObjectInfo]) -> None:
        for info in infos:
            self._store.delete(info.path)
        self._remove_directories(plan)

    def _remove_directories(self, plan: str) -> None:
        if not scheme_of(self.directory):
            with suppress(OSError):  # another job is open, or another machine was faster
                Path(self.directory, plan).rmdir()
                Path(self.directory).rmdir()

    def _names(self) -> set[str]:
        if scheme_of(self.directory):
            return {info.path.rpartition("/")[2] for info in self._listed(self.home)}
        try:
            return {path.name for path in Path(self.home).iterdir()}
        except FileNotFoundError:
            return set()

    def _listed(self, directory: str) -> list[ObjectInfo]:
        for _ in range(_LISTINGS):
            try:
                return list(self._store.list(directory))
            except StorageError as error:
                if not is_missing(error):
                    raise
                # Files are listed one by one, and another process may rename or remove a file in between.
                if scheme_of(directory) or not Path(directory).is_dir():
                    break
        return []

    def _path(self, name: str) -> str:
        return join(self.home, name)


def _name(number: int) -> str:
    return f"{number:06d}{_PART}"
