"""Options for the order of a verb: the arguments of `Dataset.shuffle`, or a saved state."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from shoal.errors import StateError, UsageError
from shoal.order.block_and_buffer import Block, Buffer
from shoal.order.registry import ORDERS
from shoal.order.state import State
from shoal.order.window.order import Window
from shoal.reading.resolved_order import OrderRequest
from shoal.stream.dataset_requests import order_request

_OPTIONS = ("order", "seed", "window", "chunk", "num_canonical_nodes", "chunks", "samples")
_MOST_STATE_BYTES = 1 << 20


def add_order_arguments(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Declare the options of the order; ``default`` says what happens without any of them."""
    about = f"as Dataset.shuffle() takes them; {default}"
    group = parser.add_argument_group("order", about)
    group.add_argument("--order", choices=tuple(ORDERS), help="which order (window)")
    group.add_argument("--seed", type=int, metavar="S", help="seed (0)")
    group.add_argument("--window", metavar="BYTES", help="bytes that mix at a time: 16GiB (512MiB)")
    group.add_argument("--chunk", metavar="BYTES", help="bytes that move as one: 1MiB (a 512th of the window)")
    group.add_argument("--num-canonical-nodes", type=int, metavar="C", help="shares of the dataset that mix apart")
    group.add_argument("--chunks", type=int, metavar="K", help="chunks of the window or block, instead of --window")
    group.add_argument("--samples", type=int, metavar="B", help="samples that the buffer holds (1000)")


def given_order_options(arguments: argparse.Namespace) -> list[str]:
    """Return the given options, as they are written."""
    return [f"--{name.replace('_', '-')}" for name in _OPTIONS if getattr(arguments, name) is not None]


def asked_order(arguments: argparse.Namespace) -> OrderRequest:
    """Return the order that the options describe; without any, that of ``shuffle()``.

    Raises
    ------
    UsageError
        An option does not belong to the order.
    """
    seed = 0 if arguments.seed is None else arguments.seed
    return order_request(
        _order_of(arguments),
        seed=seed,
        window=arguments.window,
        chunk=arguments.chunk,
        num_canonical_nodes=None if _counts_chunks(arguments) else arguments.num_canonical_nodes,
    )


def read_state(path: str) -> State:
    """Read the state from a JSON file that ``json.dump(ds.state_dict(), file)`` wrote.

    Raises
    ------
    StateError
        The file holds something else.
    OSError
        The file cannot be read.
    """
    with Path(path).open("rb") as file:
        data = file.read(_MOST_STATE_BYTES + 1)
    try:
        given = json.loads(data if len(data) <= _MOST_STATE_BYTES else b"")
    except (ValueError, RecursionError):
        msg = f"{path}: this is not a state, which is a small JSON object"
        raise StateError(msg, hint="write one with json.dump(ds.state_dict(), file)") from None
    try:
        return State.from_dict(given)
    except StateError as error:
        msg = f"{path}: {error.message}"
        raise StateError(msg, hint=error.hint) from None


def _order_of(arguments: argparse.Namespace) -> Any:
    """Return the name of an order, or an order with its numbers."""
    name = arguments.order or "window"
    for option, owners in (("chunks", ("window", "block")), ("samples", ("buffer",))):
        if getattr(arguments, option) is not None and name not in owners:
            msg = f"--{option} belongs to --order {' or '.join(owners)}; the order is {name}"
            raise UsageError(msg)
    if _counts_chunks(arguments):
        if arguments.window is not None:
            msg = "--window and --chunks both say how large the window is"
            raise UsageError(msg, hint="--window takes bytes, --chunks a number of chunks")
        return Window(arguments.chunks, arguments.num_canonical_nodes)
    if arguments.chunks is not None:
        return Block(arguments.chunks)
    return name if arguments.samples is None else Buffer(arguments.samples)


def _counts_chunks(arguments: argparse.Namespace) -> bool:
    return arguments.chunks is not None and arguments.order in (None, "window")
