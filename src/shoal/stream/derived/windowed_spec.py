"""`Dataset.windows`: a dataset of rows becomes a dataset whose samples are windows of these rows."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from shoal.errors import UsageError
from shoal.formats.folder.reader import Folder
from shoal.formats.windows.row_offsets import WindowShape, WindowTable
from shoal.formats.windows.window_format import Windows
from shoal.indexing.generations.derived_versions import with_rows
from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.order.arrays.index_ranges import Runs
from shoal.stream.dataset_spec import CHOSEN, Choices, Coming, DatasetSpec, Refusal
from shoal.stream.derived.window_recipe import windows_of

_log = logging.getLogger("shoal")

_STORED_ROWS = (
    Refusal(
        lambda spec, _: spec.request is not None,
        "{verb} makes samples of stored rows, but was called after shuffle()",
        "put {verb} before shuffle(), which then shuffles windows",
    ),
    Refusal(
        lambda spec, _: spec.stages and repr(spec.stages[0]),
        "{verb} makes samples of stored rows, but was called after {earlier}",
        "put {verb} first: map(), decode() and others then get whole windows",
    ),
    Refusal(
        lambda spec, _: spec.opened.one("windows()").derivation is not None,
        "{verb} makes samples of stored rows, but the samples of this dataset are windows already",
        "call {verb} once, on the dataset of rows",
    ),
)


def windowed_spec(spec: DatasetSpec, shape: WindowShape, by: Any) -> DatasetSpec:
    """Return the description of the windows of a dataset of rows; raises `UsageError`, see `shoal.Dataset.windows`."""
    rows = spec.opened.one("windows()")
    _check_rows(rows)
    spec.refuse("windows()", (*CHOSEN, *_STORED_ROWS))
    _check_fields(rows, shape)
    opened = windows_of(rows, shape, by)
    derivation = opened.derivation
    if derivation is not None:
        _log.info("windows(%s): %s", shape, derivation.words)
        if any(spec.follows) and not derivation.recipe.can_repeat:
            derivation.recipe.made_of(rows)  # raises: better here than at the beginning of a later epoch
    coming = spec.coming
    if coming is not None:
        coming = Coming(coming.border, with_rows(opened, coming.opened.one("windows()")))
    stored = _stored(opened, spec)
    made_of = partial(_again, spec.choices)
    return replace(spec, source=opened, stored=stored, grows=False, choices=Choices(), made_of=made_of, coming=coming)


def _again(choices: Choices, opened: OpenedDataset) -> DatasetSpec:
    """Return the description of windows of rows that have grown, with the choices of rows made again."""
    windows = opened.one("windows()")
    if windows.derivation is None:
        raise UsageError("these samples are stored rows, but were windows before", hint="call windows() on the rows")
    rows = choices.made(DatasetSpec.of(windows.derivation.rows))
    return replace(DatasetSpec.of(windows), stored=_stored(windows, rows), made_of=partial(_again, choices))


def _stored(opened: Opened, rows: DatasetSpec) -> Runs | None:
    """Return the windows all of whose rows were selected; None for all windows."""
    if rows.stored is None:
        return None
    table = cast("Windows", opened.format).table
    stored = _whole(rows.stored, table)
    if not len(stored):
        msg = f"no window of {table.shape} has only rows that were selected before"
        raise UsageError(msg, hint="select whole episodes, or put select() behind windows()")
    return stored


def _check_rows(rows: Opened) -> None:
    if isinstance(rows.format, Folder) or rows.index.format == Folder.name:
        msg = "windows() takes consecutive rows of a shard, but in a folder each file is a shard of its own"
        raise UsageError(msg, hint="`shoal pack` the folder; files of an episode then follow each other in a shard")
    if rows.companions:
        msg = "windows() takes rows of one dataset, but join() has put rows of another beside them"
        raise UsageError(msg, hint="put join() behind windows(): it then joins windows, by a column of the anchor row")


def _check_fields(rows: Opened, shape: WindowShape) -> None:
    """Raise `UsageError` for offsets of a field that no row has, as far as the head of a shard tells."""
    heads = rows.index.shard_heads
    known = rows.format.field_names(heads[min(heads)] if heads else {})
    if known is None:
        return
    if unknown := [name for name in shape.offsets if name not in known and "=" not in rows.index.shard_names[0]]:
        msg = f"windows(offsets=): there is no field {unknown[0]!r}; the rows have {', '.join(map(repr, known))}"
        raise UsageError(msg, hint="name fields of the rows")


def _whole(stored: Runs, table: WindowTable) -> Runs:
    """Return the windows all of whose rows are among the stored ones."""
    firsts, ends = table.row_ranges(np.arange(table.num_windows))
    # Runs are maximal, so all rows of a window lie in one run.
    run = np.maximum(np.searchsorted(stored.starts, firsts, side="right") - 1, 0)
    inside = (stored.starts[run] <= firsts) & (ends <= stored.stops[run]) if len(stored.starts) else np.zeros(0, bool)
    return Runs.of(inside, table.num_windows)
