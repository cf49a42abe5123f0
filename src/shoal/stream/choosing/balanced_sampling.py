"""Weighted and class-balanced samples: the rule of sampling for the arguments of `Dataset.sample`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_flag
from shoal.errors import UsageError
from shoal.index.table import Index
from shoal.order.arrays.index_ranges import Runs
from shoal.order.sampling.systematic_draws import holding
from shoal.order.sampling.weights_and_classes import ByClass, ByWeight, Sampling, integer_weights
from shoal.stream.choosing.index_columns import key_column
from shoal.stream.dataset_spec import GROUPED, DatasetSpec
from shoal.stream.verbs.dataset_requests import count_of

_MOST_COUNTED = 1 << 24  # up to this range, integer labels are counted in a table instead of sorted


def sampled(spec: DatasetSpec, **arguments: Any) -> DatasetSpec:
    """Add a sampling rule, the number of copies of each sample in an epoch; allowed once."""
    spec.refuse("sample()", GROUPED)
    spec.opened.one("sample()")
    if spec.sampling is not None:
        msg = "sample() was called before; a second call would override the first"
        raise UsageError(msg, hint="call sample() once, with weights that combine both rules")
    if spec.request is not None or spec.has_filters or spec.gaps:
        before = "shuffle()" if spec.request is not None else "filter()" if spec.has_filters else "without()"
        msg = f"sample() decides which stored samples take part, but was called after {before}"
        raise UsageError(msg, hint=f"put sample() before {before}")
    return replace(spec, sampling=sampling_of(spec.opened.one("sample()").index, spec.stored, **arguments))


def sampling_of(
    index: Index,
    stored: Runs | None,
    *,
    weights: Any,
    by: Any,
    balanced: bool,
    limit: Any,
    num_samples: Any,
    replacement: bool,
) -> Sampling:
    """Return the sampling rule for the arguments of `Dataset.sample`, over the selected stored samples.

    `UsageError` if arguments contradict each other, or if an epoch without repeats needs more samples than there are.
    """
    _check_arguments(weights=weights, by=by, balanced=balanced, limit=limit, num_samples=num_samples)
    replacement = as_flag("sample(replacement=)", replacement)
    total = None if num_samples is None else count_of(num_samples, "sample(num_samples=)")
    num_stored = index.num_samples if stored is None else len(stored)
    if by is not None:
        classes, sizes = _classes(_values(index, stored, by, "by"))
        if limit is not None:
            return ByClass.limited(classes, sizes, count_of(limit, "sample(limit=)"))
        return _balanced(classes, sizes, total, replacement=replacement)
    if weights is not None:
        if total is None and not replacement:
            msg = "sample(replacement=False) needs num_samples: without it an epoch has every sample once"
            raise UsageError(msg, hint=f"num_samples= below {num_stored}")
        rule = ByWeight(
            integer_weights(_values(index, stored, weights, "weights")), num_stored if total is None else total
        )
        return rule if replacement else rule.without_repeats()
    sizes = np.array([num_stored], dtype=np.int64)
    return _balanced(np.zeros(num_stored, dtype=np.uint8), sizes, total, replacement=replacement)


def _check_arguments(*, weights: Any, by: Any, balanced: Any, limit: Any, num_samples: Any) -> None:
    hint = "weights=..., or by=... with balanced=True or limit=..., or num_samples=... alone"
    if weights is not None and by is not None:
        msg = "sample() takes weights, or by= classes; got both"
        raise UsageError(msg, hint="weights by class size: 1 / np.bincount(labels)[labels]")
    shares = "for given class shares, pass weights: np.array([share / size of each class])[labels]"
    as_flag("sample(balanced=)", balanced, hint=shares)
    if by is None and (balanced or limit is not None):
        msg = f"sample({'balanced=True' if balanced else 'limit='}) needs classes, but by= names none"
        raise UsageError(msg, hint='by="label", or an array with the class of each sample')
    if by is not None and balanced == (limit is not None):
        msg = "sample(by=) takes balanced=True or limit=" + ("; got both" if balanced else "; got neither")
        raise UsageError(msg, hint="balanced=True for equally many of each class, limit=n for at most n of each")
    if limit is not None and num_samples is not None:
        msg = "sample(limit=) decides how many samples an epoch has, but num_samples= asks for another number"
        raise UsageError(msg, hint="leave out one of them")
    if weights is None and by is None and num_samples is None:
        raise UsageError("sample() got nothing to sample by", hint=hint)


def _balanced(classes: NDArray[Any], sizes: NDArray[np.int64], total: int | None, *, replacement: bool) -> ByClass:
    """Return the rule for equally many samples of each class; ``total`` defaults to all, or to all without repeats."""
    most = int(sizes.min()) * len(sizes)
    if total is None:
        total = int(sizes.sum()) if replacement else most
    if not replacement and total > most:
        least = f"{len(sizes)} classes with at least {int(sizes.min())}" if len(sizes) > 1 else f"one class of {most}"
        msg = f"an epoch of {total} samples, equally many of each class, must repeat some: the dataset has {least}"
        raise UsageError(msg, hint=f"num_samples={most} at most, or replacement=True")
    return ByClass(classes, sizes, total)


def _values(index: Index, stored: Runs | None, given: Any, argument: str) -> NDArray[Any]:
    """Return the values of the selected stored samples, from a column or from an array by sample id."""
    if isinstance(given, Mapping):
        msg = f"{argument} must have a value for each sample; got a mapping: {given!r:.80}"
        raise UsageError(msg, hint="np.array([weight of each class])[ds.index_column(name)], or by=, balanced=True")
    array = key_column(index, given) if isinstance(given, str) else np.asarray(given)
    if array.shape != (index.num_samples,):
        msg = f"{argument} must have a value for each of {index.num_samples} samples by id; got shape {array.shape}"
        raise UsageError(msg, hint="a column of the index, or one value for every stored sample, selected or not")
    return array if stored is None else array[stored.members(np.arange(len(stored)))]


def _classes(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the class number of each sample, and the size of each class; classes are in ascending order of labels."""
    least, most = (int(labels.min()), int(labels.max())) if labels.dtype.kind in "iu" else (0, _MOST_COUNTED)
    if most - least < _MOST_COUNTED and labels.dtype.kind in "iu":
        table = np.zeros(most - least + 1, dtype=np.int64)
        for first in range(0, len(labels), 1 << 20):
            table += np.bincount(labels[first : first + (1 << 20)].astype(np.int64) - least, minlength=len(table))
        present = table > 0
        numbers = (np.cumsum(present) - 1).astype(holding(int(present.sum())))
        classes = np.empty(len(labels), dtype=numbers.dtype)
        for first in range(0, len(labels), 1 << 20):
            classes[first : first + (1 << 20)] = numbers[labels[first : first + (1 << 20)].astype(np.int64) - least]
        return classes, table[present]
    words, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return numbers.reshape(-1).astype(holding(len(words))), sizes.astype(np.int64)
