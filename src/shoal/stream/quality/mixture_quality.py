"""Shuffle quality of a mixture, from the quality of its sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.errors import UsageError
from shoal.quality.curves import batch_sizes
from shoal.quality.expected_quality import ShuffleQuality
from shoal.reading.mixture.mix_request import MixRequest
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.quality.shuffle_quality import check_batch, quality_of, quality_with, warning_about

_MOST_SIZES = 12
_LARGEST_BATCH = 1 << 20


def mixture_quality(
    resolved: ResolvedMixture, batch: int, *, key: Any = None, rho: float | None = None
) -> ShuffleQuality:
    """Return the shuffle quality of batches within the sources of a mixture, at its first weights.

    A batch of ``b`` has ``b w`` samples of a source with weight ``w``, and variances of sources add up: so ``VR(b)`` is
    the mean of ``VR(b w)`` over the sources, by weight. Differences between sources add nothing, since every batch has
    nearly the same number of samples of each source.
    """
    if key is not None and not isinstance(key, str):
        msg = "quality(key=) of a mixture is the name of a column that every source has"
        raise UsageError(msg, hint="for labels by sample id, call quality() of each source")
    num_samples = min(resolved.num_samples, _LARGEST_BATCH)
    check_batch(batch, num_samples)
    vr, sources = dict[int, float](), list[tuple[float, ShuffleQuality]]()
    most = max(2 * batch, min(num_samples, sum(part.num_ordered for _, _, part, _ in parts_of_batch(resolved, batch))))
    for size in batch_sizes(batch, most)[:_MOST_SIZES]:
        vr[size] = 0.0
        for name, weight, part, own in parts_of_batch(resolved, size):
            try:
                quality = quality_of(part, own, key=key, rho=rho)
            except UsageError as error:
                raise UsageError(f"the source {name!r}: {error.message}", hint=error.hint) from None
            vr[size] += weight * quality.vr[own]
            if size == batch:
                sources.append((weight, quality))
    of_batch = [source for _, source in sources]
    return quality_with(
        vr,
        order=str(resolved),
        batch=batch,
        key=quality.key,
        rho=sum(weight * source.rho for weight, source in sources),
        is_measured=any(source.is_measured for source in of_batch),
        chunks=(sum(source.distinct_chunks for source in of_batch), sum(source.perfect_chunks for source in of_batch)),
        shards=(sum(source.distinct_shards for source in of_batch), sum(source.perfect_shards for source in of_batch)),
    )


def warning_about_mixture(resolved: ResolvedMixture, global_batch: int) -> str:
    """Return the first warning about a source; empty without a warning."""
    names = [name for name, _ in resolved.request.leaves()]
    for name, weight, part in zip(names, _weights(resolved.request), resolved.parts, strict=True):
        own = max(1, min(round(global_batch * weight), part.num_ordered))
        if message := warning_about(part, own, source=name):
            return f"the source {name!r}: {message}"
    return ""


def parts_of_batch(resolved: ResolvedMixture, size: int) -> Iterator[tuple[str, float, ResolvedOrder, int]]:
    """Yield the name, share, order, and samples in a batch of each dataset with a share at the first weights."""
    names = [name for name, _ in resolved.request.leaves()]
    for name, weight, part in zip(names, _weights(resolved.request), resolved.parts, strict=True):
        if weight:
            yield name, weight, part, max(1, min(round(size * weight), part.num_ordered // 2))


def _weights(request: MixRequest) -> list[float]:
    """Return the share of each dataset at the first weights; shares of nested mixtures multiply."""
    weights = request.schedule.weights_at(0)
    total = sum(weights.values())
    shares: list[float] = []
    for source in request.sources:
        share = weights[source.name] / total
        inner = source.request
        shares += [share * weight for weight in _weights(inner)] if isinstance(inner, MixRequest) else [share]
    return shares
