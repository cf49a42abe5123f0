"""Fields that only some sources of a mixture have.

Many formats declare the fields of their samples (Parquet, Arrow, MDS, CSV, LitData), and shoal's own stages keep them
known: shoal then refuses sources with different fields before it reads data. Otherwise a warning names the first source
and field that is missing in a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.formats.tables.table_rows import partition_fields
from shoal.hints import did_you_mean
from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.pipeline.stages.by_source import NONE, FillMissing, NameSource
from shoal.pipeline.stages.chosen_fields import Rename, SelectColumns
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.map_and_filter import Filter
from shoal.pipeline.stages.stage import Stage, stages_of
from shoal.pipeline.stages.with_ids import WithIds
from shoal.pipeline.stored_types import types_after

_ARGUMENT = 'mix(missing="none") makes them None in batches, mix(missing={...}) gives values'
_MOST_NAMED = 8


def check_missing(missing: Any) -> None:
    """Raise `UsageError` unless `shoal.mix` takes this value as ``missing``."""
    if missing in (None, NONE) or (isinstance(missing, Mapping) and all(isinstance(name, str) for name in missing)):
        return
    msg = f'mix(missing=) is "none", or values by field; got {missing!r:.80}'
    hint = did_you_mean(missing, (NONE,)) if isinstance(missing, str) else ""
    raise UsageError(msg, hint=hint.rstrip() or 'missing={"lang": "en", "score": 0.0}')


def declared_fields(opened: Opened, stages: Sequence[Stage]) -> frozenset[str] | None:
    """Return the fields of samples after these stages, by the first shard; None if unknown. Reads no shard."""
    heads, names = opened.index.shard_heads, opened.index.shard_names
    declared = opened.format.field_names(heads[min(heads)] if heads else {})
    if declared is None or not len(names):
        return None
    fields: dict[str, Any] = dict.fromkeys((*declared, *partition_fields(names[min(heads, default=0)])))
    for stage in stages:
        if isinstance(stage, SelectColumns | Rename):
            fields = types_after(stage, fields)
        elif isinstance(stage, FillMissing):
            fields |= stage.values
        elif isinstance(stage, WithIds):
            fields |= {"__id__": None, "__epoch__": None}
        elif not isinstance(stage, Decode | Filter | NameSource):
            return None
    return frozenset(fields.keys() - {"__source__"})


def refuse_other_fields(opened: OpenedDataset, stages: tuple[Stage, ...]) -> None:
    """Raise `UsageError` if sources declare different fields and ``missing`` does not allow it."""
    if not any(stage.refuses_missing for stage in stages[:1]):
        return
    declared = ((name, declared_fields(part, stages_of(stages, number))) for number, (name, part) in
                enumerate(zip(opened.indexes, opened.parts, strict=True)))  # fmt: skip
    known = [(name, fields) for name, fields in declared if fields is not None]
    everything: frozenset[str] = frozenset().union(*(fields for _, fields in known))
    for name, fields in known:
        if lacking := sorted(everything - fields):
            owner = next(other for other, other_fields in known if lacking[0] in other_fields)
            more = f", nor {', '.join(map(repr, lacking[1:_MOST_NAMED]))}" if lacking[1:] else ""
            msg = f"the source {name!r} has no field {lacking[0]!r}, which {owner!r} has{more}: batches need all fields"
            common = sorted(everything.intersection(*(other_fields for _, other_fields in known)))
            keep = f".columns({', '.join(map(repr, common[:_MOST_NAMED]))}) keeps common fields; " if common else ""
            raise UsageError(msg, hint=f"{keep}{_ARGUMENT}")


def warner_of_missing(stages: tuple[Stage, ...]) -> Callable[[Sequence[Any]], None] | None:
    """Return a callback that warns once if a source lacks a field in a whole batch; None if ``missing`` allows it."""
    if not any(stage.refuses_missing for stage in stages[:1]):
        return None
    warned = False

    def warn(samples: Sequence[Any]) -> None:
        nonlocal warned
        if warned:
            return
        fields: dict[Any, set[str]] = {}
        for sample in samples:
            fields.setdefault(sample.get("__source__"), set()).update(sample)
        everything: set[str] = set().union(*fields.values())
        lacking = ((name, sorted(everything - own)) for name, own in fields.items() if name is not None)
        for name, names in lacking:
            if names:
                warned = True
                text = f"samples of {name!r} have no field {names[0]!r}, which another source has: it is None there"
                warnings.warn(f"{text}; {_ARGUMENT}", stacklevel=2)
                return

    return warn
