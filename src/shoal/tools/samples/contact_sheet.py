"""Contact sheets: a few samples of a dataset, for a notebook, a terminal, or a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.figures import counted
from shoal.storage.files.atomic_writes import write_atomically
from shoal.stream.choosing.next_samples import next_samples
from shoal.stream.dataset import Dataset
from shoal.tools.notebook.fragment import fragment, heading
from shoal.tools.reports.page_document import cards, document, section
from shoal.tools.samples.preview import printable
from shoal.tools.samples.sample_cards import card_of, has_picture
from shoal.tools.samples.shown_samples import ShownSample, ShownSamples, fields_and_key


@dataclass(frozen=True, slots=True, repr=False)
class ContactSheet:
    """Samples to look at; ``about`` says where they come from, and ``source`` names the dataset."""

    samples: Sequence[ShownSample] = field(repr=False)
    about: str
    source: str = "Samples"

    def __str__(self) -> str:
        """Return the samples as text: a heading for each, and a line for each field."""
        columns = shutil.get_terminal_size().columns
        return "\n\n".join([self.about, *("\n".join(sample.lines(columns=columns)) for sample in self.samples)])

    __repr__ = __str__

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.samples)

    def _repr_html_(self) -> str:
        return fragment(heading(self.source, self.about), self._cards())

    def page(self, *, made_by: str) -> str:
        """Return the samples as a self-contained page; ``made_by`` is the call that made it."""
        lead = "" if self.samples else "No samples."
        body = [section("Samples", self._cards())] if self.samples else []
        return document(title=self.source, lead=lead, about=self.about, body=body, made_by=made_by)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the samples as a self-contained page."""
        page = self.page(made_by=f"ds.show({len(self.samples)})")
        write_atomically(os.fspath(path), [page.encode("utf-8", "backslashreplace")], durable=False)

    def _cards(self) -> str:
        items = [card_of(sample) for sample in self.samples]
        are_pictures = 2 * sum(map(has_picture, items)) > len(items)
        return cards(items, kind="cards tiles" if are_pictures else "cards")


def sheet_of_values(values: Iterable[Any], source: str) -> ContactSheet:
    """Return samples of a live stream, which have no places, as a contact sheet."""
    samples = tuple(ShownSample(number, "", 0, 0, *fields_and_key(value)) for number, value in enumerate(values))
    return ContactSheet(samples, _next_words(len(samples)), printable(source))


def _next_words(num_samples: int) -> str:
    return {0: "no sample", 1: "the next sample"}.get(num_samples, f"the next {num_samples:,} samples")


def show(dataset: Dataset, num_samples: int) -> ContactSheet:
    """Read the next samples of a dataset and return them as a contact sheet; see `Dataset.show`."""
    chosen = next_samples(dataset.stream, num_samples)
    shown = ShownSamples(chosen.samples, chosen.opened)
    samples = tuple(shown.first(chosen.ids.tolist(), num_samples))
    about = f"{_next_words(len(samples))} at position {chosen.number:,} of epoch {chosen.epoch}"
    source = dataset.stream.spec.source.words(lambda: counted(chosen.opened.index.num_samples, "sample"))
    return ContactSheet(samples, about, printable(source))
