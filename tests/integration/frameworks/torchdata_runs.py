"""`StatefulDataLoader` of torchdata: states taken at every point of an epoch, each loaded into another loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.integration.frameworks.runs import BATCH, Run, dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import shoal.torch

NUM_BATCHES = 19
FEW = (1, 7, 18)  # workers take their time to start


def loader_of(run: Run, *, is_wrapped: bool) -> Any:
    """The loader, and what takes the number of an epoch."""
    if run.kind == "torch" or not is_wrapped:
        return run.loader(stateful=True)
    items: Any = shoal.torch.IterableDataset(dataset(run.data).batch(BATCH))
    return StatefulDataLoader(items, batch_size=None, num_workers=run.num_workers)


def one_pass(loader: Any, epoch: int, states: list[Any] | None = None) -> list[Any]:
    """The batches of a pass, and the states after each of them."""
    if isinstance(loader.dataset, shoal.torch.IterableDataset):
        loader.dataset.set_epoch(epoch)
    batches = []
    for batch in loader:
        batches.append(batch)
        if states is not None:
            states.append(loader.state_dict())
    return batches


def resumed(run: Run, points: Iterable[int], *, is_wrapped: bool) -> None:
    """The rest of the first epoch from states in it, and the next; and two epochs from the state of its end."""
    run.leg()
    loader = loader_of(run, is_wrapped=is_wrapped)
    states: list[Any] = []
    before = one_pass(loader, 0, states)
    end = loader.state_dict()
    for number, epoch, state in [*((at, 0, states[at - 1]) for at in points), (NUM_BATCHES, 1, end)]:
        again = loader_of(run, is_wrapped=is_wrapped)
        again.load_state_dict(state)
        stream = "after the epoch" if epoch else f"after batch {number}"
        for batch in before[:number]:
            run.batch(0, batch, stream)
        passes = [one_pass(again, later) for later in range(epoch, 3 if epoch else 2)]
        first = int(number == NUM_BATCHES)  # the first epoch is over, and a pass that is empty is none
        for label, batches in enumerate(filter(None, passes), start=first):
            for batch in batches:
                run.batch(label, batch, stream)


def states(run: Run) -> None:
    """torchdata's loader, replaced by shoal's."""
    resumed(run, FEW if run.num_workers else range(1, NUM_BATCHES), is_wrapped=False)


def states_wrapped(run: Run) -> None:
    """torchdata's loader over `shoal.torch.IterableDataset`."""
    resumed(run, FEW if run.num_workers else range(1, NUM_BATCHES), is_wrapped=True)


def last_batch(run: Run) -> None:
    """The state that is taken after the last batch, within the loop."""
    resumed(run, [NUM_BATCHES], is_wrapped=False)


def last_batch_wrapped(run: Run) -> None:
    resumed(run, [NUM_BATCHES], is_wrapped=True)
