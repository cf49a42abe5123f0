"""The `shoal mix` command: show counts, repeats, ends and the composition of a mixture over a run."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli import output
from shoal.cli.display.pages import add_page_arguments, check_picture, typed_command, write_page, write_picture
from shoal.cli.options.argument_types import at_least_one
from shoal.cli.options.source_options import add_json_argument, add_store_arguments, source_of
from shoal.cli.options.stream_options import add_order_arguments, shuffled_mixture
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.reading.mixture.mix_request import FOREVER, MixRequest
from shoal.storage.sources.source import printed
from shoal.stream.mixing.mixed_dataset import MixedDataset
from shoal.stream.mixing.run_lengths import RunLengths
from shoal.tools.reports.mixture_page import MixtureFigures, mixture_page, mixture_picture
from shoal.tools.samples.preview import printable

_MOST_PARTS, _LEAST_PART = 240, 64  # parts of the run in the picture, and positions of a part
_SHOWN_BATCHES = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "FILE names sources and their weights (docs/mixture-files.md). Missing indexes are built; samples are not "
        "read. Visits are samples of a source in the run, divided by the size of the source."
    )
    parser.add_argument("source", metavar="FILE", nargs=1, help="mixture file, metadataset of Energon, or streams")
    parser.add_argument("--split", metavar="NAME", action="append", help="split of a metadataset or of the sources")
    add_store_arguments(parser)
    text = "samples (or sequences) of a batch over all ranks, for steps and VR"
    parser.add_argument("--global-batch", type=at_least_one, metavar="N", help=text)
    text = "count steps of sequences of LENGTH tokens, in a mixture by tokens"
    parser.add_argument("--pack-sequences", type=at_least_one, metavar="LENGTH", help=text)
    length = parser.add_mutually_exclusive_group()
    text = "length of the run in epochs (default: 1; without epochs, until every source is exhausted)"
    length.add_argument("--epochs", type=at_least_one, metavar="E", help=text)
    length.add_argument("--steps", type=at_least_one, metavar="T", help="length of the run in steps")
    add_page_arguments(parser)
    add_order_arguments(parser, default="if the file has no order (default: shuffle())")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the mixture."""
    check_picture(arguments.picture)
    if arguments.steps is not None and arguments.global_batch is None:
        raise UsageError("--steps counts global batches, but --global-batch is not given", hint="--global-batch N")
    dataset = shuffled_mixture(arguments)
    request = dataset.stream.spec.request
    if not isinstance(request, MixRequest):
        raise TypeError("not a mixture")
    if arguments.pack_sequences is not None and arguments.global_batch is None:
        msg = "--pack-sequences counts steps of sequences, but --global-batch is not given"
        raise UsageError(msg, hint="--global-batch N, the sequences of a step over all ranks")
    lengths = RunLengths(request, arguments.global_batch, arguments.pack_sequences)
    end = _end(dataset, lengths, arguments)
    record = _record(dataset, lengths, end)
    _draw(dataset, lengths, record, end, arguments)
    if arguments.json:
        output.emit(record, as_json=True)
    else:
        _show(record)
    return 0


def _end(dataset: MixedDataset, lengths: RunLengths, arguments: argparse.Namespace) -> int:
    """Return the position where the run ends."""
    num_samples = dataset.num_samples
    if arguments.steps is not None:
        return lengths.position_of(arguments.steps)
    if num_samples < FOREVER:
        return num_samples * (arguments.epochs or 1)
    if arguments.epochs is not None:
        raise UsageError("this mixture has no epochs: it never ends", hint="--steps T --global-batch N")
    return max((at for at in dataset.exhausted_at().values() if at is not None), default=_LEAST_PART)


def _record(dataset: MixedDataset, lengths: RunLengths, end: int) -> dict[str, Any]:
    request, batch = lengths.request, lengths.batch
    is_endless = dataset.num_samples == FOREVER
    size = _SHOWN_BATCHES if batch is None else max(1, lengths.position_of(1))
    by_tokens = {} if lengths.means is None else {"num_tokens": round(lengths.tokens(end) or 0)}
    vr = {} if size > min(dataset.num_samples, end) // 2 else dict(dataset.quality(batch=size).vr)
    return {
        "num_sources": len(dataset.sources),
        "num_samples": None if is_endless else dataset.num_samples,
        "num_steps": None if is_endless else lengths.whole_steps(dataset.num_samples),
        "ends": request.ends,
        "seed": request.seed,
        "choice": request.choice.name,
        "global_batch": batch,
        **({"pack_sequences": lengths.sequence} if lengths.sequence is not None else {}),
        "run": {"num_samples": end, "num_steps": lengths.whole_steps(end), **by_tokens},
        "sources": _source_rows(dataset, lengths, end),
        "changes": _change_rows(lengths),
        "vr": vr,
    }


def _source_rows(dataset: MixedDataset, lengths: RunLengths, end: int) -> list[dict[str, Any]]:
    request, means = lengths.request, lengths.means
    counts, ends, weights = dataset.counts(end), dataset.exhausted_at(), dataset.weights_at(0)
    token_shares = _token_shares(lengths, weights)
    windows = dict.fromkeys(request.names, 0)  # window bytes, summed over nested mixtures
    for (name, _), part in zip(dataset.resolved.request.leaves(), dataset.resolved.parts, strict=True):
        windows[name.partition("/")[0]] += part.chunks_held_bytes
    total = sum(windows.values()) or 1
    rows = []
    for number, source in enumerate(request.sources):
        at = ends[source.name]
        size = source.num_samples
        token_facts = {} if means is None else {
            "token_share": token_shares[source.name],
            "num_tokens_in_run": round(counts[source.name] * float(means[number])),
        }  # fmt: skip
        rows.append(
            {
                "source": source.name,
                "num_samples": None if size == FOREVER else size,
                "weight": weights[source.name],
                "num_in_run": counts[source.name],
                **token_facts,
                "visits": counts[source.name] / size,
                "exhausted_at": at if at is None or at < FOREVER else None,
                "exhausted_step": None if at is None or at >= FOREVER else lengths.whole_steps(at),
                "window_bytes": windows[source.name],
                "window_share": windows[source.name] / total,
            }
        )
    return rows


def _change_rows(lengths: RunLengths) -> list[dict[str, Any]]:
    rows = []
    for change in lengths.request.changes[1:]:
        weights = {name: weight / sum(change.weights.values()) for name, weight in change.weights.items()}
        step = None if lengths.batch is None else int(lengths.steps(change.at))
        row = {"at": change.at, "step": step, "ramp": change.ramp, "weights": weights}
        rows.append(row if lengths.means is None else row | {"token_shares": _token_shares(lengths, weights)})
    return rows


def _token_shares(lengths: RunLengths, weights: Mapping[str, float]) -> dict[str, float]:
    """Convert shares of samples to shares of tokens."""
    names = lengths.request.names
    shares = lengths.shares(np.array([weights.get(name, 0.0) for name in names]))
    return dict(zip(names, shares.tolist(), strict=True))


def _show(record: dict[str, Any]) -> None:
    """Print the record as text."""
    facts = {name: record[name] for name in ("num_sources", "num_samples", "num_steps", "ends", "seed", "choice")}
    if record["num_samples"] is None:
        facts["samples"] = "no end"
    if record["run"]["num_samples"] != record["num_samples"]:
        facts["num_samples_of_the_run"] = record["run"]["num_samples"]
    output.emit(output.without_usual(facts))
    rows = []
    for row in record["sources"]:
        shown = {**row, "source": printable(row["source"]), "weight": f"{row['weight']:.2%}"}
        if "token_share" in row:
            shown["token_share"] = f"{row['token_share']:.2%}"
        shown["visits"] = f"{row['visits']:.2f}"
        shown["window_share"] = f"{row['window_share']:.1%}"
        rows.append(shown if record["global_batch"] else {k: v for k, v in shown.items() if k != "exhausted_step"})
    names = {"weight": "share", "num_in_run": "num_in the run", "exhausted_at": "num_once at",
             "token_share": "of tokens", "num_tokens_in_run": "num_tokens",
             "exhausted_step": "num_step", "window_share": "of all"}  # fmt: skip
    output.say()
    output.say(output.format_table([{names.get(key, key): value for key, value in row.items()} for row in rows]))
    if record["changes"]:
        changes = [
            {"num_at": row["at"], **({"num_step": row["step"]} if record["global_batch"] else {}),
             "num_ramp": row["ramp"], "shares": _shares_text(row["weights"]),
             **({"of tokens": _shares_text(row["token_shares"])} if "token_shares" in row else {})}
            for row in record["changes"]
        ]  # fmt: skip
        output.say()
        output.say(output.format_table(changes))
    if record["vr"]:
        output.say()
        head = "num_documents of a batch" if "pack_sequences" in record else "num_batch"
        output.say(output.format_table([{head: size, "VR": f"{vr:.2f}"} for size, vr in record["vr"].items()]))


def _shares_text(weights: dict[str, float]) -> str:
    return ", ".join(f"{printable(name)} {weight:.2%}" for name, weight in weights.items())


def _draw(
    dataset: MixedDataset, lengths: RunLengths, record: dict[str, Any], end: int, arguments: argparse.Namespace
) -> None:
    """Write the picture and the page, if requested."""
    if arguments.picture is None and arguments.html is None:
        return
    request = lengths.request
    changes = [(change.at, change.ramp) for change in request.changes[1:] if change.at < end]
    borders = {border for at, ramp in changes for border in (at, at + ramp) if border < end}
    edges = _edges(sorted({0, end, *borders}))
    counts = np.array([list(dataset.counts(edge).values()) for edge in edges.tolist()], dtype=np.int64)
    steps = np.array([lengths.steps(edge) for edge in edges.tolist()])
    sizes = [source.num_samples for source in request.sources]
    names = [printable(name) for name in dataset.sources]
    ends = dict(zip(names, dataset.exhausted_at().values(), strict=True))
    shares, parts = lengths.shares(np.diff(counts, axis=0)), "samples" if lengths.means is None else "tokens"
    drawn = MixtureFigures(names, sizes, edges, counts, changes, ends, steps, shares, record["vr"], lengths.unit, parts)
    title = f"Mixture {printed(source_of(arguments))}"
    noun, call = "samples", f'shoal.open("{printed(source_of(arguments))}")'
    shown = f"{end:,} samples are shown"
    if lengths.sequence is not None:
        num_steps = counted(lengths.whole_steps(end) or 0, "step")
        noun, shown = "documents", f"{num_steps}{lengths.unit.removeprefix('step')} are shown"
        call += f".pack_sequences({lengths.sequence}, lengths={request.length!r})"
        call += f".batch(global_batch_size={lengths.batch})"
    length = "no end" if record["num_samples"] is None else f"{record['num_samples']:,} {noun} an epoch"
    about = f"{len(names)} sources, {length}, seed {request.seed}, choice {request.choice.name}; {shown}"
    lead = _lead(record)
    if arguments.picture is not None:
        write_picture(arguments.picture, mixture_picture(drawn, title=title, about=about, lead=lead))
    if arguments.html is not None:
        rows, made_by = _page_rows(record["sources"]), typed_command(arguments.words)
        page = mixture_page(drawn, rows, title=title, about=about, call=call, lead=lead, made_by=made_by)
        write_page(arguments.html, page)


def _edges(borders: Sequence[int]) -> NDArray[np.int64]:
    """Return the borders of the parts of the run: whole blocks of each stage, with exact counts."""
    part = _LEAST_PART * -(-borders[-1] // (_MOST_PARTS * _LEAST_PART))
    inner = {at for begin, stop in itertools.pairwise(borders) for at in range(begin, stop - _LEAST_PART + 1, part)}
    return np.array(sorted({*borders, *inner}))


def _lead(record: dict[str, Any]) -> str:
    """Return a sentence about repeats in the run."""
    repeated = [row for row in record["sources"] if row["visits"] > 1]
    if not repeated:
        return "No sample comes twice in this run."
    most = max(repeated, key=lambda row: row["visits"])
    text = f"{len(repeated)} of {len(record['sources'])} sources repeat samples in this run"
    return f"{text}; {printable(most['source'])} most: {most['visits']:.1f} visits of each."


def _page_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    def text(number: int | None) -> str:
        return "-" if number is None else f"{number:,}"

    return [
        {
            "source": printable(row["source"]),
            "samples": text(row["num_samples"]),
            "share": f"{row['weight']:.2%}",
            **({"of tokens": f"{row['token_share']:.2%}"} if "token_share" in row else {}),
            "in the run": text(row["num_in_run"]),
            **({"tokens": text(row["num_tokens_in_run"])} if "token_share" in row else {}),
            "visits": f"{row['visits']:.2f}",
            "once at": text(row["exhausted_at"]),
            "step": text(row["exhausted_step"]),
            "window": output.format_value("bytes", row["window_bytes"]),
        }
        for row in rows
    ]
