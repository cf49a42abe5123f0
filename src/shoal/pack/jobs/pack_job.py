"""A packing as a job: any engine runs its units anywhere, in any order, any number of times, and one call commits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from shoal.errors import StorageError, UsageError
from shoal.formats.shard_format import Sample
from shoal.index.table import Index
from shoal.indexing.jobs.job_units import check_unit
from shoal.pack.jobs.process_jobs import PackProgress, Progress, ShardJob, peak_bytes, run_jobs
from shoal.pack.output.commit import Committed, PackSummary, commit_groups
from shoal.pack.output.destination import Output
from shoal.pack.output.part_groups import PartGroup, merged_groups
from shoal.pack.output.refusals import failures_in, lacking
from shoal.pack.shards.shard_plan import PackPlan
from shoal.pack.shards.shard_writer import Named, Shard, ShardSummary, Unreadable
from shoal.storage.urls import without_secrets


@dataclass(frozen=True, slots=True, eq=False)
class Units(ABC):
    """Units of a packing, one a shard, and the way to join their parts of the index. Can be pickled.

    ``plan`` has the inputs of each shard, and its approximate bytes; ``common`` has the settings of all shards.
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
        return ShardJob(number, replace(self.common, name=self.names[number]), self.samples(number), num_inputs)

    @abstractmethod
    def samples(self, number: int) -> Iterable[Sample | Named | Unreadable]:
        """Return the samples of a unit, read lazily."""

    def completed(self, first: int, parts: Sequence[Index]) -> Sequence[Index]:  # noqa: ARG002  # of some units
        """Return the parts of units from number ``first`` on, with all columns of the final index."""
        return parts

    def commit(self, out: Output, groups: Sequence[PartGroup]) -> Committed:
        """Join the merged parts of all units, and write the index."""
        return commit_groups(out, groups, about={})


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
    """A planned packing: `run` each unit, on any machines, then `finish`.

    Engines only schedule. The plan alone decides names and contents of shards, so units may run in any order, in any
    number of processes, twice at once, and again after they were killed: the bytes are the same. A unit leaves its
    shard and its part of the index in the destination; there is no dataset until `finish` has written the index. The
    job can be pickled; every machine must find the inputs under their names at planning.

    The same inputs and arguments, planned again, give the same job: `run` then makes only missing shards.

    Parameters
    ----------
    out
        Destination of the shards; its ``plan`` identifies the job. A late task cannot change the commit of another
        job.
    units
        Units of the job; or its index, if an earlier run has finished it.

    Examples
    --------
    >>> job = shoal.pack.plan("pets", "packed", shard_bytes="100KiB")
    >>> [job.run(number).num_samples for number in range(job.num_units)]
    [50, 50, 50, 50]
    >>> job.finish().num_samples
    200
    """

    out: Output
    units: Units | Index

    @property
    def num_units(self) -> int:
        """Number of units: one a shard.

        Examples
        --------
        >>> shoal.pack.plan("pets", "packed", shard_bytes="100KiB").num_units
        4
        """
        return self.units.num_shards if isinstance(self.units, Index) else len(self.units)

    def run(self, number: int) -> ShardSummary:
        """Make one shard, unless it exists, and return its digest, count and size.

        Memory: as for `pack_shard`. A unit makes a few small requests to an object store.

        Raises
        ------
        UsageError
            The unit does not exist; a shard of this name has other bytes in the destination, so the inputs are not the
            same each time; or another job has taken the destination.
        StorageError
            An input cannot be read, or the shard cannot be written; nothing of the shard is left.

        Examples
        --------
        >>> job = shoal.pack.plan("pets", "packed", shard_bytes="100KiB")
        >>> summary = job.run(3)
        >>> summary.name, summary.num_samples
        ('shard-000003.tar', 50)
        """
        if isinstance(self.units, Index):
            check_unit(number, self.num_units)
            return Committed.of_index(self.out.url, self.units).summary.shards[number]
        return self.task(number)()

    def task(self, number: int) -> PackTask:
        """Return a missing unit as a callable that works as `run`, for engines.

        Pickled, a unit has the names of its own inputs; the job has the names of all inputs.

        Raises
        ------
        UsageError
            The unit does not exist, or the job is finished.

        Examples
        --------
        >>> import pickle
        >>> job = shoal.pack.plan("pets", "packed", shard_bytes="100KiB")
        >>> task = pickle.loads(pickle.dumps(job.task(3)))  # on another machine
        >>> task().num_samples
        50
        """
        check_unit(number, self.num_units)
        if isinstance(self.units, Index):
            msg = f"{without_secrets(self.out.url)}: this job is finished, and has no unit that is still to be run"
            raise UsageError(msg, hint="make tasks of the units that missing() lists")
        return PackTask(self.out, self.units.unit(number))

    def missing(self) -> list[int]:
        """Return the numbers of units that must still run; one listing of the destination.

        Examples
        --------
        >>> job = shoal.pack.plan("pets", "packed", shard_bytes="100KiB")
        >>> summary = job.run(3)
        >>> job.missing()
        [0, 1, 2]
        """
        if isinstance(self.units, Index) or self.out.committed() is not None:
            return []
        finished = self.out.journal.finished()
        return [number for number, name in enumerate(self.units.names) if name not in finished]

    def finish(self) -> PackSummary:
        """Check that all units have run, and write the index: the dataset exists from then on. May be called again.

        O(samples) time, O(shards) memory: some hundred parts of the index are merged at a time, and the index is
        written column by column. Two requests a shard, 32 at a time; one listing.

        Raises
        ------
        UsageError
            Units are missing, and the error names them; a shard has more or fewer samples than planned; another job
            has committed here; or another run of this job has left out inputs, and this run may not.
        StorageError
            The index cannot be written.

        Examples
        --------
        >>> job = shoal.pack.plan("pets", "packed", shard_bytes="100KiB")
        >>> shards = [job.run(number) for number in range(job.num_units)]
        >>> job.finish().num_samples, shoal.open("packed").num_samples
        (200, 200)
        """
        return _committed(self).summary


JobEngine = Callable[[PackJob], PackSummary]
"""Engine of a cluster: runs the missing units of a job, and finishes the job."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a job. ``num_workers``, the processes of this machine, is 0 if this machine had nothing to do."""

    committed: Committed
    num_workers: int
    peak_bytes: int


def run_job(
    job: PackJob, *, num_workers: int, progress: Progress | PackProgress | None = None, engine: JobEngine | None = None
) -> Ran:
    """Run all units of a job in ``num_workers`` processes of this machine, or by an ``engine``, and finish it.

    Raises what `PackJob.run` and `PackJob.finish` raise, and `WorkerError` if a process ended in the middle of a unit.
    """
    units = job.units
    if isinstance(units, Index):
        return Ran(Committed.of_index(job.out.url, units), 0, peak_bytes())
    if engine is not None:
        missing = {units.names[number] for number in job.missing()}
        summary = engine(job)
        shards = tuple(replace(shard, done_before=shard.name not in missing) for shard in summary.shards)
        return Ran(Committed(replace(summary, shards=shards), job.out.index().metadata), 0, peak_bytes())
    num_bytes = units.plan.shard_record_bytes.tolist()
    tally = progress if isinstance(progress, PackProgress) else PackProgress(num_bytes, progress)
    workers = min(num_workers, job.num_units)
    summaries, peak = run_jobs(map(units.unit, range(len(units))), job.out, num_workers=workers, report=tally.report)
    summary, metadata = _committed(job)
    return Ran(Committed(replace(summary, shards=tuple(summaries)), metadata), workers, peak)


def _committed(job: PackJob) -> Committed:
    """Commit the job if it is not committed yet."""
    units = job.units
    if isinstance(units, Index):
        return Committed.of_index(job.out.url, units)
    done = job.out.committed()
    if done is None:
        try:
            groups = merged_groups(job.out.journal, units.names, cuts=units.plan.cuts, completed=units.completed)
            skipped = [pair for group in groups for pairs in group.metadata["skipped"] for pair in pairs]
            if skipped and not units.may_skip:
                raise lacking(job.out.url, skipped)
            return units.commit(job.out, groups)
        except (StorageError, UsageError):
            # Another machine that has committed this job removes the parts, maybe during this read.
            with suppress(UsageError):
                done = job.out.committed()
            if done is None:
                raise
            job.out.journal.clear()  # of groups that were merged here meanwhile
    if not units.may_skip and (skipped := failures_in(done.metadata["skipped"])):
        raise lacking(job.out.url, skipped)
    return Committed.of_index(job.out.url, done)
