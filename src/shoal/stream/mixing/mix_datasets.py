"""`shoal.mix`: many datasets in one exact order."""

from __future__ import annotations

import itertools
import logging
import math
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from shoal.errors import ShuffleWarning, UsageError
from shoal.hints import did_you_mean
from shoal.indexing.opened_dataset import OpenedDataset
from shoal.order.mixture.epochs_in_turn import EpochChoice
from shoal.order.mixture.integer_weights import TOTAL, exact_weight
from shoal.order.mixture.source_choice import CHOICES, PerBatch, PerRank
from shoal.order.mixture.source_schedule import Change
from shoal.order.protocol import as_whole
from shoal.order.seeds import check_seed
from shoal.pipeline.missing_fields import check_missing
from shoal.reading.mixture.epochs_request import epochs_request
from shoal.reading.mixture.mix_request import (
    ENDS,
    FOREVER,
    MixRequest,
    SourceRequest,
    check_names,
    shares_of_samples,
)
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.mixing.mixed_dataset import MixedDataset
from shoal.stream.mixing.source_parts import checked_sources, follows_of, rows_of, source_request, warn_of_twins, with_sources

_log = logging.getLogger("shoal")


def mix(
    sources: Mapping[str, Dataset],
    *,
    weights: Mapping[str, Any] | None = None,
    seed: int = 0,
    choice: Any = "even",
    unit: str = "samples",
    length: str = "length",
    repeat: Mapping[str, Any] | None = None,
    choose: Mapping[str, int] | None = None,
    ends: str | None = None,
    epoch_size: int | None = None,
    max_repeats: float | Mapping[str, float] | None = None,
    missing: Mapping[str, Any] | str | None = None,
) -> MixedDataset:
    r"""Mix datasets into one dataset: every position has a source, and every source has its own order.

    The source of a position is a pure function of names, weights, seed and position: so any position is found at once,
    and a run continues exactly at any world size. A source keeps its order (`Dataset.shuffle`), freshly ordered in each
    round; `shuffle` of the mixture orders sources without an order. Samples get the field ``__source__``.

    Parameters
    ----------
    sources
        Datasets by name, each with its own stages; a source may be a mixture. The seed of a source depends on its name,
        so adding, removing or reordering other sources does not change its order.
    weights
        The ratio of samples of the sources; default the sizes of the sources. Weights are exact decimals.
    seed
        Seed of the choice of sources.
    choice
        "even" (counts off by about one every 64 positions), "random" (as if drawn for each sample), or
        `shoal.mixing.PerBatch` or `PerRank`, for batches of a single source. Or the choice of another library,
        with ``seed=`` as the only other argument: `shoal.mixing.Interleave`, `Concatenate`, `RandomMix`, `RoundRobin`.
        With these, sources start again in every epoch, and epochs may differ in length.
    unit, length
        "samples", or "tokens": weights are then shares of tokens, and ``length`` names the column of the index that
        holds the tokens of each sample.
    repeat, choose
        Instead of weights: the number of rounds, or of samples, of each source in an epoch.
    ends
        The end of an epoch: before any source repeats a sample ("first", the default), after all sources have ended a
        round ("all"), or never ("forever"). Sources continue from one epoch to the next.
    epoch_size
        Samples in an epoch, instead of ``ends``.
    max_repeats
        Maximum number of times a sample may appear in an epoch, for all sources or by name. After `reweight`, epochs
        are checked when the dataset is first used, so further changes may come first.
    missing
        Values of fields that a sample lacks, by name; or "none": missing fields are None in batches. By default,
        sources that are known to have different fields are refused at the first batch, before anything is read. If the
        fields are known only after reading (JSON Lines, tar, after `map`), a warning names the first missing field.

    Raises
    ------
    UsageError
        A source is not a dataset or is in batches, names do not match, or a source would repeat more than allowed; the
        message has the position.

    Examples
    --------
    >>> sources = {"web": shoal.open("web"), "code": shoal.open("code")}
    >>> mixed = shoal.mix(sources, weights={"web": 0.8, "code": 0.2}).shuffle(seed=1)
    >>> mixed.num_samples, mixed.counts(100)
    (114, {'web': 79, 'code': 21})
    """
    arguments = {name: value for name, value in locals().items() if name != "sources"}
    specs = checked_sources(sources)
    check_missing(missing)
    opened, stage = with_sources(specs, missing)
    warn_of_twins(opened)
    again, follows = partial(_mixed_again, specs, arguments), follows_of(specs.values())
    mixed = DatasetSpec(opened, stages=(stage,), rows=rows_of(specs.values()), made_of=again, follows=follows)
    amounts = {"weights": weights, "repeat": repeat, "choose": choose, "epoch_size": epoch_size}
    given = [name for name, value in amounts.items() if value is not None]
    if isinstance(choice, EpochChoice):
        others = {"unit": unit != "samples", "ends": ends is not None, "max_repeats": max_repeats is not None}
        if names := [*given, *(name for name, is_given in others.items() if is_given)]:
            kind = type(choice).__name__
            msg = f"mix({names[0]}=) cannot be combined with choice={kind}(...), which mixes as another library does"
            raise UsageError(msg, hint=f"set the mixture in the arguments of shoal.mixing.{kind}")
    column = length if _one_of("unit", unit, ("samples", "tokens")) == "tokens" else None
    requests = tuple(source_request(name, spec, column) for name, spec in specs.items())
    if isinstance(choice, EpochChoice):
        request: MixRequest = epochs_request(requests, choice, seed)
        return MixedDataset(replace(mixed, request=request))
    if len(given) > 1 and given != ["weights", "epoch_size"]:
        msg = f"mix() takes weights=, repeat= or choose=; got {', '.join(f'{name}=' for name in given)}"
        raise UsageError(msg, hint="repeat= and choose= set the length of an epoch")
    if column is not None and (repeat is not None or choose is not None):
        msg = f'mix(unit="tokens") is the unit of weights=; {given[0]}= counts samples'
        raise UsageError(msg, hint='leave unit="tokens" out, or give weights=')
    if ends is not None and given[-1:] not in ([], ["weights"]):
        raise UsageError(f"mix(): ends= and {given[-1]}= both say where an epoch ends", hint="give one argument")
    shares, total = _shares(requests, weights, repeat, choose)
    request = MixRequest(
        sources=requests,
        changes=(Change(0, shares_of_samples(shares, requests if weights is not None else ())),),
        choice=_choice(choice),
        seed=check_seed(seed),
        ends="first" if ends is None else _one_of("ends", ends, ENDS),
        epoch_size=total if epoch_size is None else _epoch_size(epoch_size),
        is_counted=total is not None and total <= TOTAL,
        length=column,
        max_repeats=_most(max_repeats, requests),
    )
    _log_shares(request, request.epoch_samples)  # raises an error for an impossible mixture here, not during iteration
    return MixedDataset(replace(mixed, request=request))


def _mixed_again(
    specs: Mapping[str, DatasetSpec], arguments: Mapping[str, Any], opened: OpenedDataset
) -> DatasetSpec:
    """Return the same mixture of sources that have grown."""
    parts = iter(opened.parts)
    sources = {}
    for name, spec in specs.items():
        own = tuple(itertools.islice(parts, len(spec.opened.parts)))
        is_same = all(new is old for new, old in zip(own, spec.opened.parts, strict=True))
        sources[name] = Dataset(spec if is_same else spec.moved(spec.opened.with_parts(own)))
    return mix(sources, **arguments).stream.spec


def _log_shares(request: MixRequest, epoch_samples: int) -> None:
    """Log the share of each source; warn if a source with a weight has no sample in an average epoch."""
    weights = request.changes[0].weights
    total = sum(weights.values())
    shares = {name: weight / total for name, weight in weights.items()}
    _log.info("the shares of a mixture are %s", ", ".join(f"{name} {share:.4g}" for name, share in shares.items()))
    for name, share in shares.items():
        if 0 < share * epoch_samples < 1:
            msg = f"the source {name!r} has a share of {share:.3g}, {share * epoch_samples:.3g} samples in an epoch of "
            msg += f"{epoch_samples:,}: a typo in its weight? Weights are ratios, and need not sum to 1 or 100"
            warnings.warn(msg, ShuffleWarning, stacklevel=3)


def _shares(
    requests: tuple[SourceRequest, ...], weights: Any, repeat: Any, choose: Any
) -> tuple[Mapping[str, Any], int | None]:
    """Return the weights, and the size of an epoch if ``repeat`` or ``choose`` determines it."""
    names = [request.name for request in requests]
    sizes = {request.name: request.num_samples for request in requests}
    arguments = {"weights=": weights, "repeat=": repeat, "choose=": choose}
    argument = next((name for name, value in arguments.items() if value is not None), None)
    if argument is None:
        return sizes, None
    given: Any = arguments[argument]
    if not isinstance(given, Mapping):
        msg = f"mix({argument}) takes a number for each source by name; got {given!r:.80}"
        raise UsageError(msg, hint=f"{argument}{{{names[0]!r}: {'0.5' if weights is not None else '1'}, ...}}")
    check_names(argument, given, names)
    if weights is not None:
        return weights, None
    if repeat is not None:
        counts = {name: int(exact_weight(name, repeat[name]) * sizes[name]) for name in names}
    else:
        counts = dict(choose)
    wrong = [name for name, count in counts.items()
             if isinstance(count, bool) or as_whole(f"choose[{name!r}]", count) < 0]  # fmt: skip
    if wrong:
        raise UsageError(f"{wrong[0]!r} cannot come {counts[wrong[0]]} times in an epoch")
    return counts, sum(counts.values())


def _one_of(argument: str, word: str, words: Collection[str]) -> str:
    if word not in words:
        msg = f"mix({argument}=) is one of {', '.join(map(repr, words))}; got {word!r}"
        raise UsageError(msg, hint=did_you_mean(word, words).rstrip())
    return word


def _epoch_size(epoch_size: object) -> int:
    size = as_whole("epoch_size", epoch_size)
    if not 1 <= size <= FOREVER:
        msg = f"mix(epoch_size=) is a number of samples from 1 to 2**60; got {size}"
        raise UsageError(msg, hint='ends="forever" mixes without end')
    return size


def _choice(choice: Any) -> Any:
    if isinstance(choice, tuple(CHOICES.values())):
        return choice
    if choice in ("batch", "rank"):
        kind = PerBatch if choice == "batch" else PerRank
        msg = f"mix(choice={choice!r}) needs the size of a batch"
        raise UsageError(msg, hint=f"choice=shoal.mixing.{kind.__name__}(samples=256)")
    if not isinstance(choice, str) or choice not in CHOICES:
        msg = f"mix(choice=) is one of {', '.join(map(repr, CHOICES))}, or an object of shoal.mixing; got {choice!r}"
        raise UsageError(msg, hint=did_you_mean(choice, CHOICES).rstrip())
    return CHOICES[choice]()


def _most(max_repeats: Any, requests: tuple[SourceRequest, ...]) -> dict[str, float] | None:
    if max_repeats is None:
        return None
    names = [request.name for request in requests]
    most = max_repeats if isinstance(max_repeats, Mapping) else dict.fromkeys(names, max_repeats)
    if unknown := [name for name in most if name not in names]:
        msg = f"max_repeats= names {unknown[0]!r}; the sources are {', '.join(map(repr, names))}"
        raise UsageError(msg, hint=did_you_mean(str(unknown[0]), names).rstrip())
    for name, times in most.items():
        if type(times) is bool or not isinstance(times, int | float | np.number) or not 0 < times < math.inf:
            msg = f"max_repeats= is how often samples of {name!r} may come, a number above 0; got {times!r:.80}"
            raise UsageError(msg, hint="leave out sources without a limit")
    return dict(most)
