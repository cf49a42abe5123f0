"""The resolution of an order that was asked for; orders of other kinds register theirs."""

from __future__ import annotations

from functools import singledispatch
from typing import cast

from shoal.reading.large_chunks import can_spill
from shoal.reading.order_request import OrderRequest, Request, Selection
from shoal.reading.resolved_epochs import Source
from shoal.reading.resolved_order import Resolved, ResolvedOrder


@singledispatch
def resolve(request: Request, source: Source, selection: Selection) -> Resolved:
    """Return the epochs of a selection of samples in the order that a request asks for."""
    opened = source.whole.one("this order")
    return ResolvedOrder(
        opened.index,
        cast("OrderRequest", request),
        selection.stored,
        selection.delivered,
        selection.gaps,
        spills=can_spill(opened),
        sampling=selection.sampling,
    )
