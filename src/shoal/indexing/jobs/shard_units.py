"""Units of a job on shards: consecutive shards, cut by bytes and count alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from shoal.errors import UsageError
from shoal.figures import counted

_MOST_UNITS = 512  # more parts cost more requests than they save time, up to the limits below
_LEAST_BYTES, _MOST_BYTES = 256 << 20, 16 << 30
_LEAST_SHARDS, _MOST_SHARDS = 8, 256
_MOST_NAMED = 10


def cut_units(num_bytes: Sequence[int]) -> list[int]:
    """Return where shards of so many bytes are cut into units: the first shard of each, then the number of shards.

    About 512 units, or as many as it takes for at most 16 GiB and 256 shards each; fewer if they would have less than
    256 MiB or 8 shards. A function of the sizes alone, so that all machines cut alike.

    >>> cut_units([100 << 20] * 7)
    [0, 2, 4, 6, 7]
    """
    limit_bytes = min(max(sum(num_bytes) // _MOST_UNITS, _LEAST_BYTES), _MOST_BYTES)
    limit_shards = min(max(len(num_bytes) // _MOST_UNITS, _LEAST_SHARDS), _MOST_SHARDS)
    cuts, unit_bytes = [0], 0
    for shard, size in enumerate(num_bytes):
        unit_bytes += size
        if shard > cuts[-1] and (unit_bytes > limit_bytes or shard - cuts[-1] == limit_shards):
            cuts.append(shard)
            unit_bytes = size
    return [*cuts, len(num_bytes)]


def spans(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, with runs as spans.

    >>> spans([1, 2, 3, 7])
    '1-3, 7'
    """
    runs = [[number for _, number in group] for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join([*texts[:_MOST_NAMED], *(["..."] if len(texts) > _MOST_NAMED else [])])


def check_unit(number: int, num_units: int) -> None:
    """Raise `UsageError` if a job has no such unit."""
    if not 0 <= number < num_units:
        raise UsageError(f"there is no unit {number}: this job has {num_units}, numbered from 0")


def missing_units(missing: Sequence[int], num_units: int, *, then: str) -> UsageError:
    """Return the error that names missing units; ``then`` goes on after what to do."""
    msg = f"{len(missing)} of {counted(num_units, 'unit')} are missing: {spans(missing)}"
    return UsageError(msg, hint=f"run them, then finish again; {then}")
