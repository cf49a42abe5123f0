"""A resumed epoch of Lightning is as long as what the loader still has, with any number of ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from shoal.integrations.torch.lightning_lengths import match_length


def fit_loop(loader: Any, *, num_batches: Any, num_done: int = 0, limit: float = 1.0, **trainer: Any) -> Any:
    """What Lightning's fit loop knows when an epoch begins."""

    class Loop:
        pass

    loop: Any = Loop()
    loop.trainer = SimpleNamespace(
        **{"limit_train_batches": limit, "val_check_interval": 1.0, "val_check_batch": num_batches, **trainer}
    )
    loop.max_batches, loop.restarted_mid_epoch = num_batches, num_done > 0
    loop._combined_loader = SimpleNamespace(flattened=[loader], limits=[num_batches])
    loop._data_fetcher = SimpleNamespace(length=num_batches)
    current = SimpleNamespace(ready=num_done)
    loop.epoch_loop = SimpleNamespace(batch_progress=SimpleNamespace(current=current))
    return loop


def lengths(loop: Any) -> tuple[Any, ...]:
    return loop.max_batches, loop._combined_loader.limits[0], loop._data_fetcher.length, loop.trainer.val_check_batch


def test_a_resumed_epoch_has_the_batches_that_are_left_and_the_next_the_usual_number() -> None:
    loader = object()
    loop = fit_loop(loader, num_batches=21, num_done=10)
    match_length(loop, loader, 15)
    assert lengths(loop) == (25, 25, 25, 25)
    loop.restarted_mid_epoch = False
    match_length(loop, loader, 21)
    assert lengths(loop) == (21, 21, 21, 21)


def test_a_limit_of_the_user_and_other_loaders_stay_as_they_are() -> None:
    loader = object()
    for loop in (
        fit_loop(loader, num_batches=5, num_done=2, limit=0.25),
        fit_loop(object(), num_batches=21, num_done=10),
        fit_loop(loader, num_batches=float("inf"), num_done=10),
        fit_loop(loader, num_batches=21),
    ):
        before = lengths(loop)
        match_length(loop, loader, 15)
        assert lengths(loop) == before


def test_validation_follows_the_length_of_the_epoch() -> None:
    loader = object()
    loop = fit_loop(loader, num_batches=20, num_done=10, val_check_interval=0.5, val_check_batch=10)
    match_length(loop, loader, 30)
    assert lengths(loop) == (40, 40, 40, 20)
    loop = fit_loop(loader, num_batches=20, num_done=10, val_check_interval=7, val_check_batch=7)
    match_length(loop, loader, 30)
    assert lengths(loop) == (40, 40, 40, 7)
