"""The commit of a packing: parts of the index joined into one file, files that formats need beside it, a summary."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.rows.mds.writer import INDEX_NAME, mds_index
from shoal.index.streamed_index import write_streamed
from shoal.index.table import Index
from shoal.pack.inputs.duplicates import DUPLICATES, Duplicates
from shoal.pack.inputs.sample_fields import FIELDS, SampleFields
from shoal.pack.output.destination import Output
from shoal.pack.output.part_groups import PartGroup, joined_groups
from shoal.pack.shards.shard_writer import ShardSummary
from shoal.reading.checks.record_checksums import FRAMES


@dataclass(frozen=True, slots=True)
class PackSummary:
    """Result of a packing: its shards, the fingerprint of the dataset, and the inputs that were left out.

    ``digest`` covers the names and contents of all shards: equal for equal inputs and arguments. ``skipped_before``
    lists the inputs that were left out before shards were made, or by an earlier run that finished everything;
    ``num_renamed_before`` counts the samples whose key that run changed. ``fields`` counts the fields of samples from
    files, None for other samples. ``duplicates`` counts the samples left out because an earlier sample is equal,
    None without ``dedup``.

    Examples
    --------
    >>> summary = shoal.pack.pack("pets", "packed", shard_bytes="100KiB", num_workers=1)
    >>> summary.num_samples, [shard.name for shard in summary.shards], summary.skipped
    (200, ['shard-000000.tar', 'shard-000001.tar', 'shard-000002.tar', 'shard-000003.tar'], ())
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
        """Number of samples in all shards.

        Examples
        --------
        >>> shoal.pack.pack([{"text": "a cat"}, {"text": "a dog"}], "packed", format="jsonl").num_samples
        2
        """
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Total bytes of all shards.

        Examples
        --------
        >>> shoal.pack.pack([{"text": "a cat"}, {"text": "a dog"}], "packed", format="jsonl").num_bytes
        34
        """
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Inputs that were left out, by name and reason.

        Examples
        --------
        >>> shoal.pack.pack("pets/owl", "packed", on_error="skip", num_workers=1).skipped
        ()
        """
        return (*self.skipped_before, *(pair for shard in self.shards for pair in shard.skipped))

    @property
    def num_renamed(self) -> int:
        """Number of samples that got another key: tar readers join neighbours with the same key into one sample.

        Examples
        --------
        >>> shoal.pack.pack("pets/owl", "packed", num_workers=1).num_renamed
        0
        """
        return self.num_renamed_before + sum(shard.num_renamed for shard in self.shards)

    @property
    def digest(self) -> str:
        """Digest of the names and contents of all shards.

        Examples
        --------
        >>> one = shoal.pack.pack([{"text": "a cat"}], "one", format="jsonl")
        >>> one.digest == shoal.pack.pack([{"text": "a cat"}], "two", format="jsonl").digest
        True
        """
        text = "".join(f"{shard.name}\0{shard.digest}\0" for shard in self.shards)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Committed(NamedTuple):
    """A committed dataset: its summary, and the metadata of its index."""

    summary: PackSummary
    metadata: Mapping[str, Any]

    @classmethod
    def of_index(cls, url: str, index: Index) -> Committed:
        """Describe a finished index; earlier runs made all its shards."""
        counts = np.diff(index.extent_first_sample[index.shard_first_extent]).tolist()
        rows = zip(index.shard_names, counts, index.shard_bytes.tolist(), index.metadata["digests"], strict=True)
        summary = PackSummary(
            url,
            index.format,
            tuple(ShardSummary(*row, done_before=True) for row in rows),
            index.fingerprint,
            tuple((str(name), str(reason)) for name, reason in index.metadata.get("skipped", ())),
            int(index.metadata.get("num_renamed", 0)),
            SampleFields.of_index(index),
            Duplicates.of_index(index),
        )
        return cls(summary, index.metadata)


def commit_groups(
    out: Output,
    groups: Sequence[PartGroup],
    *,
    about: Mapping[str, Any],
    skipped: Sequence[tuple[str, str]] = (),
    fields: SampleFields | None = None,
    duplicates: Duplicates | None = None,
) -> Committed:
    """Write the index of all finished shards, column by column; ``about`` goes into its metadata.

    ``skipped`` has the names and reasons of inputs that were left out beforehand. Memory: O(shards), and a few columns
    of a group. Raises `UsageError` if no shard holds a sample, and removes the shards.
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
            hint = "without on_error='skip', the first such input ends the run with a message about the remedy"
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
        **({} if fields is None else {FIELDS: fields.to_dict()}),
        **({} if duplicates is None else {DUPLICATES: duplicates.to_dict()}),
    }
    format_name = groups[0].format
    if format_name == "mds":
        heads = [group.shard_heads.get(number, {}) for group in groups for number in range(len(group.shard_bytes))]
        described_shards = [(shard.name, shard.num_bytes, shard.num_samples) for shard in shards]
        out.put(INDEX_NAME, mds_index(described_shards, [head.get("columns") for head in heads]))
    described = {"format": format_name, "notes": index.notes, "metadata": metadata}
    fingerprint = out.commit(partial(write_streamed, columns=index.columns, shard_names=names, about=described), sizes)
    summary = PackSummary(out.url, format_name, shards, fingerprint, tuple(skipped), 0, fields, duplicates)
    return Committed(summary, metadata)


def summaries_of(group: PartGroup) -> Iterator[ShardSummary]:
    """Yield the summaries of the shards of a group."""
    lists = (group.metadata[name] for name in ("names", "counts", "digests", "skipped", "renamed"))
    for name, num_samples, digest, skipped, num_renamed, num_bytes in zip(
        *lists, group.shard_bytes.tolist(), strict=True
    ):
        pairs = tuple((str(input_name), str(reason)) for input_name, reason in skipped)
        yield ShardSummary(name, num_samples, num_bytes, digest, pairs, num_renamed)
