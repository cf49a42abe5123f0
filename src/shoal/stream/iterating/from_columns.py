"""The choice of making batches, or lists of samples, from columns at once."""

from __future__ import annotations

from shoal.indexing.opened_dataset import OpenedDataset
from shoal.pipeline.columns.column_gathering import Gathering
from shoal.pipeline.columns.column_sources import ColumnSource
from shoal.reading.fetcher import Fetcher, most_in_run
from shoal.stream.iterating.batch_context import BatchContext
from shoal.stream.iterating.source_reading import Reading


def are_small(opened: OpenedDataset) -> bool:
    """True if making samples together pays."""
    num_bytes = sum(int(part.index.extent_decoded_bytes.sum()) for part in opened.parts)
    return most_in_run(opened.index.num_samples, num_bytes) > 1


def gathering_of(reading: Reading, context: BatchContext) -> Gathering | None:
    """Return the maker of batches, or of samples, from columns; None if each sample must be read by itself.

    It must if values are views, if memory is limited, and if a format has no columns.
    """
    pipeline, parts = context.pipeline, context.opened.parts
    if not context.options.copy or not all(part.format.has_columns for part in parts):
        return None
    own_stages = pipeline.stages[0].own_stages if pipeline.stages else ()
    sources = []
    for number, (part, first_unit, first_id) in enumerate(reading.places):
        fetch, budget = part.reader, part.budget
        if not isinstance(fetch, Fetcher) or budget.keeping is not None:
            return None
        own = own_stages[number] if own_stages else ()
        sources.append(ColumnSource(fetch, budget.units.num_units, first_unit, first_id, own))
    return Gathering(sources, formatting=pipeline.formatting, allocate=pipeline.allocate)
