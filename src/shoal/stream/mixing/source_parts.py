"""The sources of a mixture: the settings and the stages that a mixture keeps of each dataset."""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from shoal.errors import ShuffleWarning, UsageError
from shoal.indexing.opened_dataset import OpenedMixture
from shoal.pipeline.stages.by_source import BySource, FillMissing, NameSource
from shoal.pipeline.stages.stage import Stage, stages_of
from shoal.reading.mixture.mix_request import MixRequest, SourceRequest
from shoal.reading.order_request import OrderRequest
from shoal.reading.reading_options import ReadingOptions
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.iterating.rows import Rows
from shoal.stream.mixing.mean_lengths import mean_length
from shoal.stream.ranks import Ranks


def checked_sources(sources: Any) -> dict[str, DatasetSpec]:
    """Return the descriptions of datasets that can be mixed; raise `UsageError` for anything else."""
    if not isinstance(sources, Mapping) or not sources:
        msg = f"a mixture takes datasets by name; got {sources!r:.80}"
        raise UsageError(msg, hint='{"web": shoal.open(...), "code": shoal.open(...)}')
    return {_name(name): _spec(name, source) for name, source in sources.items()}


def source_request(name: str, spec: DatasetSpec, length: str | None) -> SourceRequest:
    """Return the source of a dataset; ``length`` names the column of tokens if weights are shares of tokens."""
    indexes = [part.index for part in spec.opened.parts]
    num_ids = sum(index.num_samples for index in indexes)
    num_bytes = sum(int(index.extent_decoded_bytes.sum()) for index in indexes)
    largest = max(int(index.extent_decoded_bytes.max(initial=1)) for index in indexes)
    mean_bytes = num_bytes / max(1, num_ids)
    request = cast("OrderRequest | MixRequest | None", spec.request)
    chosen = (spec.stored, spec.sampling, spec.delivered)
    source = SourceRequest(name, num_ids, mean_bytes, largest, request, *chosen)
    return source if length is None else replace(source, mean_tokens=mean_length(source, spec.opened, length))


def with_sources(
    added: Mapping[str, DatasetSpec], missing: Any = None, opened: Any = None, stage: Any = None
) -> tuple[OpenedMixture, BySource]:
    """Return the datasets of a mixture with added sources, and the stage that runs the stages of each source."""
    names, parts = (list(opened.names), list(opened.parts)) if opened is not None else ([], [])
    stages: list[tuple[Stage, ...]] = list(stage.stages) if stage is not None else []
    filling = (FillMissing(missing),) if isinstance(missing, Mapping) else ()
    first = sum(part.index.num_samples for part in parts)
    for name, spec in added.items():
        own = spec.opened
        names += [f"{name}/{inner}" for inner in own.names] if isinstance(own, OpenedMixture) else [name]
        for number, part in enumerate(own.parts):
            stages.append((*(stage.moved(first) for stage in _stages(spec, number)), *filling))
            parts.append(part)
        first += own.index.num_samples
    first_ids = itertools.accumulate((part.index.num_samples for part in parts[:-1]), initial=0)
    by_source = BySource(tuple(names), tuple(first_ids), tuple(stages), missing)
    return OpenedMixture(tuple(names), tuple(parts)), by_source


def rows_of(specs: Iterable[DatasetSpec]) -> Rows:
    """Return the rows of a mixture; if one source fills its batches, the mixture fills batches, too."""
    return next((spec.rows for spec in specs if type(spec.rows) is not Rows), Rows())


def follows_of(specs: Iterable[DatasetSpec]) -> tuple[bool, ...]:
    """Return, for each dataset of a mixture, whether its source is looked at again; empty if none is."""
    flags = [flag for spec in specs for flag in spec.follows or (False,) * len(spec.opened.parts)]
    return tuple(flags) if any(flags) else ()


def _stages(spec: DatasetSpec, number: int) -> tuple[Stage, ...]:
    """Return the stages of a dataset; stages of a nested mixture get its own ``__source__``."""
    stages = spec.seeded_stages
    if isinstance(own := spec.opened, OpenedMixture) and len(stages) > 1:
        return (*stages_of(stages[:1], number), NameSource(own.names[number]), *stages[1:])
    return stages_of(stages, number)


def _name(name: object) -> str:
    is_text = isinstance(name, str) and not any("\ud800" <= letter <= "\udfff" for letter in name)  # not in UTF-8
    if not isinstance(name, str) or not is_text or not name or "/" in name:
        msg = f"a source is named by a text without '/'; got {name!r}"
        raise UsageError(msg, hint="'/' separates the names of nested mixtures")
    return name


def _spec(name: str, source: Any) -> DatasetSpec:
    if not isinstance(source, Dataset):
        msg = f"the source {name!r} must be a dataset; got {type(source).__name__}"
        raise UsageError(msg, hint="shoal.open(...) returns a dataset")
    spec = source.stream.spec
    spec = spec if spec.coming is None else spec.in_epoch(spec.coming.border)  # a mixture begins with what is there
    of_the_whole = {
        "batch()": spec.batching is not None,
        "pack_sequences()": bool(spec.rows.verb),
        spec.rows.divider: bool(spec.rows.divider),
        "partition()": spec.ranks != Ranks(),
        "without()": bool(spec.gaps),
        "format()": spec.formatting.name is not None,
        "reading()": spec.reading != ReadingOptions(),
    }
    if wrong := [verb for verb, is_used in of_the_whole.items() if is_used]:
        msg = f"the source {name!r} has {wrong[0]}, which applies to the whole mixture"
        raise UsageError(msg, hint=f"mix({{...}}).{wrong[0][:-1]}...)")
    if isinstance(spec.opened, OpenedMixture) and spec.delivered is not None:
        msg = f"the source {name!r} is a mixture that delivers only some of its positions"
        raise UsageError(msg, hint="use take(), skip() and select() on its sources, or on the outer mixture")
    return spec


def warn_of_twins(opened: OpenedMixture) -> None:
    """Warn of the same data under two names: the same shards, or copies with equal checksums."""
    seen: dict[Any, str] = {}
    for name, part in zip(opened.names, opened.parts, strict=True):
        checksums = part.index.extent_checksum
        keys: list[Any] = [part.paths]
        if checksums is not None:
            keys.append((part.index.fingerprint, hashlib.blake2b(checksums.tobytes()).digest()))
        twins = [seen.setdefault(key, name) for key in keys]
        if twin := next((other for other in twins if other != name), None):
            text = f"the sources {twin!r} and {name!r} are the same data: samples in both sources appear more often"
            warnings.warn(text, ShuffleWarning, stacklevel=3)
