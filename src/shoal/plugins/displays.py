"""The display of objects in notebooks: functions to HTML by the kind of object, loaded on first use.

The core knows no HTML: an object names its kind here, and the room `shoal.tools.notebook` draws it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Protocol

from shoal.plugins.doors import Door

DISPLAYS: Door[Any] = Door("shoal.displays", {})
"""Functions that show an object, by the kind of object."""


class Sheet(Protocol):
    """Samples to look at: HTML in a notebook, lines in a terminal, or a page."""

    def _repr_html_(self) -> str:
        """Return the samples as HTML."""
        ...

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the samples as a self-contained page."""
        ...


def as_html(kind: str, shown: object) -> str:
    """Return an object of a kind in `DISPLAYS` as self-contained HTML; reads no data."""
    return str(DISPLAYS.make(kind, shown))


def sheet_of_values(values: Iterable[object], source: str) -> Sheet:
    """Return samples without places as a contact sheet; ``source`` says in words where they come from."""
    sheet: Sheet = DISPLAYS.make("values", values, source)
    return sheet


def sheet_of(dataset: object, num_samples: int) -> Sheet:
    """Read the next samples of a dataset, and return them as a contact sheet."""
    sheet: Sheet = DISPLAYS.make("samples", dataset, num_samples)
    return sheet
