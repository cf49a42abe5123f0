"""A packing as a job: units that any engine runs anywhere, in any order, any number of times, and one commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import StorageError, UsageError
from shoal.formats.shard_format import Sample
from shoal.index.table import Index
from shoal.indexing.jobs.job_units import check_unit
from shoal.pack.destination import Output
from shoal.pack.jobs import PackProgress, Progress, ShardJob, peak_bytes, run_jobs
from shoal.pack.packed_dataset import Committed, PackSummary, finish_groups, summary_of_finished
from shoal.pack.records.part_groups import PartGroup, merged_groups
from shoal.pack.records.refusals import failures_in, lacking
from shoal.pack.shard_plan import PackPlan
from shoal.pack.shard_writer import Named, Shard, ShardSummary, Unreadable
from shoal.storage.urls import without_secrets


@dataclass(frozen=True, slots=True, eq=False)
class Units(ABC):
    """The units of a packing, one a shard, and what becomes of their parts of the index. Can be pickled.

    ``plan`` has the inputs of each shard, and its approximate bytes; ``common`` is what all shards share.
    """

    plan: PackPlan
    names: Sequence[str]
    common: Shard

    def __len__(self) -> int:
        return len(self.names)

    @property
    def may_skip(self) -> bool:
        """True if inputs may be left out."""
        return self.common.on_error == "skip"

    def unit(self, number: int) -> ShardJob:
        """Return a unit, which can be pickled and holds no more than it needs."""
        num_inputs = int(self.plan.cuts[number + 1] - self.plan.cuts[number])
        return ShardJob(number, replace(self.common, name=self.names[number]), self.given(number), num_inputs)

    @abstractmethod
    def given(self, number: int) -> Iterable[Sample | Named | Unreadable]:
        """Return the inputs of a unit, read lazily."""

    def completed(self, first: int, parts: Sequence[Index]) -> Sequence[Index]:  # noqa: ARG002  # of some units
        """Return the parts of units from number ``first`` on with all columns that the index is to have."""
        return parts

    def commit(self, out: Output, groups: Sequence[PartGroup]) -> tuple[Committed, PackSummary]:
        """Join the merged parts of all units, and write the index."""
        made = finish_groups(out, groups, about={})
        return made, PackSummary(out.url, made.format, made.shards, made.fingerprint)


@dataclass(frozen=True, slots=True, eq=False)
class PackTask:
    """One unit of a job as a callable, for engines. Can be pickled."""

    out: Output
    unit: ShardJob

    def __call__(self) -> ShardSummary:
        """Make the shard, as `PackJob.run` does."""
        return self.unit.run(self.out, lambda _, __: None)


@dataclass(frozen=True, slots=True, eq=False)
class PackJob:
    """A packing that was planned: `run` each unit, on any machines, then `finish`.

    Engines only schedule. The names and contents of shards follow from the plan alone, so units may run in any order,
    in any number of processes, twice at once, and again after they were killed: the bytes are the same. A unit leaves
    its shard and its part of the index in the destination; there is no dataset until `finish` has written the index.
    The job can be pickled; every machine must find the inputs under the names that they had when it was planned.

    Planned once more, from the same inputs and arguments, it is the same job: `run` then makes only what is missing.

    Parameters
    ----------
    out
        Where the shards go; its ``plan`` identifies the job. What a job of another plan has committed, a late task of
        this one cannot change.
    units
        Units of the job; or its index, if an earlier run has finished it.
    """

    out: Output
    units: Units | Index

    @property
    def num_units(self) -> int:
        """Number of units: one a shard."""
        return self.units.num_shards if isinstance(self.units, Index) else len(self.units)

    def run(self, number: int) -> ShardSummary:
        """Make one shard, unless it is there, and return its digest, count and size.

        Memory is that of `pack_shard`. Beyond it, a unit makes a few small requests to an object store.

        Raises
        ------
        UsageError
            There is no such unit; there is a shard of this name with other bytes, so the inputs are not the same each
            time; or another job has taken the destination.
        StorageError
            An input cannot be read, or the shard cannot be written; then nothing of it is left behind.
        """
        if isinstance(self.units, Index):
            check_unit(number, self.num_units)
            return summary_of_finished(self.out.url, self.units).shards[number]
        return self.task(number)()

    def task(self, number: int) -> PackTask:
        """Return a unit that is still to be run as a callable that does what `run` does, for engines.

        Pickled, it has the names of its own inputs alone, where the job has those of all.

        Raises
        ------
        UsageError
            There is no such unit, or the job is finished.
        """
        check_unit(number, self.num_units)
        if isinstance(self.units, Index):
            msg = f"{without_secrets(self.out.url)}: this job is finished, and has no unit that is still to be run"
            raise UsageError(msg, hint="make tasks of the units that missing() lists")
        return PackTask(self.out, self.units.unit(number))

    def missing(self) -> list[int]:
        """Return the numbers of units that are still to be run; one listing of the destination."""
        if isinstance(self.units, Index) or self.out.committed() is not None:
            return []
        finished = self.out.journal.finished()
        return [number for number, name in enumerate(self.units.names) if name not in finished]

    def finish(self) -> PackSummary:
        """Check that all units have run, and write the index: from then on the dataset exists. May be called again.

        O(samples) time, and memory O(shards): parts of the index are merged, some hundred at a time, and the index is
        written column by column. Two requests a shard, 32 at a time; one listing.

        Raises
        ------
        UsageError
            Units are missing, which it names; a shard has more or fewer samples than were planned; another job has
            committed here; or another run of this one has left out inputs, and this one may not.
        StorageError
            The index cannot be written.
        """
        return _committed(self)[1]


JobEngine = Callable[[PackJob], PackSummary]
"""Engine of a cluster: runs the units of a job that are missing, and finishes it."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a job, with the metadata of its index.

    ``num_workers``, the processes of this machine, is 0 if there was nothing to do here.
    """

    metadata: Mapping[str, Any]
    summary: PackSummary
    num_workers: int
    peak_bytes: int


def run_job(
    job: PackJob,
    *,
    num_workers: int,
    progress: Progress | PackProgress | None = None,
    engine: JobEngine | None = None,
) -> Ran:
    """Run all units of a job in ``num_workers`` processes of this machine, or by an ``engine``, and finish it.

    Raises what `PackJob.run` and `PackJob.finish` raise, and `WorkerError` if a process ended in the middle of a unit.
    """
    units = job.units
    if isinstance(units, Index):
        return Ran(units.metadata, summary_of_finished(job.out.url, units), 0, peak_bytes())
    if engine is not None:
        missing = {units.names[number] for number in job.missing()}
        summary = engine(job)
        shards = tuple(replace(shard, done_before=shard.name not in missing) for shard in summary.shards)
        return Ran(job.out.index().metadata, replace(summary, shards=shards), 0, peak_bytes())
    num_bytes = units.plan.shard_record_bytes.tolist()
    tally = progress if isinstance(progress, PackProgress) else PackProgress(num_bytes, progress)
    workers = min(num_workers, job.num_units)
    made, peak = run_jobs(map(units.unit, range(len(units))), job.out, num_workers=workers, report=tally.report)
    metadata, summary = _committed(job)
    return Ran(metadata, replace(summary, shards=tuple(made)), workers, peak)


def _committed(job: PackJob) -> tuple[Mapping[str, Any], PackSummary]:
    """Commit the job if that is not done; return the metadata of its index."""
    units = job.units
    if isinstance(units, Index):
        return units.metadata, summary_of_finished(job.out.url, units)
    done = job.out.committed()
    if done is None:
        try:
            groups = merged_groups(job.out.journal, units.names, cuts=units.plan.cuts, completed=units.completed)
            skipped = [pair for group in groups for pairs in group.metadata["skipped"] for pair in pairs]
            if skipped and not units.may_skip:
                raise lacking(job.out.url, skipped)
            written, summary = units.commit(job.out, groups)
        except (StorageError, UsageError):
            # Another machine that has committed this job removes the parts, maybe while they are read here.
            with suppress(UsageError):
                done = job.out.committed()
            if done is None:
                raise
            job.out.journal.clear()  # of what was merged here meanwhile
        else:
            return written.metadata, summary
    if not units.may_skip and (skipped := failures_in(done.metadata["skipped"])):
        raise lacking(job.out.url, skipped)
    return done.metadata, summary_of_finished(job.out.url, done)
