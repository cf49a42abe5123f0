"""`shoal.plan_index`: the index of many shards as a job, for engines that scan them on many machines."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError, StorageError, UsageError
from shoal.figures import counted, parse_bytes
from shoal.formats.shard_format import Format
from shoal.index.index_file import encode
from shoal.index.table import Index
from shoal.indexing.index_files import load_index
from shoal.indexing.jobs.index_from_parts import PARTS, IndexTask, IndexUnits, UnitScanned, index_units
from shoal.indexing.jobs.job_units import UnitParts
from shoal.indexing.manifests_beside import Described
from shoal.indexing.open_source import choose_format, described_shards, refuse_unfinished, shards_of
from shoal.indexing.split_selection import SplitLike, select_split
from shoal.storage.cache_directory import expand_home
from shoal.storage.files.atomic_writes import begin_object
from shoal.storage.retry import with_retries
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.sources.source import Source, SourceLike, schemes_of
from shoal.storage.store_of_url import in_store, open_store
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join, object_path, parent, scheme_of, without_secrets

_KEEP_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """Result of a job: the path of the index, and its contents."""

    path: str
    fingerprint: str
    num_shards: int
    num_samples: int
    num_bytes: int
    num_hashed: int = 0


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """The object for an index, and its state ``before`` the job. Can be pickled."""

    path: str
    store: Store
    before: ObjectInfo | None

    def write(self, index: Index, *, scratch: str) -> None:
        """Write the index; `UsageError` if another index was written there since the plan.

        A local file begins in the directory ``scratch`` of the same file system, in case this process is killed.
        """
        data = encode(index)
        if self._put(data, scratch):
            return
        self.store.close()  # drops cached facts about the object
        if bytes(self.store.map(self.path)) != b"".join(bytes(buffer) for buffer in data):
            msg = f"{without_secrets(self.path)}: another index has been written here while this job was under way"
            raise UsageError(msg, hint="plan the job again to replace that index, or use that index")

    def _put(self, data: list[Any], scratch: str) -> bool:
        """Write the object if it has not changed since the plan; return True if written."""
        self.store.close()
        if scheme_of(self.path):
            try:
                return self.store.put_if(self.path, data, replaces=self.before)
            except StorageError as error:
                if error.errno != errno.ENOTSUP:
                    raise
        if self.before is None:
            unfinished = begin_object(self.path, store=self.store, scratch=scratch)
            for buffer in data:
                unfinished.write([memoryview(buffer).cast("B")])
            return unfinished.finish_new()
        if self.store.find(self.path) != self.before:
            return False
        self.store.put(self.path, data)
        return True


@dataclass(frozen=True, slots=True, eq=False)
class IndexJob:
    """A planned index: run each unit, on any machines, then `finish`. Can be pickled.

    Units may run in any order, in any number of processes, twice at once, and again after a kill: each scans its shards
    and leaves a part beside the path of the index. `finish` checks and joins the parts into the index that ``shoal
    index`` makes on one machine, byte for byte. A second plan from the same shards and arguments is the same job: only
    missing units run.

    Examples
    --------
    >>> job = shoal.plan_index("data/train-*.tar", to="train.index")
    >>> results = [job.run(number) for number in range(job.num_units)]
    >>> job.finish().num_shards
    4
    """

    units: IndexUnits
    place: IndexPlace

    @property
    def num_units(self) -> int:
        """Number of units: at most 16 GiB and 256 shards each.

        Examples
        --------
        >>> shoal.plan_index("data/train-*.tar", to="train.index").num_units
        1
        """
        return self.units.num_units

    def task(self, number: int) -> IndexTask:
        """Return a unit as a callable that engines pickle; the callable holds the shards of this unit only.

        Raises
        ------
        UsageError
            The unit does not exist.

        Examples
        --------
        >>> import pickle
        >>> job = shoal.plan_index("data/train-*.tar", to="train.index")
        >>> task = pickle.loads(pickle.dumps(job.task(0)))  # on another machine
        >>> task().num_shards
        4
        """
        return self.units.task(number)

    def run(self, number: int) -> UnitScanned:
        """Run one unit here.

        Raises
        ------
        UsageError
            The unit does not exist.
        ShardError
            A shard cannot be parsed; the error names it and the byte.
        StorageError
            A shard cannot be read, or has changed since the plan; or the part cannot be written.

        Examples
        --------
        >>> shoal.plan_index("data/train-*.tar", to="train.index").run(0).num_shards
        4
        """
        return self.task(number)()

    def missing(self) -> list[int]:
        """Return the numbers of units that must still run; one listing.

        Examples
        --------
        >>> shoal.plan_index("data/train-*.tar", to="train.index").missing()
        [0]
        """
        missing = self.units.parts.missing(range(self.num_units))
        if missing and not self.units.parts.is_open():
            self._finished()
            return []
        return missing

    def finish(self) -> IndexSummary:
        """Check that all units have run and no shard has changed, and write the index. May be called again.

        O(samples) time, and twice the memory of the index; one request a unit, and one listing of the shards.

        Raises
        ------
        UsageError
            Units are missing (the error names them), or another index was written there since the plan.
        StorageError
            A shard has changed since the plan, or the index cannot be written.

        Examples
        --------
        >>> job = shoal.plan_index("data/train-*.tar", to="train.index")
        >>> results = [job.run(number) for number in range(job.num_units)]
        >>> job.finish().num_samples
        200
        """
        parts = self.units.parts
        if not parts.is_open():
            return self._summary(self._finished())
        try:
            index, num_hashed = self.units.merged()
            self._check(index)
            self.place.write(index, scratch=parts.home)
        except (StorageError, UsageError):
            if parts.is_open():
                raise
            return self._summary(self._finished())  # another machine has finished the job meanwhile
        parts.close()
        return self._summary(index, num_hashed)

    def _check(self, index: Index) -> None:
        self.units.check_unchanged()
        if not index.num_samples:
            source = self.units.request.source
            msg = f"{source.typed}: {counted(index.num_shards, 'shard')} without a single sample; found: "
            msg += ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in index.notes.items()) or "nothing"
            raise UsageError(msg, hint="nothing was written; is this the right format?")

    def _finished(self) -> Index:
        """Return the index of another machine that has finished this job."""
        self.place.store.close()
        try:
            index = load_index(self.place.path, store=self.place.store)
        except ShoalError:
            index = None
        units = self.units
        if index is not None and (index.extent_checksum is not None) >= units.request.checksum:
            indexed = zip(index.shard_names, index.shard_bytes.tolist(), index.shard_versions, strict=True)
            is_cut_alike = index.metadata.get("extent_bytes", units.request.extent_bytes) == units.request.extent_bytes
            if is_cut_alike and list(indexed) == [(task.name, task.num_bytes, task.version) for task in units.shards]:
                units.parts.close()  # removes late parts of this machine
                return index
        msg = f"{without_secrets(self.place.path)}: this job was removed from here before it was finished"
        raise UsageError(msg, hint="plan it again")

    def _summary(self, index: Index, num_hashed: int = 0) -> IndexSummary:
        path, fingerprint = without_secrets(self.place.path), index.fingerprint
        return IndexSummary(path, fingerprint, index.num_shards, index.num_samples, index.num_bytes, num_hashed)


def plan_index(
    source: SourceLike,
    *,
    to: str | os.PathLike[str] | None = None,
    split: SplitLike = None,
    format: str | Format | None = None,  # noqa: A002  # the word of the public interface
    extent_bytes: int | str | None = None,
    checksum: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> IndexJob:
    """Plan the job of ``shoal index``: its units run anywhere, and one call writes the index.

    The shards are listed with their sizes and versions, and cut into units by bytes and count; no shard is read.

    Parameters
    ----------
    source
        The shards, as for `shoal.open`; every machine must find them under this name.
    to
        File or URL of the index; by default ``shoal.index`` in the directory that ``source`` names. The units leave
        parts in a hidden directory beside it, so all machines must be able to write there.
    split, format, storage_options
        As for `shoal.open`.
    extent_bytes
        Smallest ranges that the index distinguishes; by default 64 KiB, and more for more than 655 GB.
    checksum
        If true, all bytes are read, and the index gets a CRC-32 of each extent.

    Returns
    -------
    IndexJob
        Run ``job.task(i)()`` anywhere for each ``i`` in ``job.missing()``, then ``job.finish()``.

    Raises
    ------
    SourceError
        The source matches nothing, or the format of its shards cannot be determined.
    UsageError
        ``source`` is not a directory, and ``to`` is missing.
    StorageError
        The shards cannot be listed, or nothing can be written beside the index.

    Examples
    --------
    >>> job = shoal.plan_index("data/train-*.tar", to="train.index")
    >>> sum(job.task(number)().num_shards for number in job.missing())
    4
    >>> job.finish().num_samples, shoal.open("data/train-*.tar", index="train.index").num_samples
    (200, 200)
    """
    source = in_store(source, storage_options)
    store = with_retries(open_store(source, storage_options), storage_options)
    shards, suffixes = shards_of(source, format, store)
    if shards.kind == "index":
        raise UsageError(f"{shards.typed}: this is an index already", hint="name the shards to make a new one")
    what = described_shards(select_split(shards, split, suffixes=suffixes, store=store).source, format, store)
    refuse_unfinished(what.source, store)
    chosen = choose_format(what.source, what.format or format)
    path = _path_of(what.source, to)
    same = schemes_of([path]) == schemes_of(what.source.paths)
    options = storage_options if same else None
    number_of_bytes = None if extent_bytes is None else parse_bytes(extent_bytes, "extent_bytes")
    return index_job(what, store, chosen, path=path, options=options, extent_bytes=number_of_bytes, checksum=checksum)


def index_job(
    what: Described,
    store: Store,
    format: Format,  # noqa: A002
    *,
    path: str,
    options: Mapping[str, Any] | None,
    extent_bytes: int | None,
    checksum: bool,
) -> IndexJob:
    """Plan the index of described shards, for the object ``path`` in a store with these options."""
    if scheme_of(path) in ("http", "https"):
        msg = f"{without_secrets(path)}: the index cannot be written here: nothing is written over http"
        raise UsageError(msg, hint="write the index elsewhere, and copy it beside the shards: shoal finds it there")
    # Separate stores: reading parts drops cached facts, which the units need.
    index_store = with_retries(open_store(path, options), options)
    directory = join(parent(path) if scheme_of(path) else str(Path(path).parent), PARTS)
    parts_store = with_retries(open_store(path, options), options)
    parts_in = partial(UnitParts, directory, store=parts_store)
    units = index_units(what, store, format, extent_bytes=extent_bytes, checksum=checksum, parts_in=parts_in)
    units.parts.begin(keep_seconds=_KEEP_SECONDS)
    return IndexJob(units, IndexPlace(path, index_store, index_store.find(path)))


def _path_of(source: Source, to: str | os.PathLike[str] | None) -> str:
    """Return the absolute path or URL of the index."""
    if to is None:
        if not source.complete:
            msg = f"{source.typed}: an index of these shards would hide other shards of their directory"
            raise UsageError(msg, hint="give to= the path of the index; or name the whole directory")
        return join(source.root, INDEX_NAME)
    text = os.fspath(to)
    if scheme_of(text):
        return join(object_path(text).rstrip("/"), INDEX_NAME) if text.endswith("/") else object_path(text)
    path = Path(expand_home(local_path(text))).absolute()
    return str(path / INDEX_NAME if path.is_dir() else path)
