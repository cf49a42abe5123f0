"""Arguments of a dataset's methods, converted for other modules, or refused with a remedy."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import StateError, UsageError
from shoal.figures import parse_bytes
from shoal.order.arrays.index_ranges import Runs
from shoal.order.partition import Partition
from shoal.order.registry import ORDERS, named_order
from shoal.order.seeds import check_seed
from shoal.order.state_dict import PACKED, State
from shoal.order.states.forms import MAX_POSITION
from shoal.reading.order_request import OrderRequest

_SUBSETS = {
    "stored": "split(), select() or the like",
    "sampled": "sample()",
    "delivered": "take(), skip() or select() of positions",
}
_OF_SEVERAL = {"mix": "a mixture"}  # names of orders in a state
_OF_WINDOW_IN_BYTES = {"window", "chunk", "num_canonical_nodes"}
_FEWEST_NEIGHBOURS = 2
ATTENTION = "attention"
"""Value of ``balance=``: the work of attention of sequences; other values are columns of the index."""
APART = "apart"
"""Value of ``steps=``: ranks that fill their batches may end an epoch at different steps."""


def order_request(order: Any, seed: Any, arguments: Mapping[str, Any]) -> OrderRequest:
    """Return the request of `shuffle`, checked as far as possible without the dataset; arguments may be None."""
    if isinstance(order, (int, np.integer)) and not isinstance(order, bool):
        raise UsageError(f"shuffle({order}): the first argument is an order", hint=f"shuffle(seed={order})")
    if isinstance(order, type):
        msg = f"shuffle({order.__name__}) got a class instead of an order object"
        raise UsageError(msg, hint=f"shuffle(shoal.orders.{order.__name__}(...))")
    if not isinstance(order, str) and not hasattr(order, "bind"):
        raise UsageError(f"an order is a name or an object of shoal.orders; got {order!r}")
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in {"window", "chunk"} & given.keys():
        parse_bytes(given[name], name)
    if order == "window" and not given.keys() - _OF_WINDOW_IN_BYTES:
        return OrderRequest(None, check_seed(0 if seed is None else seed), **given)
    if order == "window" and "window" in given:
        msg = "window= sets the size of the window in bytes, and chunks= sets the size in chunks"
        raise UsageError(msg, hint="give window= or chunks=")
    chunk = given.pop("chunk", None)
    known_order = named_order(order, given) if isinstance(order, str) else order
    if given and known_order is order:
        msg = f"{', '.join(f'{name}=' for name in given)} cannot be added to a complete order: {order!r}"
        raise UsageError(msg, hint="set the argument in the order object, if the order takes it")
    seed = getattr(known_order, "default_seed", 0) if seed is None else seed
    return OrderRequest(known_order, check_seed(seed), chunk=chunk)


def request_of_state(state: State, *, stored: Runs | None = None) -> OrderRequest:
    """Return the request to `shuffle` that gives the order of a state, from the state's own numbers.

    `State.check` decides if order, dataset and samples are the same. ``stored`` are the samples that take part, if
    known. `StateError` if the order is unknown, its numbers are invalid, or the state does not list selected samples.
    """
    given = dict(state.order)
    name, extents_per_chunk = given.pop("name", None), given.pop("extents_per_chunk", None)
    given.pop("version", None)
    if stored is not None:
        given.pop("stored", None)
    if name in _OF_SEVERAL:
        msg = f"the state or certificate is of {_OF_SEVERAL[name]}, but one dataset was given"
        raise StateError(
            msg, hint="give the mixture file; for a run made in Python use `shoal trace --run MODULE:NAME`"
        )
    if PACKED in given:
        msg = "the state counts sequences, but documents alone do not tell how they were packed"
        raise StateError(msg, hint="use the dataset of the run: ds.batch_ids(step) and ds.check_certificate()")
    if subsets := [word for word in _SUBSETS if word in given]:
        msg = f"the state was saved after {_SUBSETS[subsets[0]]}, but holds only a digest of that"
        hint = "use the dataset of the run: `shoal trace --run MODULE:NAME`, with the Python code that makes it; or "
        raise StateError(msg, hint=f"{hint}ds.batch_ids(step) and ds.check_certificate()")
    msg = f"the order in the state cannot be made from its numbers: {dict(state.order)}"
    if name not in ORDERS or extents_per_chunk == 0:
        raise StateError(msg, hint=f"the orders are {', '.join(ORDERS)}; other orders can be traced only in Python")
    try:
        order = named_order(name, given)
    except UsageError as error:
        hint = "the state was changed after it was saved, or was saved by another version of shoal"
        raise StateError(f"{msg}: {error}", hint=hint) from None
    # The size of a chunk no longer matters; its presence tells a buffer over chunks from a buffer over shards.
    return OrderRequest(order, state.seed, chunk=extents_per_chunk, extents_per_chunk=extents_per_chunk)


@dataclass(frozen=True, slots=True)
class Batching:
    """Arguments of `batch`: a size, for each rank or over all ranks, the handling of the remainder, and the balance.

    ``balance`` is the number of neighbouring ranks that exchange samples, 0 for none. If ranks fill their batches,
    ``num_steps`` is the number of batches of a pass: 0 for "apart", None if not given. ``verb`` is the call, and
    ``kind`` describes batches without a common number of samples.
    """

    size: int
    is_global: bool
    remainder: str
    balance: int = 0
    num_steps: int | None = None
    verb: str = "batch()"
    kind: str = ""

    @property
    def words(self) -> str:
        """Description of the batches for the summary of a dataset."""
        return f"{'global ' if self.is_global else ''}batches {self.kind or f'of {self.size:,}'}"

    @property
    def steps(self) -> int | str | None:
        """The argument ``steps``."""
        return APART if self.num_steps == 0 else self.num_steps

    @staticmethod
    def of_arguments(
        size: Any,
        global_batch_size: Any,
        remainder: str,
        balance: str | None = None,
        neighbours: Any = 0,
        steps: Any = None,
    ) -> Batching:
        """Return the arguments of `Dataset.batch`, checked."""
        if (size is None) == (global_batch_size is None):
            msg = "batch() takes a size for each rank, or global_batch_size="
            raise UsageError(msg, hint="batch(256) or batch(global_batch_size=4096)")
        number = count_of(global_batch_size if size is None else size, "batch()")
        if not number:
            raise UsageError("batch() needs at least one sample; got 0")
        ranks = count_of(neighbours, "batch(neighbours=)") * (balance is not None)
        if balance is not None and ranks < _FEWEST_NEIGHBOURS:
            msg = f"batch(neighbours={ranks}): ranks exchange samples with at least one other rank"
            raise UsageError(msg, hint="the number of ranks on a machine")
        batching = Batching(number, size is None, remainder, ranks, _num_steps(steps))
        batching.partition(1)  # raises an error for an unknown remainder here, not during iteration
        return batching

    def partition(self, world_size: int) -> Partition:
        """Return the partition of an epoch among ``world_size`` ranks."""
        size = self.size if self.is_global else self.size * world_size
        return Partition(size, world_size, self.remainder, balance=self.balance)


def _num_steps(steps: Any) -> int | None:
    if steps is None or (isinstance(steps, str) and steps == APART):
        return None if steps is None else 0
    if isinstance(steps, str) or not (number := count_of(steps, "batch(steps=)")):
        raise UsageError(f"batch(steps={steps!r}) must be a number of batches of at least 1, or {APART!r}")
    return number


def count_of(value: Any, what: str) -> int:
    """Return a whole number of at least 0, or raise an error that names the argument."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{what} takes an integer; got {value!r}") from None
    if number < 0:
        raise UsageError(f"{what} takes an integer of at least 0; got {number}")
    if number > MAX_POSITION:
        raise UsageError(f"{what} takes an integer below 2**63; got {number.bit_length()} bits")
    return number
