"""Mean tokens of the samples of a source; they convert shares of tokens to shares of samples."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.indexing.opened_dataset import Opened, OpenedMixture
from shoal.reading.mixture.mix_request import MixRequest, SourceRequest
from shoal.stream.choosing.index_columns import lengths_of_column


def mean_length(source: SourceRequest, opened: Any, length: str) -> Fraction:
    """Return the mean of a column over the samples of a source, weighted by the copies of each sample in a round.

    The mean of a nested mixture uses its first weights.
    """
    parts = opened.parts if isinstance(opened, OpenedMixture) else (opened,)
    return _mean(source, source.name, iter(parts), length)


def positions_of_tokens(
    request: MixRequest, weights: Any, begin: int, at_tokens: int, ramp_tokens: int
) -> tuple[int, int]:
    """Return the position after this many tokens, counted from ``begin``, and the ramp in positions.

    Each sample counts with the mean length of its source, and a ramp with the mean of the old and new weights.
    `UsageError` if the mixture does not know the lengths of its samples.
    """
    means = [source.mean_tokens for source in request.sources]
    if None in means:
        msg = "reweight(in_tokens=True) counts tokens, but this mixture counts samples"
        raise UsageError(msg, hint='mix(unit="tokens", length="num_tokens"), or reweight() after pack_sequences()')
    lengths = [float(mean or 0) for mean in means]
    before = float(request.counts(begin) @ lengths)
    at = request.endless.first_position(lambda counts: counts @ lengths - before >= at_tokens)
    if at is None:
        raise UsageError(f"reweight(at={at_tokens}, in_tokens=True): the mixture never reaches this number of tokens")
    if not ramp_tokens:
        return at - begin, 0
    now = request.endless.weights_at(at)
    behind = request.reweighted(max(at, 1), weights, 0).changes[-1].weights
    sides = [[side.get(source.name, 0) for source in request.sources] for side in (now, behind)]
    mean = sum(float(np.dot(side, lengths)) / sum(side) for side in sides) / 2
    return at - begin, round(ramp_tokens / mean)


def _mean(source: SourceRequest, name: str, parts: Iterator[Opened], length: str) -> Fraction:
    request = source.request
    if isinstance(request, MixRequest):
        weights = request.schedule.weights_at(0)
        means = {inner.name: _mean(inner, f"{name}/{inner.name}", parts, length) for inner in request.sources}
        return sum((weights[inner] * mean for inner, mean in means.items()), Fraction(0)) / sum(weights.values())
    values = _lengths(name, next(parts), length)
    if source.stored is not None:
        values = values[source.stored.members(np.arange(len(source.stored)))]
    copies = np.ones(len(values)) if source.sampling is None else source.sampling.counts(seed=0, epoch=0)
    total = int(values @ copies.astype(np.float64))
    if total <= 0:
        raise UsageError(f"the column {length!r} of the source {name!r} sums up to {total}: there is nothing to weigh")
    return Fraction(total, int(copies.sum()))


def _lengths(name: str, part: Opened, length: str) -> NDArray[Any]:
    try:
        return lengths_of_column(part.index, length)
    except UsageError as error:
        msg = f'unit="tokens" needs the tokens of each sample of {name!r}: {error.message}'
        hint = (
            "length= names the column of tokens; open(index_columns=['tokens']) reads the column from a field, "
            "['tokens:len'] from the length of a field, and `shoal index SHARDS --columns` writes it into the index"
        )
        raise UsageError(msg, hint=hint) from None
