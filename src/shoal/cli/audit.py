"""The `shoal audit` command: grade the order of a dataset, or the ids that any loader emitted."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli import output
from shoal.cli.display.pages import add_page_arguments, check_picture, typed_command, write_page, write_picture
from shoal.cli.options.argument_types import at_least_one, option_of
from shoal.cli.options.sample_ids import ID_SUFFIXES, keyed_samples, read_array, read_ids, read_keys
from shoal.cli.options.source_options import (
    add_json_argument,
    add_source_arguments,
    names_mixture,
    open_with_samples,
    source_of,
)
from shoal.cli.options.stream_options import add_order_arguments, given_order_options, requested_order, shuffled_mixture
from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.index.table import Index
from shoal.order.orders_without_window import Buffer, Sequential
from shoal.order.registry import order_of_text
from shoal.order.seeds import MAX_SEED
from shoal.reading.resolved_order import ResolvedOrder
from shoal.storage.sources.source import printed
from shoal.stream.choosing.index_columns import key_column
from shoal.stream.quality.shuffle_quality import quality_of
from shoal.tools.auditing.auditing import Audit, audit
from shoal.tools.auditing.order_comparison import ComparedOrder, compare_with_window
from shoal.tools.reports.audit_page import audit_page, audit_picture, comparison_picture, with_advice

_EPOCHS = 2
_EXIT_SERIOUS = 1
_LINE_LETTERS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "SOURCE is a dataset, or files of ids: one epoch per file, or several with --epochs. The audit reads the "
        "order of a dataset, not its samples. An id is the number of a sample in storage order, from 0. A .npy file "
        "holds an array of integers of shape (N,) or (num_epochs, N) and may be larger than memory; a .txt file holds "
        "numbers separated by blanks or line ends. All tests together raise a false alarm in 0.1 % of audits of "
        "perfect shuffles."
    )
    add_source_arguments(parser, is_optional=True)
    parser.add_argument("--batch-size", type=at_least_one, metavar="B", default=64, help="batch size (default: 64)")
    text = f"epochs to audit (default: {_EPOCHS}), or epochs in the file of ids (default: 1)"
    parser.add_argument("--epochs", type=at_least_one, metavar="E", help=text)
    text = "samples of the dataset (default: largest id + 1)"
    parser.add_argument("--num-samples", type=at_least_one, metavar="N", help=text)
    parser.add_argument("--part", action="store_true", help="the ids come from one rank or worker: most are missing")
    by = parser.add_mutually_exclusive_group()
    parser.add_argument("--of", metavar="NAME", help="source of a mixture file to audit")
    by.add_argument("--labels", metavar="FILE.npy", help="array of the label of each sample, by id")
    text = "label of the samples of a dataset: position (default), shard, bytes, or a column of the index"
    by.add_argument("--by", metavar="NAME", help=text)
    text = "SOURCE holds keys: the file with the key of each sample in storage order, or the dataset"
    parser.add_argument("--keys", metavar="WHERE", help=text)
    text = "ids of an independent stream, such as another seed or source; may be repeated"
    parser.add_argument("--other", metavar="FILE", action="append", default=[], help=text)
    group = parser.add_argument_group("comparison", "compare orders with the window, without a dataset")
    text = 'an order, such as "py1e(shuffle_block_size=262144)"; may be repeated; needs --num-samples and --shards'
    group.add_argument("--like", metavar="ORDER", action="append", default=[], help=text)
    group.add_argument("--shards", type=at_least_one, metavar="S", help="shards of the dataset, of equal size")
    text = "samples of a chunk of the window (default: a 1024th of the window, or 16)"
    group.add_argument("--chunk-samples", type=at_least_one, metavar="M", help=text)
    add_page_arguments(parser)
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a finding is likely to matter")
    add_order_arguments(parser, default="for a dataset (default: shuffle())")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Audit the source, and show the findings."""
    if arguments.like:
        return _run_like(arguments)
    if not arguments.source:
        raise UsageError(
            "no SOURCE to audit was given", hint="a dataset, files of ids, or --like ORDER --num-samples N --shards S"
        )
    for name in ("shards", "chunk_samples"):
        if getattr(arguments, name) is not None:
            msg = f"{option_of(name)} describes the dataset of a comparison, but --like is not given"
            raise UsageError(msg, hint="leave it out, or name an order by --like")
    are_ids = [Path(word).suffix in ID_SUFFIXES for word in arguments.source]
    if any(are_ids) and not all(are_ids):
        msg = f"{', '.join(arguments.source)}: files of ids and shards cannot be audited together"
        raise UsageError(msg, hint=f"files with the suffixes {', '.join(ID_SUFFIXES)} are read as ids")
    if arguments.of is not None and not names_mixture(arguments):
        msg = f"--of names a source of a mixture file, but {printed(source_of(arguments))} is no mixture file"
        raise UsageError(msg, hint="leave out --of, or name the .yaml file")
    check_picture(arguments.picture)
    about, result = _of_ids(arguments) if any(are_ids) else _of_dataset(arguments)
    source, order = printed(source_of(arguments)), str(about.get("order", ""))
    predicted = about.get("predicted_vr")
    if arguments.picture is not None:
        write_picture(arguments.picture, audit_picture(result, title=order or source, predicted=predicted))
    if arguments.html is not None:
        made_by = typed_command(arguments.words)
        page = audit_page(result, title=f"Audit of {source}", order=order, made_by=made_by, predicted=predicted)
        write_page(arguments.html, page)
    if arguments.json:
        output.emit(about | result.to_dict(), as_json=True)
    else:
        _show(about, result)
    return _EXIT_SERIOUS if arguments.strict and any(finding.is_serious for finding in result.findings) else 0


def _of_ids(arguments: argparse.Namespace) -> tuple[dict[str, Any], Audit]:
    if options := given_order_options(arguments):
        msg = f"{options[0]} is about the order of a dataset, but ids already have an order"
        raise UsageError(msg, hint="leave it out, or name shards instead of ids")
    keys, index = (None, None) if arguments.keys is None else keyed_samples(arguments)
    if arguments.by is not None and index is None:
        msg = f"--by {arguments.by} is a property of the samples of a dataset, but ids alone have no properties"
        raise UsageError(msg, hint="--labels FILE.npy has the label of each sample; --keys may name the dataset")
    read = read_ids if keys is None else read_keys
    files = [read(path) for path in arguments.source]
    epochs = arguments.epochs or 1
    if len(files) > 1:
        lengths = {ids.shape for ids in files}
        if len(lengths) > 1 or files[0].ndim > 1 or epochs not in {1, len(files)}:
            msg = f"each file of ids holds one epoch, of equal length; these files have the shapes {sorted(lengths)}"
            raise UsageError(msg, hint="audit the files one by one; --other names files of other seeds or sources")
        files, epochs = [np.stack(files)], 1
    result = audit(
        files[0],
        num_samples=arguments.num_samples,
        keys=keys,
        labels=_labels(arguments, index),
        epochs=epochs,
        batch=arguments.batch_size,
        others={path: read(path) for path in arguments.other},
        is_part=arguments.part,
    )
    return {}, result


def _of_dataset(arguments: argparse.Namespace) -> tuple[dict[str, Any], Audit]:
    """Audit the order of a dataset; the stream to compare with is the order of the next seed."""
    for name in ("part", "num_samples", "keys"):
        if getattr(arguments, name):
            source = printed(source_of(arguments))
            msg = f"{option_of(name)} is about ids that a loader emitted, but {source} is a dataset"
            raise UsageError(msg, hint=f"files of ids end with {', '.join(ID_SUFFIXES)}")
    resolved = _resolved(arguments)
    stored = resolved.stored
    stored_labels = labels = _labels(arguments, resolved.index)
    if stored is not None and labels is not None:
        labels = labels[stored.members(np.arange(len(stored)))]
    num_epochs = arguments.epochs or _EPOCHS
    others: dict[str, Any] = {path: read_ids(path) for path in arguments.other}
    if not isinstance(resolved.order, Sequential):
        seed = resolved.seed + 1 if resolved.seed < MAX_SEED else 0
        others[f"seed {seed}"] = _ids_of(resolved, seed, num_epochs)
    ids = _ids_of(resolved, resolved.seed, num_epochs)
    result = audit(ids, num_samples=resolved.num_samples, labels=labels, batch=arguments.batch_size, others=others)
    about: dict[str, Any] = {"order": str(resolved)}
    if not isinstance(resolved.order, Sequential | Buffer) and arguments.batch_size <= resolved.num_samples // 2:
        key = np.arange(resolved.index.num_samples, dtype=np.float64) if stored_labels is None else stored_labels
        about["predicted_vr"] = dict(quality_of(resolved, arguments.batch_size, key=key).vr)
    return about, result


def _resolved(arguments: argparse.Namespace) -> ResolvedOrder:
    """Return the order of the dataset, or of one source of a mixture with its share of the window."""
    if not names_mixture(arguments):
        opened = open_with_samples(arguments)
        return ResolvedOrder(opened.index, requested_order(arguments), stored=opened.stored)
    mixture = shuffled_mixture(arguments).resolved
    parts = {name: part for (name, _), part in zip(mixture.request.leaves(), mixture.parts, strict=True)}
    if arguments.of not in parts:
        problem = "no source was named" if arguments.of is None else f"{arguments.of!r} is not a source"
        msg = f"a mixture is audited source by source, and {problem}: {', '.join(map(repr, parts))}"
        hint = did_you_mean(arguments.of, parts) + f"--of {next(iter(parts))}; `shoal mix` shows how sources alternate"
        raise UsageError(msg, hint=hint)
    return parts[arguments.of]


def _ids_of(resolved: ResolvedOrder, seed: int, num_epochs: int) -> NDArray[np.int64]:
    counts = resolved.chunk_samples
    bound = [resolved.order.bind(counts, seed=seed, epoch=epoch) for epoch in range(num_epochs)]
    return np.stack([epoch.ids(0, epoch.num_samples) for epoch in bound])


def _labels(arguments: argparse.Namespace, index: Index | None) -> NDArray[Any] | None:
    if arguments.labels is not None:
        return read_array(arguments.labels)
    return None if index is None or arguments.by in (None, "position") else key_column(index, arguments.by)


def _show(about: Mapping[str, Any], result: Audit) -> None:
    """Print the audit for people."""
    output.say(result.headline)
    output.say()
    for line in textwrap.wrap(result.verdict, _LINE_LETTERS):
        output.say(line)
    output.say()
    facts = {
        **{name: value for name, value in about.items() if name != "predicted_vr"},
        "epochs": result.num_epochs,
        "num_samples": result.num_samples,
        "num_missing": result.missing,
        "num_repeated": result.repeated,
        "key": result.key,
        "rank_correlation": result.rank_correlation,
        "moved by (1 %, half, 99 %)": ", ".join(f"{share:+.1%}" for share in result.displacement),
    }
    if result.vr:
        facts["VR of four successive batches"] = f"{result.near_vr:.2f} (the loss follows this one)"
    if not math.isnan(result.start_vr):
        facts["VR at start and end"] = f"{result.start_vr:.2f}, {result.end_vr:.2f}"
    output.emit(facts)
    if result.vr:
        predicted = about.get("predicted_vr", {})
        rows = [
            {
                "batch": size,
                "VR": f"{ratio:.2f}",
                **({"predicted": f"{predicted[size]:.2f}"} if size in predicted else {}),
                "by chance": f"1 +- {result.vr_error[size]:.2f}",
                "different": f"{result.distinct[size]:.1f}" if size in result.distinct else "",
                "expected": f"{result.expected_distinct[size]:.1f}" if size in result.distinct else "",
            }
            for size, ratio in result.vr.items()
        ]
        output.say()
        output.say(output.format_table(rows))
    for finding, advice in with_advice(result):
        output.say()
        sign = "!" if finding.is_serious else "-"
        _say_indented(f"{sign} {finding.name} ({finding.where}): {finding.text}")
        for label, text in advice:
            _say_indented(f"  {label}: {text}")


def _say_indented(text: str) -> None:
    output.say(textwrap.fill(text, _LINE_LETTERS, subsequent_indent="  "))


def _run_like(arguments: argparse.Namespace) -> int:
    """Compare orders with a window at equal memory, without a dataset."""
    if arguments.source:
        msg = f"--like compares orders without a dataset, but {arguments.source[0]} was given"
        raise UsageError(msg, hint="leave out the dataset: --num-samples and --shards describe it")
    if arguments.num_samples is None or arguments.shards is None:
        raise UsageError("--like needs the size of the dataset", hint="--num-samples 10000000 --shards 2000")
    if arguments.shards > arguments.num_samples:
        raise UsageError(f"{arguments.num_samples:,} samples cannot fill {arguments.shards:,} shards")
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
    lead += "and holds no more samples than the fullest order."
    if arguments.picture is not None:
        write_picture(arguments.picture, comparison_picture(compared, names, about=about, lead=lead))
    if arguments.json:
        orders = {
            name: {"seed": order.seed, "most_held": order.most_held, **order.audit.to_dict()}
            for name, order in zip(names, compared, strict=True)
        }
        output.emit({"num_samples": arguments.num_samples, "shards": arguments.shards, "orders": orders}, as_json=True)
        return 0
    output.say(f"{about}. {lead}")
    output.say()
    output.say(output.format_table([_row(name, order) for name, order in zip(names, compared, strict=True)]))
    for name, order in zip(names, compared, strict=True):
        output.say()
        _say_indented(f"{name}: {order.audit.verdict}")
    return 0


def _row(name: str, order: ComparedOrder) -> dict[str, str]:
    result = order.audit
    ratios = {size: ratio for size, ratio in result.vr.items() if size in (16, 64, 256, 1024, 4096)}
    return {
        "order": name,
        "grade": result.grade,
        "held at most": f"{order.most_held:,}",
        **{f"VR({size})": f"{ratio:.2f}" for size, ratio in ratios.items()},
        "missing": f"{result.missing:,}",
        "repeated": f"{result.repeated:,}",
    }
