"""`shoal audit --like`: other orders and the window at equal memory, compared without a dataset."""

from __future__ import annotations

import argparse
import textwrap

import numpy as np

from shoal.cli import output
from shoal.cli.display.pages import check_picture, write_picture
from shoal.cli.options.argument_types import at_least_one
from shoal.errors import UsageError
from shoal.order.registry import order_of_text
from shoal.tools.auditing.order_comparison import ComparedOrder, compare_with_window
from shoal.tools.reports.comparison_picture import comparison_picture

_LINE_LETTERS = 100


def add_like_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a comparison."""
    group = parser.add_argument_group("comparison", "orders over shards that need not exist, beside the window")
    text = 'an order, such as "py1e(shuffle_block_size=262144)"; may be repeated; needs --num-samples and --shards'
    group.add_argument("--like", metavar="ORDER", action="append", default=[], help=text)
    group.add_argument("--shards", type=at_least_one, metavar="S", help="shards of the dataset, of equal size")
    text = "samples of a chunk of the window (default: a 512th of what it holds, or 16)"
    group.add_argument("--chunk-samples", type=at_least_one, metavar="M", help=text)


def run_like(arguments: argparse.Namespace) -> int:
    """Compare the orders that the arguments name with the window, and show it."""
    if arguments.source:
        msg = f"--like compares orders without a dataset, and {arguments.source[0]} was given"
        raise UsageError(msg, hint="leave it out: --num-samples and --shards describe the dataset")
    if arguments.num_samples is None or arguments.shards is None:
        raise UsageError("--like needs the size of the dataset", hint="--num-samples 10000000 --shards 2000")
    if arguments.shards > arguments.num_samples:
        raise UsageError(f"{arguments.num_samples:,} samples cannot fill {arguments.shards:,} shards")
    if arguments.picture is not None:
        check_picture(arguments.picture)
    names = [text.strip() for text in arguments.like]
    borders = np.arange(arguments.shards + 1) * arguments.num_samples // arguments.shards
    compared = compare_with_window(
        [order_of_text(name) for name in names],
        shard_samples=np.diff(borders),
        batch=arguments.batch_size,
        chunk_samples=arguments.chunk_samples,
    )
    window = compared[-1]
    names.append(f"window(chunks={window.order.parameters['chunks']})")
    about = f"{arguments.num_samples:,} samples in {arguments.shards:,} shards, batches of {arguments.batch_size:,}"
    lead = f"The window moves chunks of {int(window.chunk_samples.max()):,} samples, "
    lead += "and holds no more than the order that holds most."
    if arguments.picture is not None:
        write_picture(arguments.picture, comparison_picture(compared, names, about=about, lead=lead))
    if arguments.json:
        told = {name: _told(each) for name, each in zip(names, compared, strict=True)}
        output.emit({"num_samples": arguments.num_samples, "shards": arguments.shards, "orders": told}, as_json=True)
        return 0
    output.say(f"{about}. {lead}")
    output.say()
    output.say(output.format_table([_row(name, each) for name, each in zip(names, compared, strict=True)]))
    for name, each in zip(names, compared, strict=True):
        output.say()
        output.say(textwrap.fill(f"{name}: {each.audit.verdict}", _LINE_LETTERS, subsequent_indent="  "))
    return 0


def _told(each: ComparedOrder) -> dict[str, object]:
    return {"seed": each.seed, "most_held": each.most_held, **each.audit.to_dict()}


def _row(name: str, each: ComparedOrder) -> dict[str, str]:
    result = each.audit
    ratios = {size: ratio for size, ratio in result.vr.items() if size in (16, 64, 256, 1024, 4096)}
    return {
        "order": name,
        "grade": result.grade,
        "held at most": f"{each.most_held:,}",
        **{f"VR({size})": f"{ratio:.2f}" for size, ratio in ratios.items()},
        "missing": f"{result.missing:,}",
        "repeated": f"{result.repeated:,}",
    }
