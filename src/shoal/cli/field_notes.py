"""Texts on the fields of samples packed from files, and on samples that lack the usual fields."""

from __future__ import annotations

from shoal.cli.preview import printable
from shoal.pack.inputs.sample_fields import SampleFields


def counts_text(fields: SampleFields) -> str:
    """Return how many samples have each field."""
    return ", ".join(f"{printable(name)} {count:,}" for name, count in fields.counts.items())


def first_text(fields: SampleFields) -> str:
    """Return the first samples that lack one of the usual fields."""
    names = list(map(printable, fields.first_without_usual))
    return ", ".join([*names, *(["..."] if fields.num_without_usual > len(names) else [])])


def fields_text(fields: SampleFields) -> str:
    """Return the counts, and the samples that lack usual fields, in one line."""
    text = counts_text(fields)
    if fields.num_without_usual:
        usual = " or ".join(map(printable, fields.usual))
        text += f"; {fields.num_without_usual:,} samples lack {usual}: {first_text(fields)}"
    return text
