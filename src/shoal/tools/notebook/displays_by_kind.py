"""Functions that show an object in a notebook, by the kind of object; `shoal.plugins.displays` looks them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shoal.tools.notebook.audit_display import audit_html
from shoal.tools.notebook.dataset_display import dataset_html, live_html, mixture_html
from shoal.tools.notebook.order_display import order_html
from shoal.tools.notebook.quality_display import quality_html
from shoal.tools.notebook.stats_display import stats_html
from shoal.tools.samples.contact_sheet import sheet_of_values, show

DISPLAYS: Mapping[str, Callable[..., Any]] = {
    "audit": audit_html,
    "dataset": dataset_html,
    "mixture": mixture_html,
    "live": live_html,
    "order": order_html,
    "quality": quality_html,
    "stats": stats_html,
    "samples": show,
    "values": sheet_of_values,
}
