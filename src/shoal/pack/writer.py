"""Writer of samples from code into shards, one after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Self

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.formats.column_paths import Column, as_columns
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import EncodedRecord
from shoal.formats.writing.written_formats import encoder_named, options_of_shard
from shoal.index.cutting import EXTENT_BYTES
from shoal.index.table import Index
from shoal.pack.output.commit import Committed, PackSummary, commit_groups
from shoal.pack.output.destination import Output
from shoal.pack.output.output_names import check_prefix, names_of_shards, plan_of, shard_settings
from shoal.pack.output.part_groups import group_of, merged_index
from shoal.pack.shards.column_values import values_in
from shoal.pack.shards.shard_sizes import shard_sizing
from shoal.pack.shards.shard_writer import Shard, ShardWriter, mark_of


class Writer:
    """Writer of samples into shards with an index beside them, in a directory or an object store.

    A finished shard appears at once, and the index after all shards: until then there is no dataset. To continue a
    killed writer, create another with the same arguments and write the same samples again: samples of finished shards
    are not written again, only the last sample of each shard is compared. Or call `skip_finished` and begin with sample
    `num_finished`. A rejected sample is not written, and others can follow; any other error ends the writer, since
    its buffered samples are lost.

    Parameters
    ----------
    url
        A directory, created if needed, or a URL as the prefix of objects. It must hold no shards yet.
    format
        ``"tar"``, ``"jsonl"``, ``"mds"``, ``"parquet"``, ``"arrow"``, ``"tfrecord"``; row formats also compressed
        (``"jsonl.zst"``).
    shard_bytes
        Upper limit of a shard: a number, or a string like ``"256MiB"``. None for a recommended size, see `sizing`. For
        compressed shards the uncompressed bytes count.
    columns
        Fields, or paths into JSON fields, for the index: ``["label", "language=json.lang"]``.
    prefix
        Shards are named ``PREFIX-000000.tar`` and so on; no slash, and no leading dot.
    options
        Options of the format.

    Raises
    ------
    UsageError
        The output already holds a dataset that this writer does not continue, or an argument cannot be met.
    StorageError
        The output cannot be written.

    Examples
    --------
    >>> with shoal.pack.Writer("packed", format="jsonl", columns=["label"]) as writer:
    ...     for number in range(5):
    ...         writer.write({"text": f"document {number}", "label": number % 2})
    >>> shoal.open("packed")[3], writer.summary.num_samples
    ({'text': 'document 3', 'label': 1}, 5)
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        format: str,  # noqa: A002  # the word of the public interface
        shard_bytes: int | str | None = None,
        columns: Sequence[str | Column] = (),
        prefix: str = "shard",
        extent_bytes: int = EXTENT_BYTES,
        options: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.sizing = shard_sizing() if shard_bytes is None else None
        self.shard_bytes = self.sizing.shard_bytes if self.sizing else parse_bytes(shard_bytes or 0, "shard_bytes")
        self._encoder = encoder_named(format, **(options or {}))  # an unknown format raises before anything is created
        self._columns = as_columns(columns)
        self._prefix, self._extent_bytes = check_prefix(prefix), extent_bytes
        settings = {"writer": 1} | shard_settings(
            format, shard_bytes=self.shard_bytes, columns=self._columns, prefix=prefix, extent_bytes=extent_bytes,
            options=options or {},
        )  # fmt: skip
        self._out = Output(url, plan=plan_of(settings), storage_options=storage_options)
        self._parts: list[Index] = []
        self._shard: ShardWriter | None = None
        self.summary: PackSummary | None = None
        self._num_passed = 0
        self._done = self._out.begin(suffix=self._encoder.suffix, settings=settings)
        try:
            self._finished: list[Index] = []  # shards up to the first unfinished one
            while self._done is None and (part := self._out.journal.kept(self._name(len(self._finished)))) is not None:
                self._finished.append(part)
            if (known := self._done or next(iter(self._finished), None)) is not None:
                # The first sample of the dataset has decided the options; the next sample must not decide again.
                like = options_of_shard(format, known.shard_heads.get(0, {}))
                self._encoder = encoder_named(format, **{**like, **(options or {})})
        except BaseException:
            self._out.release()  # a caller may catch this and begin again, while the traceback still refers to us
            raise
        self._marks = self._known_marks()
        self._closed = False
        self._turn = [True]

    @property
    def num_finished(self) -> int:
        """Number of samples in shards that an earlier run finished.

        Examples
        --------
        >>> shoal.pack.Writer("packed", format="jsonl").num_finished  # of an earlier run with the same arguments
        0
        """
        if self._done is not None:
            return self._done.num_samples
        return sum(part.num_samples for part in self._finished)

    def skip_finished(self) -> int:
        """Skip the samples of finished shards, and return `num_finished`; to be called before any sample is written.

        Examples
        --------
        >>> samples = [{"text": f"document {number}"} for number in range(5)]
        >>> with shoal.pack.Writer("packed", format="jsonl") as writer:
        ...     for sample in samples[writer.skip_finished() :]:
        ...         writer.write(sample)
        >>> writer.summary.num_samples
        5
        """
        if self._num_passed:
            msg = f"{self._num_passed} samples were written already"
            raise UsageError(msg, hint="skip before the first is written")
        self._num_passed = self.num_finished
        self._parts = list(self._finished)
        return self._num_passed

    def write(self, sample: Sample) -> None:
        """Add a sample; about 5 us beyond its encoding.

        Raises
        ------
        UsageError
            The format cannot hold it, or it lacks the value of a column; or another thread is writing.
        StorageError
            A shard could not be written.

        Examples
        --------
        >>> with shoal.pack.Writer("packed", format="tar") as writer:
        ...     writer.write({"__key__": "000000", "txt": "a cat", "cls": 0})
        >>> shoal.open("packed")[0]
        {'__key__': '000000', 'txt': b'a cat', 'cls': b'0'}
        """
        try:
            turn = self._turn.pop()  # atomic among threads
        except IndexError:
            msg = "two threads are writing at the same time, but samples have one order"
            hint = "write from one thread, or hold a lock; several writers take several directories"
            raise UsageError(msg, hint=hint) from None
        try:
            self._write(sample)
        finally:
            self._turn.append(turn)

    def _write(self, sample: Sample) -> None:
        if self._closed:
            raise self._is_closed()
        _check_sample(sample)
        if self._num_passed < self.num_finished:
            self._ending_on_error(self._pass_over, sample)
            return
        if self._done is not None:
            msg = f"the dataset was finished with {self._done.num_samples} samples; no sample can be added"
            raise UsageError(msg, hint="pack into another directory")
        # A rejected sample leaves no trace. The encoder comes last: its first accepted sample decides for all others.
        if self._shard is not None:
            self._shard.check(sample)
        values = values_in(self._columns, sample) if self._columns else []
        record = self._encoder.record(sample)
        self._ending_on_error(self._add, record, values, sample)

    def close(self) -> PackSummary:
        """Finish the last shard, write the index and return the summary.

        Raises
        ------
        UsageError
            No sample was written, or fewer samples than in an earlier run; or the writer has ended with an error.

        Examples
        --------
        >>> writer = shoal.pack.Writer("packed", format="jsonl")
        >>> writer.write({"text": "a cat"})
        >>> writer.close().num_samples
        1
        """
        if self.summary is not None:
            return self.summary
        if self._closed:
            raise self._is_closed()
        if self._num_passed < self.num_finished:
            msg = f"only {self._num_passed} samples were written, but an earlier run had finished {self.num_finished}"
            raise UsageError(msg, hint="give the same samples again, or call skip_finished() first")
        try:
            if self._done is None:
                self._end_shard()
                about = {"marks": [part.metadata.get("mark") for part in self._parts]}
                groups = [group_of(merged_index(self._parts))] if self._parts else []
                self.summary = commit_groups(self._out, groups, about=about).summary
            else:
                self.summary = Committed.of_index(self._out.url, self._done).summary
        finally:
            self._end()
        return self.summary

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    def _end(self) -> None:
        """Release everything and discard the unfinished shard."""
        self._closed = True
        if self._shard is not None:
            self._shard.abandon()
            self._shard = None
        self._out.release()

    def _ending_on_error(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step whose failure ends the writer, since continuing would leave samples out."""
        try:
            step(*arguments)
        except BaseException:
            self._end()
            raise

    def _is_closed(self) -> UsageError:
        if self.summary is not None:
            return UsageError("this writer is closed", hint="write samples before close(), or inside `with`")
        msg = "this writer is closed: it ended with an error, and samples that it held are in no shard"
        return UsageError(
            msg, hint="a new writer with the same arguments, given the same samples, continues with the rest"
        )

    def _add(self, record: EncodedRecord, values: Sequence[Any], sample: Sample) -> None:
        shard = self._shard
        if shard is not None and shard.num_samples and shard.num_bytes + record.num_bytes > self.shard_bytes:
            self._end_shard()
            shard = None
        if shard is None:
            name = self._name(len(self._parts))
            settings = Shard(name, self._encoder.name, columns=self._columns, extent_bytes=self._extent_bytes)
            shard = self._shard = ShardWriter(self._encoder, self._out.begin_shard(name), settings)
        shard.values.take(values)
        shard.add(record, sample)

    def _name(self, number: int) -> str:
        return names_of_shards(self._prefix, self._encoder.suffix, [number])[0]

    def _end_shard(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            try:
                part = shard.finish(plan=self._out.plan)
            except BaseException:
                shard.abandon()
                raise
            self._out.journal.keep(part)
            self._parts.append(part)

    def _pass_over(self, sample: Sample) -> None:
        """Skip a sample of a finished shard; the last sample of a shard must match the written sample."""
        self._num_passed += 1
        if self._num_passed not in self._marks:
            return
        name, mark = self._marks[self._num_passed]
        if self._done is None:
            self._parts.append(self._finished[len(self._parts)])
        if mark is not None and mark != mark_of(self._encoder.record(sample)):
            msg = f"sample {self._num_passed - 1} differs from the sample that an earlier run wrote into {name}"
            raise UsageError(msg, hint="to continue, give the same samples in the same order; or use a new directory")

    def _known_marks(self) -> dict[int, tuple[str, int | None]]:
        """Map the number of samples up to the end of each finished shard to its name and its last sample's mark."""
        if (index := self._done) is not None:
            ends = index.extent_first_sample[index.shard_first_extent][1:].tolist()
            marks = index.metadata.get("marks") or [None] * len(ends)
            return dict(zip(ends, zip(index.shard_names, marks, strict=True), strict=True))
        ends = accumulate(part.num_samples for part in self._finished)
        named = [(part.shard_names[0], part.metadata.get("mark")) for part in self._finished]
        return dict(zip(ends, named, strict=True))


def _check_sample(sample: object) -> None:
    if not isinstance(sample, dict | Mapping):
        msg = f"a sample is a dict of its fields, but this is a {type(sample).__name__}: {sample!r:.80}"
        raise UsageError(msg, hint='give {"text": ...}, for instance')
