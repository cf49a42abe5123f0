"""Read the samples of a trace, and show them as text, as JSON, and as a page with thumbnails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.cli import output
from shoal.cli.display.progress_bar import Progress
from shoal.cli.trace.traced_run import Row
from shoal.errors import ShoalError
from shoal.figures import counted, format_bytes
from shoal.stream.dataset import Dataset
from shoal.tools.reports.page_document import cards, document, facts, paragraph, section
from shoal.tools.samples.preview import json_value, preview, printable, size_of
from shoal.tools.samples.sample_cards import field_html, unbroken
from shoal.tools.samples.shown_samples import KEY

_LINE_LETTERS = 100


@dataclass(slots=True)
class TracedSamples:
    """The samples of rows, at most ``limit``, each read once."""

    dataset: Dataset
    limit: int
    _read: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, rows: Sequence[Row]) -> list[Mapping[str, Any] | None]:
        """Return the fields of each row's sample: None beyond the limit, an error message for a damaged sample."""
        samples = list(dict.fromkeys(row["sample"] for row in rows))[: self.limit]
        new = [sample for sample in samples if sample not in self._read]
        with Progress(total=len(new), label="reading samples") as progress:
            for sample in new:
                try:
                    self._read[sample] = dict(self.dataset[sample])
                except ShoalError as error:  # the traced sample may be damaged
                    self._read[sample] = {"error": f"{type(error).__name__}: {error.message}"}
                progress.advance()
        shown = set(samples)
        return [self._read[row["sample"]] if row["sample"] in shown else None for row in rows]

    def add_fields(self, rows: list[Row]) -> None:
        """Add the fields to the rows."""
        for row, sample in zip(rows, self.of(rows), strict=True):
            row["fields"] = None if sample is None else json_value(dict(sample))

    def show(self, rows: Sequence[Row]) -> None:
        """Print each sample with a heading and a line for each field."""
        missing = 0
        for row, sample in zip(rows, self.of(rows), strict=True):
            if sample is None:
                missing += 1
                continue
            key = sample.get(KEY)
            name = "" if key is None else f"  {printable(str(key))}"
            output.say(f"\nsample {row['sample']}{name}" + ("" if row["step"] is None else f"  in step {row['step']}"))
            for name, value in sample.items():
                if name != KEY:
                    text = preview(str(name), value, columns=_LINE_LETTERS)
                    output.say(f"  {printable(str(name))}  {size_of(value)}  {text}".rstrip())
        if missing:
            output.say(f"\n{missing:,} more samples are not shown; --limit {len(rows)} shows all")


def trace_page(
    about: Mapping[str, Any], rows: Sequence[Row], samples: TracedSamples, *, source: str, made_by: str
) -> str:
    """Return the page of a trace as self-contained HTML."""
    fields = samples.of(rows)
    by_step: dict[int | None, list[int]] = {}
    for number, row in enumerate(rows):
        by_step.setdefault(row["step"], []).append(number)
    body = []
    for step, numbers in by_step.items():
        shown = [_card(rows[number], sample) for number in numbers if (sample := fields[number]) is not None]
        name = "Not delivered" if step is None else f"Step {step:,}"
        parts = [cards(shown)]
        if missing := len(numbers) - len(shown):
            parts.append(paragraph(f"{missing:,} more samples are not shown; --limit shows more.", kind="soft"))
        body.append(section(f"{name} (requested)" if step == about.get("step") and len(by_step) > 1 else name, *parts))
    origins = section("Origin of the samples", facts(_origins(rows))) if rows else ""
    body.append(origins or section("Samples", paragraph("No samples.")))
    title = "Trace of samples" if "step" not in about else f"Trace of step {about['step']:,}"
    if "shard" in about:
        title = f"Trace of {about['shard']}"
    call = about["order"] if about["order"].startswith("mix of") else f"ds.{about['order']}"
    return document(
        title=title,
        about=f"{source}, epoch {about['epoch']}, global batches of {about['global_batch']:,} on "
        f"{counted(about['world_size'], 'rank')}",
        call=f"{call}\n.{about['packing']}" if "packing" in about else call,
        lead=_lead(about, rows),
        body=body,
        made_by=made_by,
    )


def _lead(about: Mapping[str, Any], rows: Sequence[Row]) -> str:
    if "step" not in about:
        return f"{len({row['sample'] for row in rows}):,} samples, and their steps."
    rows = [row for row in rows if row["step"] == about["step"]]
    shards = len({row["shard"] for row in rows})
    among = ", of steps without end," if about["num_steps"] is None else f" of {about['num_steps']:,}"
    positions = f"{about['first_position']:,} to {about['end_position'] - 1:,}"
    content = counted(len(rows), "sample")
    if "packing" in about:
        num_sequences = len({(row["rank"], row["place"]) for row in rows})
        content = f"{counted(num_sequences, 'sequence')} with {counted(len(rows), 'segment')}, of documents"
    text = f"Step {about['step']:,}{among} holds positions {positions}: {content} from {counted(shards, 'shard')}. "
    return text + f"ds.without(steps={about['step']}, epoch={about['epoch']}) skips the step."


def _origins(rows: Sequence[Row]) -> dict[str, str]:
    shards = Counter(row["shard"] for row in rows)
    most, times = min(shards.items(), key=lambda item: (-item[1], item[0]))
    sizes = [row["end_byte"] - row["first_byte"] for row in rows]
    sources = Counter(row["source"] for row in rows if "source" in row)
    text = ", ".join(f"{printable(name)} ({count:,})" for name, count in sources.most_common())
    return {
        "Shards": f"{len(shards):,}",
        "Most samples from": f"{printable(most)} ({times:,})",
        **({"Sources": text} if text else {}),
        "Bytes of a sample": f"{format_bytes(min(sizes))} to {format_bytes(max(sizes))}",
        "Repeats": f"{sum(row['repeat'] for row in rows):,}",
    }


def _card(row: Row, sample: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """Return the heading, the key and the paragraphs of a sample's card."""
    key = sample.get(KEY)
    name = f"Sample {row['sample']:,}" + (" (repeat)" if row["repeat"] else "")
    parts = [field_html(str(name), value, row["sample"]) for name, value in sample.items() if name != KEY]
    to = [] if row["rank"] is None else [f"rank {row['rank']:,}", f"place {row['place']:,}"]
    to += [] if row["position"] is None else [f"position {row['position']:,}"]
    parts.append(paragraph(", ".join([*to, *filter(None, [row.get("note")])]).capitalize(), kind="soft"))
    shard = printable(str(row["shard"]))
    if "segment" in row:
        text = f"Segment {row['segment']:,} of the sequence, tokens [{row['first_token']:,}, {row['end_token']:,})"
        parts.append(paragraph(text, kind="soft"))
    if "source" in row:
        parts.append(paragraph(f"Source {printable(row['source'])}", kind="soft"))
    span = f"{shard} [{row['first_byte']:,}, {row['end_byte']:,})"
    size = unbroken(format_bytes(row["end_byte"] - row["first_byte"]))
    parts.append(paragraph(f"From {span}, {size}", kind="soft"))
    if seen := row.get("seen"):
        steps = [
            f"{'not in epoch' if step is None else f'at step {step:,} of epoch'} {epoch}"
            for epoch, step in seen.items()
        ]
        parts.append(paragraph(f"Also {', '.join(steps)}", kind="soft"))
    return name, "" if key is None else printable(str(key)), parts
