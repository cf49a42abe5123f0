"""Samples that each stream of Streaming contributes to an epoch.

References
----------
``Stream.validate_weights`` and ``Stream.apply_weights`` in ``streaming/base/stream.py`` of mosaicml-streaming 0.13.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.protocol import as_whole

_WEIGHTS = ("proportion", "repeat", "choose")
_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


class StreamShare(NamedTuple):
    """Shards of a stream and its weight; the name of the weight is "proportion", "repeat", "choose" or empty.

    ``first_shard`` is None if the shards follow the shards of the last stream.
    """

    shards: int
    weight: str = ""
    amount: float = 1
    first_shard: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the stream as an argument of `Streaming`."""
        first = {} if self.first_shard is None else {"first_shard": self.first_shard}
        return {"shards": self.shards, **first, **({self.weight: self.amount} if self.weight else {})}


class Amounts(NamedTuple):
    """Samples of each stream in an epoch, and the share of each stream; arrays of shape (num_streams,)."""

    choose: NDArray[np.int64]
    proportions: NDArray[np.float64]


def stream_shares(streams: Any) -> tuple[StreamShare, ...]:
    """Check a list of mappings, and return the streams.

    >>> stream_shares([{"shards": 12, "proportion": 0.25}, {"shards": 4, "proportion": 0.75}])[1].weight
    'proportion'

    Raises `UsageError` if a stream has no number of shards or several weights, or if only some streams have a
    proportion.
    """
    if not isinstance(streams, Sequence) or isinstance(streams, str) or not streams:
        msg = f"streams= takes a list with a mapping for each stream; got {streams!r:.100}"
        raise UsageError(msg, hint='streams=[{"shards": 12, "proportion": 0.25}, {"shards": 4, "proportion": 0.75}]')
    shares = tuple(_share(stream) for stream in streams)
    if len({share.weight == "proportion" for share in shares}) > 1:
        msg = "some streams have a proportion and some do not"
        raise UsageError(msg, hint="repeat, choose and no weight are counts, and cannot be mixed with proportions")
    return shares


def _share(stream: Any) -> StreamShare:
    if isinstance(stream, StreamShare):
        return stream
    weights = [name for name in _WEIGHTS if isinstance(stream, Mapping) and stream.get(name) is not None]
    if not isinstance(stream, Mapping) or len(weights) > 1 or not stream.keys() <= {"shards", "first_shard", *_WEIGHTS}:
        msg = (
            f"a stream has shards, first_shard if needed, and at most one of {', '.join(_WEIGHTS)}; got {stream!r:.100}"
        )
        raise UsageError(msg)
    shards = as_whole("shards of a stream", stream.get("shards"))
    weight = weights[0] if weights else ""
    amount = stream[weight] if weight else 1
    if shards < 1 or not isinstance(amount, (int, float)) or not amount >= 0:
        raise UsageError(f"a stream has 1 or more shards, and a weight of at least 0; got {stream!r:.100}")
    first = stream.get("first_shard")
    first = first if first is None else as_whole("first_shard", first)
    return StreamShare(shards, weight, as_whole("choose", amount) if weight == "choose" else amount, first)


def shards_of(shares: Sequence[StreamShare], num_shards: int) -> list[NDArray[np.int64]]:
    """Return the shards of each stream; every shard of the dataset must be in exactly one stream.

    Raises `UsageError` if a shard is in no stream, or in several.
    """
    of_streams, after = [], 0
    for share in shares:
        first = after if share.first_shard is None else share.first_shard
        after = first + share.shards
        of_streams.append(np.arange(first, after))
    if not np.array_equal(np.sort(np.concatenate(of_streams)), np.arange(num_shards)):
        spans = ", ".join(f"[{shards[0]}, {shards[-1] + 1})" for shards in of_streams)
        msg = f"the streams have the shards {spans}; each of the {num_shards} shards must be in one stream"
        raise UsageError(msg, hint="set shards=, and first_shard= if streams are not in the order of shards")
    return of_streams


def whole_epoch(size: Any) -> int:
    """Return an epoch size, such as "100k", as a number of samples.

    >>> whole_epoch("1.5k")
    1500
    """
    if isinstance(size, str) and size.strip()[-1:].lower() in _UNITS:
        text = size.strip().lower()
        try:
            return int(float(text[:-1]) * _UNITS[text[-1]])
        except ValueError:
            pass
    if isinstance(size, str) and size.strip().isdecimal():
        return int(size)
    return as_whole("epoch_size", size)


def amounts_of(shares: Sequence[StreamShare], samples: NDArray[np.int64], epoch_size: int | None, seed: int) -> Amounts:
    """Return the samples of each stream in an epoch; the seed distributes the rounding remainder.

    Raises `UsageError` if there is an epoch size beside counts of samples, or no stream contributes a sample.
    """
    is_relative = shares[0].weight == "proportion"
    if is_relative or (epoch_size and not any(share.weight for share in shares)):
        total = epoch_size or int(samples.sum())
        weights = [share.amount for share in shares] if is_relative else samples
        proportions = np.array(weights, dtype=np.float64)
        if not proportions.any():
            raise UsageError("every stream has a proportion of 0")
        proportions /= proportions.sum()
        choose = (total * proportions).astype(np.int64)
        lacking = int(total - choose.sum())
        choose[np.random.default_rng(seed).choice(len(shares), lacking, False)] += 1
        return Amounts(choose, proportions)
    if epoch_size:
        msg = "epoch_size= is for streams with proportions, or without weights; repeat and choose are counts"
        raise UsageError(msg, hint="leave out epoch_size=, or repeat and choose")
    counts = [
        {"choose": share.amount, "repeat": int(share.amount * count)}.get(share.weight, count)
        for share, count in zip(shares, samples.tolist(), strict=True)
    ]
    choose = np.array(counts, dtype=np.int64)
    if not choose.any():
        raise UsageError("no stream contributes a sample", hint="a larger repeat or choose")
    return Amounts(choose, choose / choose.sum())
