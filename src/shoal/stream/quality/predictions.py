"""The predicted quality of a dataset, and its warning, by the kind of its epochs."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from shoal.errors import UsageError
from shoal.quality.expected_quality import ShuffleQuality
from shoal.reading.growing.resolved_growing import ResolvedGrowing
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stream.quality.growing_mixing import quality_of_growing
from shoal.stream.quality.mixture_quality import mixture_quality, warning_about_mixture
from shoal.stream.quality.shuffle_quality import quality_of, warning_about


@singledispatch
def predicted(resolved: Resolved, batch: int, *, key: Any = None, rho: float | None = None) -> ShuffleQuality:
    """Return the shuffle quality of batches; see `shoal.Dataset.quality`."""
    hint = "register a function for this kind: shoal.stream.quality.predictions.predicted.register"
    call = f"quality({batch}, key={key!r:.80}, rho={rho})"
    raise UsageError(f"{call}: there is no prediction for {type(resolved).__name__}", hint=hint)


predicted.register(ResolvedOrder, quality_of)
predicted.register(ResolvedMixture, mixture_quality)
predicted.register(ResolvedGrowing, quality_of_growing)


@predicted.register
def _(resolved: ResolvedSequences, batch: int, *, key: Any = None, rho: float | None = None) -> ShuffleQuality:
    return predicted(resolved.documents, resolved.documents_in(batch), key=key, rho=rho)


@singledispatch
def warning_of(resolved: Resolved, global_batch: int) -> str:  # noqa: ARG001
    """Return the warning for this order and batch size, or the first warning about a source; else empty."""
    return ""


warning_of.register(ResolvedOrder, warning_about)
warning_of.register(ResolvedMixture, warning_about_mixture)


@warning_of.register
def _(resolved: ResolvedSequences, global_batch: int) -> str:
    return warning_of(resolved.documents, resolved.documents_in(global_batch))
