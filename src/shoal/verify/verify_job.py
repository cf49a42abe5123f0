"""`shoal.plan_verify`: the verification of many shards as a job, for engines that read them on many machines."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from shoal.errors import UsageError
from shoal.formats.shard_format import Format
from shoal.index.assembly import subset
from shoal.index.table import Index
from shoal.indexing.build import OPTIONS
from shoal.indexing.changed_shards import ShardCheck
from shoal.indexing.jobs.job_units import UnitParts, check_unit, cut_units
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.split_selection import SplitLike
from shoal.pipeline.stages.decode import Decode
from shoal.reading.checks.record_checksums import FRAMES, RECORD_CRCS
from shoal.storage.cache_directory import expand_home
from shoal.storage.retry import with_retries
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.sources.source import SourceLike, schemes_of
from shoal.storage.stat_many import find_all
from shoal.storage.storage_errors import is_broken, is_missing
from shoal.storage.store_of_url import open_store
from shoal.storage.urls import join, object_path, scheme_of, without_secrets
from shoal.verify.open_to_verify import Verification, open_to_verify
from shoal.verify.shard_checks import check_shards
from shoal.verify.verify_report import Damage, VerifyReport

PARTS = ".shoal-verify"
"""Directory of the units' parts of the report; removed when they are joined."""

# Reports of a killed job count for a day: shards may be damaged meanwhile without a change of time or size.
_KEEP_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class UnitVerified:
    """Result of a unit: its number, and counts of its shards, bytes and damages."""

    number: int
    num_shards: int
    num_bytes: int
    num_damages: int


@dataclass(frozen=True, slots=True, eq=False)
class VerifyTask:
    """One unit: consecutive shards with their part of the index, to be read anywhere. Can be pickled."""

    number: int
    opened: Opened
    first_sample: int
    parts: UnitParts
    decode: Decode | None = None

    def __call__(self) -> UnitVerified:
        """Check the shards, store a report, and return the counts of the report."""
        report = check_shards(self.opened, decode=self.decode)
        report.damages = [
            replace(damage, samples=tuple(self.first_sample + sample for sample in damage.samples))
            for damage in report.damages
        ]
        self.parts.put(self.number, [json.dumps(asdict(report)).encode()])
        return UnitVerified(self.number, self.opened.index.num_shards, report.num_bytes, len(report.damages))


@dataclass(frozen=True, slots=True, eq=False)
class VerifyJob:
    """A planned verification: run each unit, on any machines, then `finish`. Can be pickled.

    Units may run in any order, in any number of processes, twice at once, and again after they were killed. Each reads
    its shards completely and leaves its part of the report; `finish` joins the parts to the report of ``shoal verify``
    on one machine.

    Examples
    --------
    >>> job = shoal.plan_verify("data", to="report")
    >>> results = [job.run(number) for number in range(job.num_units)]
    >>> job.finish().damages
    []
    """

    dataset: Verification
    cuts: tuple[int, ...]
    parts: UnitParts

    @property
    def num_units(self) -> int:
        """Number of units: at most 16 GiB and 256 shards each.

        Examples
        --------
        >>> shoal.plan_verify("data", to="report").num_units
        1
        """
        return len(self.cuts) - 1

    def task(self, number: int) -> VerifyTask:
        """Return a unit as a callable that engines pickle; it has only the index of its own shards.

        Raises
        ------
        UsageError
            The unit does not exist.

        Examples
        --------
        >>> import pickle
        >>> job = shoal.plan_verify("data", to="report")
        >>> task = pickle.loads(pickle.dumps(job.task(0)))  # on another machine
        >>> task().num_damages
        0
        """
        check_unit(number, self.num_units)
        opened = cast("Opened", self.dataset.opened)  # without one there are no units
        first, end = self.cuts[number], self.cuts[number + 1]
        index, paths = _part_of(opened.index, first, end), tuple(opened.paths[first:end])
        check = ShardCheck(index, paths, store=opened.store, format=opened.format)
        part = Opened(opened.store, index, paths, opened.format, None, check)
        first_sample = int(opened.index.extent_first_sample[opened.index.shard_first_extent[first]])
        return VerifyTask(number, part, first_sample, self.parts, self.dataset.decode)

    def run(self, number: int) -> UnitVerified:
        """Run one unit here.

        Raises
        ------
        UsageError
            The unit does not exist.
        StorageError
            Existing bytes could not be read, for a reason that may not be damage; or the part cannot be written.

        Examples
        --------
        >>> result = shoal.plan_verify("data", to="report").run(0)
        >>> result.num_shards, result.num_bytes, result.num_damages
        (4, 409600, 0)
        """
        return self.task(number)()

    def missing(self) -> list[int]:
        """Return the numbers of units that must still run; one listing.

        Examples
        --------
        >>> shoal.plan_verify("data", to="report").missing()
        [0]
        """
        return self.parts.missing(range(self.num_units))

    def finish(self) -> VerifyReport:
        """Check that all units have run, join their reports and remove them; works once. One request a unit.

        Raises
        ------
        UsageError
            Units are missing; the error names them.

        Examples
        --------
        >>> job = shoal.plan_verify("data", to="report")
        >>> results = [job.run(number) for number in range(job.num_units)]
        >>> len(job.finish().damages)
        0
        """
        report = VerifyReport()
        for part in self.parts.read_all(self.num_units, _report_in):
            report.include(part)
        report.damages += self.dataset.damages
        self.parts.close()
        return report


def _report_in(data: bytes) -> VerifyReport:
    report = json.loads(data)
    damages = [
        Damage(**{**damage, "samples": tuple(damage["samples"]), "keys": tuple(damage["keys"])})
        for damage in report.pop("damages")
    ]
    return VerifyReport(damages, **report)


def plan_verify(
    source: SourceLike,
    *,
    to: str | os.PathLike[str] | None = None,
    split: SplitLike = None,
    index: str | os.PathLike[str] | None = None,
    format: str | Format | None = None,  # noqa: A002  # the word of the public interface
    storage_options: Mapping[str, Any] | None = None,
    decode: Sequence[str] | None = None,
) -> VerifyJob:
    """Plan the verification of ``shoal verify`` as a job: units read shards anywhere, and one call joins the report.

    Shards without an index are indexed here first; `plan_index` lets the same machines do that.

    Parameters
    ----------
    source
        The shards, as for `shoal.open`; every machine must find them under this name.
    to
        Directory or URL for the units' parts of the report, writable by all machines; by default the directory of the
        shards.
    split, index, format, storage_options
        As for `shoal.open`.
    decode
        Names of decoders (``["audio"]``) to decode each field of each sample as well; also with ``[]``, images and
        default types of `decode()` are decoded. None: decode nothing.

    Returns
    -------
    VerifyJob
        Run ``job.task(i)()`` anywhere for each ``i`` in ``job.missing()``, then ``job.finish()``: its ``damages`` are
        ordered by shard and byte.

    Raises
    ------
    ShoalError
        There is nothing to verify, or the shards cannot be listed.
    UsageError
        Nothing can be written beside the shards, and ``to`` is None.
    StorageError
        The directory cannot be written.

    Examples
    --------
    >>> job = shoal.plan_verify("data", to="report")
    >>> sum(job.task(number)().num_shards for number in job.missing())
    4
    >>> job.finish().damages
    []
    """
    dataset = open_to_verify(source, split=split, index=index, format=format, storage_options=storage_options)
    return verify_job(dataset.decoding(decode), to=to, storage_options=storage_options)


def verify_job(
    dataset: Verification, *, to: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None
) -> VerifyJob:
    """Plan the verification of an open dataset; see `plan_verify`."""
    opened = dataset.opened
    text = dataset.source.root if to is None else os.fspath(to)
    if text.startswith(("http://", "https://")) or text.endswith("://") or text == "/":
        msg = f"{without_secrets(text)}: the parts of the report cannot be written here"
        raise UsageError(msg, hint="to= names a directory or URL that all machines can write to")
    is_url = scheme_of(text)
    directory = object_path(text).rstrip("/") if is_url else str(Path(expand_home(local_path(text))).absolute())
    same = schemes_of([directory]) == schemes_of(dataset.source.paths)
    store = with_retries(open_store(directory, storage_options if same else None), storage_options)
    cuts = [0] if opened is None else cut_units(opened.index.shard_bytes.tolist())
    parts = UnitParts(join(directory, PARTS), _plan_of(dataset, cuts), store)
    parts.begin(keep_seconds=_KEEP_SECONDS)
    return VerifyJob(dataset, tuple(cuts), parts)


def _plan_of(dataset: Verification, cuts: Sequence[int]) -> str:
    """Return the id of a job: a digest of all compared fields of the index, and of the current shards."""
    opened = dataset.opened
    digest = hashlib.blake2b(repr(dataset.decode).encode() if dataset.decode else b"", digest_size=16)
    if opened is not None:
        index = opened.index
        infos = find_all(opened.paths, opened.store, but=lambda error: is_missing(error) or is_broken(error))
        shards = [None if info is None else (info.num_bytes, info.version) for info in infos]
        words = [index.fingerprint, list(index.shard_names), list(index.shard_versions), shards, cuts]
        digest.update(json.dumps([*words, index.metadata.get(FRAMES)]).encode())
        for column in (index.extent_layout_crc, index.extent_checksum, index.columns.get(RECORD_CRCS)):
            digest.update(b"" if column is None else np.ascontiguousarray(column).data)
    return digest.hexdigest()


def _part_of(index: Index, first: int, end: int) -> Index:
    """Return the index of some shards, with only the columns and metadata for their check."""
    bare = replace(index, columns={name: column for name, column in index.columns.items() if name == RECORD_CRCS})
    part = subset(bare, range(first, end))
    metadata = {name: value for name, value in index.metadata.items() if name == OPTIONS}
    if (frames := index.metadata.get(FRAMES)) is not None:
        metadata[FRAMES] = {name: frames[name] for name in part.shard_names if name in frames}
    return replace(part, metadata=metadata)
