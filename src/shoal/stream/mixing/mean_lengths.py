"""Mean tokens of the samples of a source, by which shares of tokens become shares of samples."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.indexing.opened_dataset import Opened, OpenedMixture
from shoal.reading.mixture.mix_request import MixRequest, SourceRequest
from shoal.stream.index_columns import key_column


def mean_length(source: SourceRequest, opened: Any, length: str) -> Fraction:
    """Return the mean of a column over the samples of a source, each as often as it comes in a round.

    Of a nested mixture it is that of its first weights.
    """
    parts = opened.parts if isinstance(opened, OpenedMixture) else (opened,)
    return _mean(source, source.name, iter(parts), length)


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
        msg = f"the column {length!r} of the source {name!r} sums up to {total}: it has no tokens to weigh"
        raise UsageError(msg)
    return Fraction(total, int(copies.sum()))


def _lengths(name: str, part: Opened, length: str) -> NDArray[Any]:
    try:
        return key_column(part.index, length)
    except UsageError as error:
        msg = f'unit="tokens" needs the tokens of each sample of {name!r}: {error.message}'
        hint = (
            "length= names the column of tokens; open(index_columns=['tokens']) reads one from a field, "
            "['tokens:len'] the length of one, and `shoal index SHARDS --columns` writes it into the index"
        )
        raise UsageError(msg, hint=hint) from None
