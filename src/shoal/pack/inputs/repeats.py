"""Oversampling and balancing: rare classes repeated, with exact counts.

A class with factor 2.5 gets every input twice, and half of its inputs, chosen at random by the seed, once more. So the
repeats of any two inputs of a class differ by at most one, and the labels alone tell the number of samples of a class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import exact_number, shown
from shoal.order.arrays.permutation import permute
from shoal.order.seeds import check_seed, key
from shoal.pack.requests import ShardRequest

LEFT_OUT = "left_out"
"""Metadata key of an index for the number of samples left out of each class, if classes were repeated."""

MARK = "~"
"""Separates the key of an input from the number of a copy."""

_COPY = re.compile(r"(.*)~([1-9][0-9]*)", re.DOTALL)
_MOST_SAMPLES = 1 << 40
_MOST_NAMED = 8  # classes that an error lists


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Counts of one class: inputs, the samples they become, and samples that were left out."""

    name: str
    num_inputs: int
    num_samples: int
    num_left_out: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """Number of ``times`` that each input is packed, shape (num_inputs,), int64, each at least 1.

    ``classes`` are ordered by first input; ``class_of``, shape (num_inputs,), has the class number of each input.

    >>> repeats = balanced(["cat", "dog", "dog", "dog"], seed=0)
    >>> repeats.times.tolist(), repeats.classes[0]
    ([3, 1, 1, 1], ClassCount(name='cat', num_inputs=1, num_samples=3, num_left_out=0))
    >>> repeats.inputs_of(np.arange(4))
    (array([0, 0, 0, 1]), array([0, 1, 2, 0]))
    """

    times: NDArray[np.int64]
    classes: tuple[ClassCount, ...]
    class_of: NDArray[np.int32]

    @property
    def num_samples(self) -> int:
        """Number of samples that will be packed."""
        return int(self.times.sum())

    def inputs_of(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return input and copy number, from 0, of each sample; copies are consecutive. O(log num_inputs) a sample."""
        ends = np.cumsum(self.times)
        inputs = np.searchsorted(ends, samples, side="right").astype(np.int64)
        return inputs, samples - (ends - self.times)[inputs]

    def counted(self, inputs: NDArray[np.int64]) -> list[int]:
        """Count some inputs by class."""
        counts: list[int] = np.bincount(self.class_of[inputs], minlength=len(self.classes)).tolist()
        return counts


def oversampled(labels: Sequence[str | None], factors: Mapping[str, Fraction | int], *, seed: int = 0) -> Repeats:
    """Repeat some classes by a factor each, and pack every other input once.

    ``labels`` has the class of each input, or None. A class of ``n`` inputs with a factor gets ``n * factor`` samples,
    halves rounded up; if the factor is not whole, the seed chooses the inputs with one more repeat. Raises `UsageError`
    if no input has a requested class, or a factor is below 1.

    >>> repeats = oversampled(["a", "b", "b", "b"], {"b": Fraction("1.5")}, seed=3)
    >>> repeats.times.tolist(), repeats.classes[1]
    ([1, 2, 1, 2], ClassCount(name='b', num_inputs=3, num_samples=5, num_left_out=0))
    """
    names, codes, counts = _classes(labels)
    for name, factor in factors.items():
        if name not in names:
            some = ", ".join(sorted(map(str, names))[:_MOST_NAMED])
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            msg = f"no input is of the class {name!r}, which is to be oversampled; there are {some or 'none'}{more}"
            raise UsageError(msg, hint="classes are compared as text, letter by letter")
        if factor < 1:
            msg = f"class {name!r} has the factor {factor}; oversampling drops nothing, so a factor is at least 1"
            raise UsageError(msg, hint="to pack fewer samples of a class, leave inputs out")
    exact = [int(counts[code]) * Fraction(factors.get(str(name), 1)) for code, name in enumerate(names)]
    promised = [int(number + Fraction(1, 2)) for number in exact]  # halves up; numbers are not negative
    return _spread(names, codes, counts, promised, check_seed(seed))


def balanced(labels: Sequence[str | None], *, seed: int = 0) -> Repeats:
    """Repeat inputs so that every class gets as many samples as the largest class has inputs.

    Raises `UsageError` if an input has no class.
    """
    names, codes, counts = _classes(labels)
    if None in names:
        number = labels.index(None)
        msg = f"{int(counts[names.index(None)])} inputs have no value to balance by; the first is input {number}"
        raise UsageError(msg, hint="leave these inputs out, or give them a value")
    return _spread(names, codes, counts, [int(counts.max(initial=0))] * len(names), check_seed(seed))


def requested_repeats(labels: Callable[[str], Sequence[str | None]], request: ShardRequest) -> Repeats | None:
    """Return the repeats of each input, None for no repeats; ``labels`` returns the classes by a key, or raises."""
    if request.oversample and request.balance is not None:
        raise UsageError("oversample= and balance= both say how often classes come", hint="give one of them")
    if request.balance is not None:
        return balanced(labels(request.balance), seed=request.seed)
    if not request.oversample:
        return None
    return oversampled(labels(request.oversample_key), request.oversample, seed=request.seed)


def counted_classes(repeats: Repeats | None, metadata: Mapping[str, Any]) -> tuple[ClassCount, ...]:
    """Return the classes with their number of skipped samples, by the metadata of the index."""
    classes = () if repeats is None else repeats.classes
    left_out = metadata.get(LEFT_OUT)
    if not left_out:
        return classes
    return tuple(replace(entry, num_left_out=number) for entry, number in zip(classes, left_out, strict=True))


def parse_factor(text: str) -> tuple[str, Fraction]:
    """Parse ``"class=times"`` from the command line; the class may itself contain "=".

    Raises `UsageError` if the text has another form, or the factor is below 1.

    >>> parse_factor("zebra=2.5")
    ('zebra', Fraction(5, 2))
    """
    name, sign, times = text.rpartition("=")
    try:
        factor = exact_number(times)
    except (ValueError, OverflowError):
        factor = Fraction(0)
    if not sign or factor < 1:
        msg = f"oversampling takes class=times, with times at least 1; got {shown(text)}"
        raise UsageError(msg, hint="for example zebra=3 or zebra=2.5")
    return name, factor


def _classes(labels: Sequence[str | None]) -> tuple[list[str | None], NDArray[np.int64], NDArray[np.int64]]:
    """Return the classes in order of first input, the class code of each input, and the input count of each class."""
    numbers: dict[str | None, int] = {}
    codes = np.fromiter((numbers.setdefault(label, len(numbers)) for label in labels), np.int64, len(labels))
    return list(numbers), codes, np.bincount(codes, minlength=len(numbers)).astype(np.int64)


def _spread(
    names: list[str | None], codes: NDArray[np.int64], counts: NDArray[np.int64], promised: list[int], seed: int
) -> Repeats:
    """Spread the ``promised`` samples of each class over its inputs as evenly as possible."""
    if sum(promised) > _MOST_SAMPLES:
        msg = f"{int(counts.sum())} inputs would become more than {_MOST_SAMPLES} samples"
        raise UsageError(msg, hint="repeat them less often")
    least, over = np.divmod(np.array(promised, dtype=np.int64), np.maximum(counts, 1))
    times = least[codes]
    by_class = np.argsort(codes, kind="stable")
    first = np.cumsum(counts) - counts
    for code in np.flatnonzero(over).tolist():
        members = by_class[first[code] : first[code] + counts[code]]
        # The key depends on the name of the class, so other classes do not change the choice.
        name = names[code]
        words = [] if name is None else [1, *name.encode("utf-8", "surrogatepass")]
        shuffled = permute(np.arange(len(members)), len(members), key(seed, 0, "pack-balance", *words))
        times[members[shuffled < over[code]]] += 1
    shown = ["(none)" if name is None else name for name in names]
    classes = tuple(map(ClassCount, shown, counts.tolist(), promised))
    return Repeats(times, classes, codes.astype(np.int32))


def copy_of(key: str, copy: int) -> str:
    """Return the key of a copy, so that no two samples of a dataset share one.

    >>> copy_of("cats/001", 0), copy_of("cats/001", 1)
    ('cats/001', 'cats/001~2')
    """
    return f"{key}{MARK}{copy + 1}" if copy else key


def refuse_copies(keys: Sequence[str], times: NDArray[np.int64]) -> None:
    """Raise `UsageError` if a copy would get the key of another input; input ``i`` is packed ``times[i]`` times."""
    copy_like = [match for key in keys if MARK in key and (match := _COPY.fullmatch(key))]
    if not copy_like:
        return
    numbers = {key: number for number, key in enumerate(keys)}
    for match in copy_like:
        number = numbers.get(match[1])
        if number is not None and 2 <= int(match[2]) <= times[number]:
            msg = f"{match[1]!r} is packed {times[number]} times, and a copy would be {match[0]!r}, "
            msg += "which there is already"
            raise UsageError(msg, hint="rename one of them")
