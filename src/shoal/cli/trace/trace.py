"""The `shoal trace` command: show the samples of a step, or the step of a sample, from the order alone.

The step of a loss spike is known relative to an epoch or to a checkpoint. So steps count from the start of the epoch,
as in `Dataset.batch_ids`, or with ``--from-state`` from the position of a saved state: step 0 is the first batch after
the state, step -1 the last batch before the state.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from typing import Any

from shoal.cli import output
from shoal.cli.display.pages import add_page_arguments, typed_command, write_page
from shoal.cli.options.argument_types import at_least_one, at_least_zero, sample_ids
from shoal.cli.options.source_options import add_json_argument, add_source_arguments, source_of
from shoal.cli.options.stream_options import add_order_arguments, add_sequence_arguments
from shoal.cli.trace.trace_page import TracedSamples, trace_page
from shoal.cli.trace.traced_run import Row, TracedRun, imported_run, traced_run
from shoal.order.partition import REMAINDERS
from shoal.order.sequences.groupings import STRATEGIES
from shoal.storage.sources.source import printed
from shoal.tools.samples.preview import printable

_MOST_READ = 256  # samples read for display
_MOST_OF_SHARD = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Steps count from 0 at the start of the epoch. For a run resumed in the middle of an epoch with another batch "
        "size, give the first state of the resumed run, and --from-state."
    )
    add_source_arguments(parser, is_optional=True)
    text = (
        "a Dataset of a Python module with its order and batches, or a function that returns a Dataset, in place of "
        "SOURCE; for split(), select() or sample()"
    )
    parser.add_argument("--run", metavar="MODULE:NAME", type=imported_run, help=text)
    question = parser.add_mutually_exclusive_group(required=True)
    question.add_argument("--step", type=int, metavar="T", help="show the samples of this step")
    question.add_argument("--sample", type=sample_ids, metavar="I,J,...", help="show the steps of samples, by id")
    question.add_argument(
        "--key", metavar="NAME", help="show the step of a sample by key; reads shards up to the sample"
    )
    question.add_argument("--shard", metavar="NAME", help="show the steps of all samples of a shard")
    text = "steps before and after --step to show as well (default: 0)"
    parser.add_argument("--context", type=at_least_zero, metavar="N", default=0, help=text)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--batch-size", type=at_least_one, metavar="B", help="samples of a batch on each rank")
    size.add_argument("--global-batch", type=at_least_one, metavar="N", help="samples of a batch over all ranks")
    parser.add_argument("--world-size", type=at_least_one, metavar="W", default=1, help="ranks of the run (default: 1)")
    parser.add_argument("--rank", type=at_least_zero, metavar="R", help="show only this rank (default: all ranks)")
    parser.add_argument("--epoch", type=at_least_zero, metavar="E", help="epoch (default: epoch of the state, else 0)")
    parser.add_argument("--remainder", choices=REMAINDERS, help="last, incomplete batch (default: keep)")
    parser.add_argument("--keys", action="store_true", help="show the key of each sample; reads the samples")
    parser.add_argument("--show", action="store_true", help="show the content of the samples")
    text = "show the step of each sample in these epochs, with the same global batch"
    parser.add_argument("--epochs", type=sample_ids, metavar="E,E,...", help=text)
    text = f"show at most N rows (default: all; {_MOST_OF_SHARD} of a shard; {_MOST_READ} are read)"
    parser.add_argument("--limit", type=at_least_one, metavar="N", help=text)
    add_page_arguments(parser, html=", with texts and thumbnails of the samples", has_picture=False)
    parser.add_argument("--state", metavar="FILE", help="JSON of a state_dict() with the order, seed and epoch")
    parser.add_argument("--from-state", action="store_true", help="count steps from the position of the state")
    group = add_sequence_arguments(parser, batches="--batch-size")
    text = "strategy of --pack-sequences (default: concat, or the strategy of --state)"
    group.add_argument("--strategy", choices=tuple(STRATEGIES), default="concat", help=text)
    add_order_arguments(parser, default="default: the order of --state, else shuffle()")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Trace the step or the samples, and show them."""
    traced = traced_run(arguments)
    record, rows = _answer(traced, arguments)
    num_rows = len(rows)
    rows = _first_of(rows, arguments)
    if "num_shown" not in record:
        record |= {"num_rows": num_rows, "num_shown": len(rows)}
    traced.add_locations(rows, keys=arguments.keys)
    epochs = arguments.epochs
    if epochs is None and arguments.html is not None and not traced.is_mixture:
        epochs = [epoch for epoch in (traced.epoch - 1, traced.epoch + 1) if epoch >= 0]
    if epochs is not None:
        traced.add_other_epochs(rows, epochs)
    about = {
        "order": str(traced.documents),
        **traced.packing,
        "epoch": traced.epoch,
        "global_batch": traced.partition.global_batch,
        "world_size": traced.partition.world_size,
        "counted_from": traced.counted_from,
        **record,
    }
    samples = TracedSamples(traced.dataset, arguments.limit or _MOST_READ)
    if arguments.html is not None:
        source = printed(source_of(arguments)) if arguments.run is None else str(arguments.run)
        made_by = typed_command(arguments.words)
        write_page(arguments.html, trace_page(about, rows, samples, source=source, made_by=made_by))
    if arguments.json:
        if arguments.show:
            samples.add_fields(rows)
        output.emit({"fingerprint": traced.index.fingerprint, **about, "samples": rows}, as_json=True)
        return 0
    _show({**about, "order": str(about["order"]).partition("\n")[0]}, rows)
    if (num_left := record.get("num_samples", num_rows) - record["num_shown"]) > 0:
        output.say(f"\n{num_left:,} more rows are not shown; --limit {num_left + record['num_shown']} shows all")
    if arguments.show:
        samples.show(rows)
    return 0


def _answer(traced: TracedRun, arguments: argparse.Namespace) -> tuple[Row, list[Row]]:
    """Return facts about the step or samples, and a row for each delivery."""
    if arguments.step is not None:
        traced.check_step(arguments.step)
        first, end = traced.positions(arguments.step)
        num_steps = None if traced.is_endless else traced.end_step
        record = {"step": arguments.step, "num_steps": num_steps, "first_position": first, "end_position": end}
        start = max(traced.first_step, arguments.step - arguments.context)
        stop = min(traced.end_step, arguments.step + arguments.context + 1)
        if arguments.context:
            record["steps"] = [start, stop - 1]
        return record, [row for step in range(start, stop) for row in traced.rows_of_step(step)]
    if arguments.shard is not None:
        limit = arguments.limit or _MOST_OF_SHARD
        ids, num_samples = traced.ids_of_shard(arguments.shard, limit)
        rows = traced.rows_of_samples(ids, 1 if traced.is_mixture else limit)
        rows.sort(key=lambda row: (row["position"] is None, row["position"] or 0))
        return {"shard": arguments.shard, "num_samples": num_samples, "num_shown": len(ids)}, rows
    ids = arguments.sample if arguments.key is None else [traced.id_of_key(arguments.key)]
    most_uses = arguments.limit or _MOST_READ
    rows = traced.rows_of_samples(ids, most_uses)
    numbers = Counter(row["sample"] for row in rows if not row["repeat"])
    return {"first_uses": most_uses} if max(numbers.values(), default=0) >= most_uses > 1 else {}, rows


def _first_of(rows: list[Row], arguments: argparse.Namespace) -> list[Row]:
    """Return the rows within the limit, nearest to the requested step."""
    numbers = list(range(len(rows)))
    if arguments.step is not None:
        numbers.sort(key=lambda number: abs(rows[number]["step"] - arguments.step))
    return [rows[number] for number in sorted(numbers[: arguments.limit])]


def _show(about: Mapping[str, Any], rows: list[Row]) -> None:
    """Print the trace without expected values and without columns of equal values."""
    if about.get("num_steps", 0) is None:
        about = {**about, "num_steps": "without end"}
    output.emit(output.without_usual(about, counted_from=0, num_rows=len(rows), num_shown=len(rows)))
    hidden = {"seen", "fields"} | (set() if any(row["repeat"] for row in rows) else {"repeat"})
    hidden |= {"step"} if "step" in about and "steps" not in about else set()
    table, has_notes = [], any("note" in row for row in rows)
    for row in rows:
        seen = {f"step in epoch {epoch}": step for epoch, step in row.get("seen", {}).items()}
        cells = {name: value for name, value in row.items() if name not in hidden} | seen
        cells |= {"note": row.get("note", "")} if has_notes else {}
        table.append({name: printable(value) if isinstance(value, str) else value for name, value in cells.items()})
    output.say()
    output.say(output.format_table(table) if table else "no samples")
