"""Orders by the names used in `Dataset.shuffle`, in states and on the command line."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from typing import Any

from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.order.orders_without_window import Block, Buffer, Full, Sequential
from shoal.order.protocol import Order
from shoal.order.window.order import Window
from shoal.plugins.doors import Door

ORDERS: Door[Order] = Door(
    "shoal.orders",
    {order.name: order for order in (Sequential, Full, Window, Block, Buffer)},
    members=("name", "version", "parameters", "moves", "bind"),
)
"""Classes of orders by name."""

_DESCRIPTION = re.compile(r"\s*(?P<name>[\w-]+)\s*(?P<arguments>\(.*\))?\s*", re.DOTALL)


def named_order(name: str, arguments: Mapping[str, Any]) -> Order:
    """Return the order with this name and these arguments.

    >>> named_order("block", {"chunks": 16})
    Block(chunks=16)

    Raises
    ------
    UsageError
        The order or an argument does not exist, a value is out of its range, or the package that registers the order
        is broken.
    """
    if name not in ORDERS:
        msg = f"there is no order {name!r}; there are {', '.join(map(repr, ORDERS))}"
        hint = did_you_mean(name, ORDERS) + "an order is one of these names, or an object of shoal.orders"
        raise UsageError(msg, hint=hint)
    names = argument_names(name)
    if wrong := [argument for argument in arguments if argument not in names]:
        takes = ", ".join(f"{argument}=..." for argument in names) or "no arguments but seed="
        msg = f"the order {name!r} has no argument {wrong[0]!r}"
        raise UsageError(msg, hint=f"{did_you_mean(wrong[0], names)}it takes {takes}")
    return ORDERS.make(name, **arguments)


def argument_names(name: str) -> tuple[str, ...]:
    """Return the names of the arguments of the order with this name.

    >>> argument_names("window")
    ('chunks', 'num_canonical_nodes')
    """
    return tuple(inspect.signature(ORDERS[name]).parameters)


def order_of_text(text: str) -> Order:
    """Return the order for a text: a name, and arguments in parentheses.

    >>> order_of_text("block"), order_of_text("window(chunks=64, num_canonical_nodes=2)")
    (Block(chunks=256), Window(chunks=64, num_canonical_nodes=2))
    >>> order_of_text("grain-shuffle(world_size=8)")
    GrainShuffle(world_size=8, parity=False)

    Raises `UsageError` if the text does not describe an order, or `named_order` refuses it.
    """
    match = _DESCRIPTION.fullmatch(text)
    try:
        call = ast.parse(f"order{match['arguments'] or '()'}", mode="eval").body if match else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if match and isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
        try:
            arguments = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords if word.arg}
        except ValueError:
            arguments = {}
        if len(arguments) == len(call.keywords):
            return named_order(match["name"], arguments)
    msg = f"{text!r} does not describe an order"
    raise UsageError(msg, hint='a name, and its arguments by name, as in "block(chunks=64)"')
