"""The finished dataset of a packing: parts of the index joined, files that formats need beside it, and its summary."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.rows.mds.writer import INDEX_NAME, mds_index
from shoal.index.streamed_index import write_streamed
from shoal.index.table import Index
from shoal.pack.destination import Output
from shoal.pack.inputs.duplicates import Duplicates
from shoal.pack.inputs.sample_fields import SampleFields
from shoal.pack.records.part_groups import PartGroup, group_of, joined_groups, merged_index
from shoal.pack.shard_writer import ShardSummary
from shoal.reading.checks.record_checksums import FRAMES


@dataclass(frozen=True, slots=True)
class PackSummary:
    """Result of a packing: its shards, the fingerprint of the dataset, and the inputs that were left out.

    ``digest`` covers all shards, by name and contents: equal for equal inputs and arguments. ``skipped_before`` are the
    inputs that were left out before shards were made, or by an earlier run that finished everything;
    ``num_renamed_before`` counts the samples whose key that run changed. ``fields`` tells which fields the samples of
    files have, and which samples lack the usual ones; None for samples that do not come from files. ``duplicates``
    counts the samples that were left out as equal to an earlier one; None if none were looked for.
    """

    url: str
    format: str
    shards: tuple[ShardSummary, ...]
    fingerprint: str
    skipped_before: tuple[tuple[str, str], ...] = ()
    num_renamed_before: int = 0
    fields: SampleFields | None = None
    duplicates: Duplicates | None = None

    @property
    def num_samples(self) -> int:
        """Number of samples in all shards."""
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Total bytes of all shards."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Inputs that were left out, by name and reason."""
        return (*self.skipped_before, *(pair for shard in self.shards for pair in shard.skipped))

    @property
    def num_renamed(self) -> int:
        """Samples that got another key, as tar readers would join neighbours with the same key into one sample."""
        return self.num_renamed_before + sum(shard.num_renamed for shard in self.shards)

    @property
    def digest(self) -> str:
        """Digest of all shards, by name and contents."""
        text = "".join(f"{shard.name}\0{shard.digest}\0" for shard in self.shards)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def summary_of_finished(url: str, index: Index) -> PackSummary:
    """Return the summary of a finished index, all of whose shards were made by earlier runs."""
    counts = np.diff(index.extent_first_sample[index.shard_first_extent]).tolist()
    rows = zip(index.shard_names, counts, index.shard_bytes.tolist(), index.metadata["digests"], strict=True)
    shards = tuple(ShardSummary(*row, done_before=True) for row in rows)
    skipped = tuple((str(name), str(reason)) for name, reason in index.metadata.get("skipped", ()))
    num_renamed = int(index.metadata.get("num_renamed", 0))
    fields, duplicates = SampleFields.of_index(index), Duplicates.of_index(index)
    return PackSummary(url, index.format, shards, index.fingerprint, skipped, num_renamed, fields, duplicates)


@dataclass(frozen=True, slots=True)
class Committed:
    """The index that was written, without its columns: the summaries of its shards, its fingerprint and metadata."""

    format: str
    fingerprint: str
    metadata: Mapping[str, Any]
    shards: tuple[ShardSummary, ...]


def finish(out: Output, parts: Sequence[Index], *, about: Mapping[str, Any]) -> Committed:
    """Write the index of all finished shards, from their parts in memory; `finish_groups` takes less."""
    return finish_groups(out, [group_of(merged_index(parts))] if parts else [], about=about)


def finish_groups(
    out: Output,
    groups: Sequence[PartGroup],
    *,
    about: Mapping[str, Any],
    skipped: Sequence[tuple[str, str]] = (),
) -> Committed:
    """Write the index of all finished shards, column by column; ``about`` goes into its metadata.

    ``skipped`` are inputs that were left out beforehand: names and reasons. Memory: O(shards), and a few columns of a
    group. Raises `UsageError` if no shard holds a sample; the shards are then removed.
    """
    shards = tuple(summary for group in groups for summary in summaries_of(group))
    names = [shard.name for shard in shards]
    all_skipped = [*map(list, skipped), *(list(pair) for shard in shards for pair in shard.skipped)]
    if not any(group.num_samples for group in groups):
        out.discard(names)
        why, hint = "no sample", "are these the right inputs?"
        if all_skipped:
            every = "the only input was" if len(all_skipped) == 1 else f"all {counted(len(all_skipped), 'input')} were"
            why = f"{every} left out, {all_skipped[0][0]!r} since {all_skipped[0][1]}"
            hint = "without on_error='skip' the first of them ends the run, and says what to do"
        raise UsageError(f"nothing was packed: {why}", hint=hint)
    sizes = {shard.name: shard.num_bytes for shard in shards}
    index = joined_groups(groups, names=names, versions=out.versions(sizes))
    frames = zip(names, (frame for group in groups for frame in group.metadata["frames"]), strict=True)
    num_renamed = sum(shard.num_renamed for shard in shards)
    metadata = {
        **{name: groups[0].metadata[name] for name in ("cutting_rule", "extent_bytes")},
        "plan": out.plan,
        "digests": [shard.digest for shard in shards],
        FRAMES: {name: frame for name, frame in frames if frame is not None},
        "skipped": all_skipped,
        **({"num_renamed": num_renamed} if num_renamed else {}),
        **({"texts": index.texts} if index.texts else {}),
        **about,
    }
    format_name = groups[0].format
    if format_name == "mds":
        heads = [group.shard_heads.get(number, {}) for group in groups for number in range(len(group.shard_bytes))]
        described_shards = [(shard.name, shard.num_bytes, shard.num_samples) for shard in shards]
        out.put(INDEX_NAME, mds_index(described_shards, [head.get("columns") for head in heads]))
    described = {"format": format_name, "notes": index.notes, "metadata": metadata}
    fingerprint = out.commit(partial(write_streamed, columns=index.columns, shard_names=names, about=described), sizes)
    return Committed(format_name, fingerprint, metadata, shards)


def summaries_of(group: PartGroup) -> Iterator[ShardSummary]:
    """Yield the summaries of the shards of a group."""
    lists = (group.metadata[name] for name in ("names", "counts", "digests", "skipped", "renamed"))
    for name, num_samples, digest, skipped, num_renamed, num_bytes in zip(
        *lists, group.shard_bytes.tolist(), strict=True
    ):
        pairs = tuple((str(one), str(reason)) for one, reason in skipped)
        yield ShardSummary(name, num_samples, num_bytes, digest, pairs, num_renamed)
