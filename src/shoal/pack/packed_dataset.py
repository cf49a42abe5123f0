"""Last step of a packing: the parts of the index joined, and files that formats need beside their shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.mds.writer import INDEX_NAME, mds_index_of
from shoal.index.assembly import joined
from shoal.index.table import Index
from shoal.pack.column_values import joined_columns
from shoal.pack.destination import Output
from shoal.reading.checks.record_checksums import FRAMES


def finish(
    out: Output, parts: Sequence[Index], *, about: Mapping[str, Any], skipped: Sequence[tuple[str, str]] = ()
) -> Index:
    """Write the index of all finished shards; ``about`` goes into its metadata.

    ``skipped`` are inputs that were left out beforehand: names and reasons.

    Raises
    ------
    UsageError
        No shard holds a sample; the shards are then removed.
    """
    of_all = [*map(list, skipped), *(pair for part in parts for pair in part.metadata["skipped"])]
    if not any(part.num_samples for part in parts):
        out.discard([name for part in parts for name in part.shard_names])
        why = "no sample"
        if of_all:
            every = "the only input was" if len(of_all) == 1 else f"all {counted(len(of_all), 'input')} were"
            why = f"{every} left out, {of_all[0][0]!r} since {of_all[0][1]}"
        msg = f"nothing was packed: {why}"
        raise UsageError(msg, hint="are these the right inputs?")
    texts = [part.metadata["texts"] for part in parts]
    num_renamed = sum(part.metadata.get("num_renamed", 0) for part in parts)
    columns, words = joined_columns([part.columns for part in parts], texts)
    metadata = {
        **{name: parts[0].metadata[name] for name in ("cutting_rule", "extent_bytes")},
        "plan": out.plan,
        "digests": [part.metadata["digest"] for part in parts],
        FRAMES: {
            part.shard_names[0]: part.metadata["frame"] for part in parts if part.metadata.get("frame") is not None
        },
        "skipped": of_all,
        **({"num_renamed": num_renamed} if num_renamed else {}),
        **({"texts": words} if words else {}),
        **about,
    }
    index = out.versioned(joined(parts, columns=columns, metadata=metadata))
    if index.format == "mds":
        out.put(INDEX_NAME, [mds_index_of(index)])
    out.finish(index)
    return index
