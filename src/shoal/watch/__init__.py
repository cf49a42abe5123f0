"""Runs in progress: their page, their numbers in other tools (`log_to`), and their trace."""

from __future__ import annotations as _annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from shoal.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from shoal.watch.metric_writers import RunLog, log_to
    from shoal.watch.page_of_object import Page, address, page

__all__ = ["Page", "RunLog", "address", "log_to", "page"]

__getattr__, __dir__ = _lazy_names(
    __name__, {"shoal.watch.metric_writers": "RunLog log_to", "shoal.watch.page_of_object": "Page address page"}
)
