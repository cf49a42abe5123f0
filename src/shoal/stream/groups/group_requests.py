"""Arguments of ``batch(by=)``, and the groups of samples in the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from shoal.arguments import as_text
from shoal.errors import UsageError
from shoal.order.groups.group_batches import GroupBatches
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.protocol import as_within
from shoal.pipeline.stages.stage import Stage
from shoal.reading.grouped_epochs import GroupedEpochs
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.order_request import Selection
from shoal.reading.resolved_epochs import Source
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stream.groups.column_groups import ColumnGroups, groups_of
from shoal.stream.groups.grouped_batches import GroupedBatches, num_without_batch
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.rows import Rows

_LEAST_CLASSES = 2
_UNUSED = 1  # size of a group without samples


@dataclass(frozen=True, slots=True)
class GroupRequest(Rows):
    """Batches by column: ``sizes`` by value of the column, or a size for all; ``each`` if a batch has several classes.

    ``grouping`` has the other arguments.
    """

    grouping: GroupBatches
    sizes: Mapping[Any, int] | None
    noun = "samples"
    verb = "batch(by=)"
    needs_index = True

    @classmethod
    def of_arguments(cls, size: Any, by: Any, remainder: str, *, each: Any = None, **how: Any) -> GroupRequest:
        """Return the request for the arguments of `Dataset.batch`; `UsageError` for invalid arguments."""
        by = as_text("batch(by=)", by, hint="the name of a column of the index")
        if remainder == "pad":
            msg = 'batch(by=, remainder="pad"): the last batches of groups are short, and are not filled with repeats'
            raise UsageError(msg, hint='remainder="keep" yields short batches, remainder="drop" leaves them out')
        how["keeps_short"] = remainder == "keep"
        if each is not None:
            if isinstance(size, Mapping):
                msg = f"batch(each={each!r}) takes a number of classes; got sizes by value"
                raise UsageError(msg, hint="batch(16, 4, by=...) is 16 classes with 4 samples each")
            classes = as_within("the number of classes of batch(classes, each, by=)", size, _LEAST_CLASSES, 1 << 24)
            return cls(GroupBatches(by, (each,), classes=classes, **how), None)
        if size is None:
            msg = f"batch(by={by!r}) takes the number of samples of a batch, for all groups or by value of the column"
            raise UsageError(msg, hint=f"batch(64, by={by!r}) or batch({{value: size}}, by={by!r})")
        if not isinstance(size, Mapping):
            return cls(GroupBatches(by, (size,), **how), None)
        for value, number in size.items():
            as_within(f"batch(): the size for {value!r}", number, 1, 1 << 24)
        return cls(GroupBatches(by, (_UNUSED,), **how), dict(size))

    @property
    def kind(self) -> str:
        """Description of the batches for the summary of a dataset."""
        grouping, by = self.grouping, f"by {self.grouping.by!r}"
        if grouping.classes > 1:
            return f"of {grouping.classes:,} classes with {grouping.sizes[0]:,} samples each, {by}"
        return by if self.sizes is not None else f"of {grouping.sizes[0]:,} {by}"

    def batcher(self, source: Source, stages: Sequence[Stage], *, batched: bool) -> Batcher:  # noqa: ARG002
        """Return the batcher of grouped samples."""
        return GroupedBatches(num_without_batch)

    def resolved(
        self, resolved: Callable[[Selection], Resolved], selection: Callable[[Gaps], Selection], gaps: Gaps
    ) -> Resolved:
        """Return the epochs of batches."""
        samples = cast("ResolvedOrder | ResolvedMixture", resolved(selection(NO_GAPS)))
        groups = groups_of(samples.parts, self.grouping.by)
        grouping = self._sized(groups)
        _check_large_enough(grouping, groups)
        return ResolvedSequences(samples, grouping, groups.groups, gaps, orders=GroupedEpochs)

    def _sized(self, groups: ColumnGroups) -> GroupBatches:
        """Return the arguments of the batches, with the size of each group."""
        if self.sizes is None:
            return self.grouping
        sizes = [self.sizes.get(value) for value in groups.values]
        if unsized := [number for number, size in enumerate(sizes) if size is None and groups.counts[number]]:
            missing = groups.sizes_in_words(np.array(unsized))
            msg = f"batch(by={self.grouping.by!r}): no size for {missing}; sizes are given for "
            msg += ", ".join(map(repr, self.sizes)) or "no value"
            hint = "a size for each value of the column, or select() the samples of some values"
            raise UsageError(msg, hint=hint)
        return replace(self.grouping, sizes=tuple(_UNUSED if size is None else size for size in sizes))


def _check_large_enough(grouping: GroupBatches, groups: ColumnGroups) -> None:
    """Raise `UsageError` if some groups never fill a batch, or too few groups do."""
    numbers = np.arange(len(groups.counts))
    sizes, some = grouping.sizes_of(numbers), groups.counts > 0
    is_small = some & (groups.counts < sizes)
    call = f"batch(by={grouping.by!r})"
    if grouping.classes > 1:
        size = grouping.sizes[0]
        call = f"batch({grouping.classes}, {size}, by={grouping.by!r})"
        if (num_large := int((some & ~is_small).sum())) < grouping.classes:
            msg = f"{call} takes {grouping.classes:,} classes with {size:,} samples each, but only {num_large:,} of "
            msg += f"{int(some.sum()):,} classes have {size:,} samples or more"
            raise UsageError(msg, hint="fewer classes, or fewer samples of each")
    elif grouping.keeps_short:
        return
    if grouping.too_small == "refuse" and is_small.any():
        smallest = np.flatnonzero(is_small)[np.argsort(groups.counts[is_small], kind="stable")]
        msg = f"{call}: {int(is_small.sum()):,} of {int(some.sum()):,} groups have too few samples for a batch, and "
        msg += f"would never come: {groups.sizes_in_words(smallest)}"
        hint = 'too_small="drop" leaves their samples out, or select() other groups'
        raise UsageError(msg, hint=hint)
