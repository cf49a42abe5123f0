"""The finished dataset of a packing: parts of the index joined, files that formats need beside it, and its summary."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.mds.writer import INDEX_NAME, mds_index_of
from shoal.index.assembly import joined
from shoal.index.table import Index
from shoal.pack.column_values import joined_columns
from shoal.pack.destination import Output
from shoal.pack.inputs.duplicates import Duplicates
from shoal.pack.inputs.sample_fields import SampleFields
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


def finish(
    out: Output, parts: Sequence[Index], *, about: Mapping[str, Any], skipped: Sequence[tuple[str, str]] = ()
) -> Index:
    """Write the index of all finished shards; ``about`` goes into its metadata.

    ``skipped`` are inputs that were left out beforehand: names and reasons. Raises `UsageError` if no shard holds a
    sample; the shards are then removed.
    """
    all_skipped = [*map(list, skipped), *(pair for part in parts for pair in part.metadata["skipped"])]
    if not any(part.num_samples for part in parts):
        out.discard([name for part in parts for name in part.shard_names])
        why = "no sample"
        if all_skipped:
            every = "the only input was" if len(all_skipped) == 1 else f"all {counted(len(all_skipped), 'input')} were"
            why = f"{every} left out, {all_skipped[0][0]!r} since {all_skipped[0][1]}"
        msg = f"nothing was packed: {why}"
        raise UsageError(msg, hint="are these the right inputs?")
    texts = [part.metadata["texts"] for part in parts]
    frames = {part.shard_names[0]: part.metadata.get("frame") for part in parts}
    num_renamed = sum(part.metadata.get("num_renamed", 0) for part in parts)
    columns, words = joined_columns([part.columns for part in parts], texts)
    metadata = {
        **{name: parts[0].metadata[name] for name in ("cutting_rule", "extent_bytes")},
        "plan": out.plan,
        "digests": [part.metadata["digest"] for part in parts],
        FRAMES: {name: frame for name, frame in frames.items() if frame is not None},
        "skipped": all_skipped,
        **({"num_renamed": num_renamed} if num_renamed else {}),
        **({"texts": words} if words else {}),
        **about,
    }
    index = out.versioned(joined(parts, columns=columns, metadata=metadata))
    if index.format == "mds":
        out.put(INDEX_NAME, [mds_index_of(index)])
    out.finish(index)
    return index
