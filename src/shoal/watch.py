"""A run in progress in other tools: ``shoal.watch.log_to(writer, ds)``, and pages of live streams: ``page(ds)``."""

from shoal.watching.metric_writers import RunLog, log_to
from shoal.watching.page_of_object import Page, page

__all__ = ["Page", "RunLog", "log_to", "page"]
