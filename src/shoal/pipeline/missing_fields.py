"""Fields that only some sources of a mixture have.

Many formats declare the fields of their samples (Parquet, Arrow, MDS, CSV, LitData), and stages other than functions
keep them known: then sources with other fields are refused before anything is read. Elsewhere samples show it, and a
warning names the first source and field.
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

_ARGUMENT = 'mix(missing="none") makes them None in batches, mix(missing={...}) gives values'
_MOST_NAMED = 8


def check_missing(missing: Any) -> None:
    """Raise `UsageError` unless this is what `shoal.mix` takes as ``missing``."""
    if missing is None or missing == NONE or (isinstance(missing, Mapping) and all(map(_is_text, missing))):
        return
    msg = f'mix(missing=) is "none", or values by field; got {missing!r:.80}'
    hint = did_you_mean(missing, (NONE,)) if isinstance(missing, str) else ""
    raise UsageError(msg, hint=hint.rstrip() or 'missing={"lang": "en", "score": 0.0}')


def declared_fields(opened: Opened, stages: Sequence[Stage]) -> frozenset[str] | None:
    """Return the fields of samples after these stages; None if only the samples tell. Reads no shard.

    The first shard stands for all.
    """
    heads, names = opened.index.shard_heads, opened.index.shard_names
    declared = opened.format.field_names(heads[min(heads)] if heads else {})
    if declared is None or not len(names):
        return None
    fields = frozenset((*declared, *partition_fields(names[min(heads, default=0)])))
    for stage in stages:
        if isinstance(stage, SelectColumns):
            fields = frozenset(stage.names)
        elif isinstance(stage, Rename):
            used = {next((old for old in olds.split(";") if old in fields), "") for olds in stage.names.values()}
            fields = fields - used | stage.names.keys()
        elif isinstance(stage, FillMissing):
            fields |= stage.values.keys()
        elif isinstance(stage, WithIds):
            fields |= {"__id__", "__epoch__"}
        elif not isinstance(stage, Decode | Filter | NameSource):
            return None
    return fields - {"__source__"}


def refuse_other_fields(opened: OpenedDataset, stages: tuple[Stage, ...]) -> None:
    """Raise `UsageError` if sources are known to have other fields, and nothing was said about that."""
    if not any(stage.refuses_missing for stage in stages[:1]):
        return
    declared = ((name, declared_fields(part, stages_of(stages, number))) for number, (name, part) in
                enumerate(zip(opened.indexes, opened.parts, strict=True)))  # fmt: skip
    known = [(name, fields) for name, fields in declared if fields is not None]
    everything: frozenset[str] = frozenset().union(*(fields for _, fields in known))
    for name, fields in known:
        if lacking := sorted(everything - fields):
            owner = next(other for other, theirs in known if lacking[0] in theirs)
            more = f", nor {', '.join(map(repr, lacking[1:_MOST_NAMED]))}" if lacking[1:] else ""
            msg = f"the source {name!r} has no field {lacking[0]!r}, which {owner!r} has{more}: batches need the same"
            common = sorted(everything.intersection(*(theirs for _, theirs in known)))
            keep = f".columns({', '.join(map(repr, common[:_MOST_NAMED]))}) keeps what all have; " if common else ""
            raise UsageError(msg, hint=f"{keep}{_ARGUMENT}")


def warner_of_missing(stages: tuple[Stage, ...]) -> Callable[[Sequence[Any]], None] | None:
    """Return what warns, once, of a source of which no sample in a batch has a field that others have; None if unasked.

    Within a source, fields may be optional.
    """
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
        if found := next(((name, names) for name, names in lacking if names), None):
            warned = True
            text = f"samples of {found[0]!r} have no field {found[1][0]!r}, which those of another source have: it is "
            warnings.warn(f"{text}None there; {_ARGUMENT}", stacklevel=2)

    return warn


def _is_text(name: object) -> bool:
    return isinstance(name, str)
