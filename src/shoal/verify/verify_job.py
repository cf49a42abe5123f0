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
from shoal.storage.store_protocol import Store
from shoal.storage.urls import join, object_path, scheme_of, without_secrets
from shoal.verify.open_to_verify import Verification, open_to_verify
from shoal.verify.shard_checks import check_shards
from shoal.verify.verify_report import Damage, VerifyReport

PARTS = ".shoal-verify"
"""Directory in which the units of a job leave their parts of the report; removed when they are joined."""

# What a killed job has found counts for a day: shards may be damaged meanwhile without a change of time or size.
_KEEP_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class UnitVerified:
    """Result of a unit: its number, and counts of what is in its shards."""

    number: int
    num_shards: int
    num_bytes: int
    num_damages: int


@dataclass(frozen=True, slots=True, eq=False)
class VerifyTask:
    """One unit: consecutive shards with their part of the index, to be read anywhere. Can be pickled."""

    number: int
    store: Store
    format: Format
    index: Index
    paths: tuple[str, ...]
    first_sample: int
    parts: UnitParts
    decode: Decode | None = None

    def __call__(self) -> UnitVerified:
        """Read the shards, leave a report on them, and return its counts."""
        check = ShardCheck(self.index, self.paths, store=self.store, format=self.format)
        opened = Opened(self.store, self.index, self.paths, self.format, None, check)
        found = check_shards(opened, decode=self.decode)
        found.damages = [
            replace(damage, samples=tuple(self.first_sample + sample for sample in damage.samples))
            for damage in found.damages
        ]
        self.parts.put(self.number, [json.dumps(asdict(found)).encode()])
        return UnitVerified(self.number, self.index.num_shards, found.num_bytes, len(found.damages))


@dataclass(frozen=True, slots=True, eq=False)
class VerifyJob:
    """A verification that was planned: run each unit, on any machines, then `finish`. Can be pickled.

    Units may run in any order, in any number of processes, twice at once, and again after they were killed. Each reads
    its shards completely and leaves its part of the report; `finish` joins them to the report of ``shoal verify`` on
    one machine.
    """

    asked: Verification
    cuts: tuple[int, ...]
    parts: UnitParts

    @property
    def num_units(self) -> int:
        """Number of units: at most 16 GiB and 256 shards each."""
        return len(self.cuts) - 1

    def task(self, number: int) -> VerifyTask:
        """Return a unit as a callable that engines pickle; it has the index of its own shards alone.

        Raises
        ------
        UsageError
            There is no such unit.
        """
        check_unit(number, self.num_units)
        opened = cast("Opened", self.asked.opened)  # without one there are no units
        first, end = self.cuts[number], self.cuts[number + 1]
        index = opened.index
        first_sample = int(index.extent_first_sample[np.searchsorted(index.extent_shard, first)])
        paths = tuple(opened.paths[first:end])
        part = _part_of(index, first, end)
        return VerifyTask(number, opened.store, opened.format, part, paths, first_sample, self.parts, self.asked.decode)

    def run(self, number: int) -> UnitVerified:
        """Run one unit here.

        Raises
        ------
        UsageError
            There is no such unit.
        StorageError
            Existing bytes could not be read, which is not known to be damage; or the part cannot be written.
        """
        return self.task(number)()

    def missing(self) -> list[int]:
        """Return the numbers of units that are still to be run; one listing."""
        return self.parts.missing(range(self.num_units))

    def finish(self) -> VerifyReport:
        """Check that all units have run, and join their reports; once, as this removes them.

        One request a unit.

        Raises
        ------
        UsageError
            Units are missing, which it names.
        """
        found = VerifyReport()
        for part in self.parts.read_all(self.num_units, _report_in):
            found.include(part)
        found.damages += self.asked.damages
        self.parts.close()
        return found


def _report_in(data: bytes) -> VerifyReport:
    said = json.loads(data)
    damages = [
        Damage(**{**damage, "samples": tuple(damage["samples"]), "keys": tuple(damage["keys"])})
        for damage in said.pop("damages")
    ]
    return VerifyReport(damages, **said)


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
    """Plan the job that ``shoal verify`` would do: its units read shards anywhere, and one call joins the report.

    Shards without an index are indexed here first; `plan_index` lets the same machines do that.

    Parameters
    ----------
    source
        The shards, as for `shoal.open`; every machine must find them under this name.
    to
        Directory or URL that all machines can write to, in which units leave their parts of the report; by default the
        directory of the shards.
    split, index, format, storage_options
        As for `shoal.open`.
    decode
        Decode each field of each sample as well, with the decoders of these names (``["audio"]``); images and what
        `decode()` knows without a name are decoded in any case, also with ``[]``. None: decode nothing.

    Returns
    -------
    VerifyJob
        Run ``job.task(i)()`` anywhere for each ``i`` in ``job.missing()``, then ``job.finish()``, whose ``damages``
        lists all damage by shard and byte.

    Raises
    ------
    ShoalError
        There is nothing to verify, or the shards cannot be listed.
    UsageError
        Nothing can be written beside the shards, and ``to`` names no other place.
    StorageError
        Nothing can be written there.

    Examples
    --------
    >>> import pickle, tempfile, shoal
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     texts = ({"text": f"document {number}"} for number in range(1000))
    ...     packed = shoal.pack.pack(texts, directory, format="jsonl", shard_bytes="1KiB")
    ...     shard = Path(directory, packed.shards[7].name)
    ...     size = shard.write_bytes(shard.read_bytes().replace(b"document", b"Document", 1))
    ...     job = shoal.plan_verify(directory)
    ...     units = [pickle.loads(pickle.dumps(job.task(i)))() for i in job.missing()]
    ...     damages = job.finish().damages
    ...     [(damage.kind, damage.shard == shard.name, len(damage.samples)) for damage in damages]
    [('checksum', True, 1)]
    """
    asked = open_to_verify(source, split=split, index=index, format=format, storage_options=storage_options)
    return verify_job(asked.decoding(decode), to=to, storage_options=storage_options)


def verify_job(
    asked: Verification, *, to: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None
) -> VerifyJob:
    """Plan the verification of a dataset that was opened; see `plan_verify`."""
    opened = asked.opened
    directory = _directory(asked, to)
    same = schemes_of([directory]) == schemes_of(asked.found.paths)
    store = with_retries(open_store(directory, storage_options if same else None), storage_options)
    cuts = [0] if opened is None else cut_units(opened.index.shard_bytes.tolist())
    parts = UnitParts(join(directory, PARTS), _plan_of(asked, cuts), store)
    parts.begin(keep_seconds=_KEEP_SECONDS)
    return VerifyJob(asked, tuple(cuts), parts)


def _plan_of(asked: Verification, cuts: Sequence[int]) -> str:
    """Return the id of a job: the index with all that shards are compared with, and the shards as they are now."""
    opened = asked.opened
    digest = hashlib.blake2b(repr(asked.decode).encode() if asked.decode else b"", digest_size=16)
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
    """Return the index of some shards, with what it takes to check them and no more."""
    bare = replace(index, columns={name: column for name, column in index.columns.items() if name == RECORD_CRCS})
    part = subset(bare, range(first, end))
    metadata = {name: value for name, value in index.metadata.items() if name == OPTIONS}
    if (frames := index.metadata.get(FRAMES)) is not None:
        metadata[FRAMES] = {name: frames[name] for name in part.shard_names if name in frames}
    return replace(part, metadata=metadata)


def _directory(asked: Verification, to: str | os.PathLike[str] | None) -> str:
    """Return the directory in which the parts are kept."""
    text = asked.found.root if to is None else os.fspath(to)
    if text.startswith(("http://", "https://")) or text.endswith("://") or text == "/":
        msg = f"{without_secrets(text)}: the parts of the report cannot be written here"
        raise UsageError(msg, hint="to= names a directory or URL that all machines can write to")
    return object_path(text).rstrip("/") if scheme_of(text) else str(Path(expand_home(local_path(text))).absolute())
