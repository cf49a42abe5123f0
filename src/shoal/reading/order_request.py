"""The requested order and samples of a dataset, before they are resolved to integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shoal.errors import StateError, UsageError
from shoal.order.arrays.index_ranges import Runs
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.protocol import Order, OwnLength
from shoal.order.sampling.weights_and_classes import Sampling
from shoal.order.state_dict import State
from shoal.order.window.order import Window

SHUFFLED_ALREADY = "this dataset is shuffled already; a second shuffle() would hide the first"


class Request(Protocol):
    """The requested order of a dataset."""

    @property
    def is_shuffled(self) -> bool:
        """True if `shuffle` was called."""

    @property
    def seed(self) -> int:
        """Seed of the order."""

    @property
    def has_own_length(self) -> bool:
        """True if an epoch does not have each sample once."""

    @property
    def varies(self) -> bool:
        """True if epochs differ in length."""

    @property
    def names_source(self) -> bool:
        """True if `words` also describe the samples."""

    def words(self, num_samples: Callable[[], str]) -> list[str]:
        """Return the order in words; ``num_samples`` counts the samples, which may take long."""

    def shuffled(self, request: OrderRequest) -> Request:
        """Return the request after `shuffle`; `UsageError` if it was called before."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The samples that take part: stored samples, how often each comes, delivered positions, and gaps."""

    stored: Runs | None = None
    sampling: Sampling | None = None
    delivered: Runs | None = None
    gaps: Gaps = NO_GAPS


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """Arguments of `shuffle`: an order or a window in bytes, and the numbers that a state fixes for the window.

    ``extents_per_chunk`` is None until a state fixes it. With ``at_least_two``, a window that is too small still gets
    two chunks, and fewer canonical nodes than requested: the data may be unknown when the window is requested.
    """

    order: Order | None = None
    seed: int = 0
    window: Any = None
    chunk: Any = None
    num_canonical_nodes: int | None = None
    extents_per_chunk: int | None = None
    at_least_two: bool = False

    is_shuffled = True
    varies = False
    names_source = False

    def words(self, num_samples: Callable[[], str]) -> list[str]:  # noqa: ARG002
        """Return the order in words."""
        return [f"order {'window' if self.order is None else self.order.name} with seed={self.seed}"]

    def shuffled(self, request: OrderRequest) -> OrderRequest:  # noqa: ARG002
        """Raise `UsageError`: samples are shuffled once."""
        raise UsageError(SHUFFLED_ALREADY, hint="a larger window= mixes more")

    @property
    def has_own_length(self) -> bool:
        """True if epochs of the order do not have each sample once."""
        order: object = self.order
        return isinstance(order, OwnLength)

    def adopting(self, state: State) -> OrderRequest:
        """Return the request with the state's window in place of a window in bytes; a fixed order stays."""
        saved = state.order
        if self.order is not None or saved.get("name") != Window.name or saved.get("version") != Window.version:
            return self
        numbers = [saved.get(name) for name in ("chunks", "num_canonical_nodes", "extents_per_chunk")]
        if not all(isinstance(number, int) and number > 0 for number in numbers):
            msg = f"the state's window order lacks its numbers: {dict(saved)}"
            raise StateError(msg, hint="the state was changed after it was saved")
        chunks, nodes, extents_per_chunk = (int(number or 0) for number in numbers)
        if self.num_canonical_nodes not in (None, nodes):
            msg = f"the state was saved with order num_canonical_nodes={nodes}; "
            msg += f"this stream has {self.num_canonical_nodes}"
            raise StateError(msg, hint="give shuffle() the arguments of the saved run")
        try:
            order = Window(chunks, nodes)
        except UsageError as error:
            msg = f"the state's window order is invalid: {error.message}"
            raise StateError(msg, hint="the state was changed after it was saved") from None
        return replace(self, order=order, extents_per_chunk=extents_per_chunk)
