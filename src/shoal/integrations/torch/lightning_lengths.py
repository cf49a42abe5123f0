"""Lengths of Lightning's epochs after a resume with another number of ranks or another batch size.

Lightning counts the batches before a checkpoint, and ends the resumed epoch after ``len(loader)`` batches. If the
global batch has changed, the rest of the epoch has another number of batches: on more ranks Lightning would end the
epoch early and lose samples.
"""

from __future__ import annotations

import weakref
from typing import Any

_usual_lengths: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # of fit loops with a changed epoch


def match_length(loop: Any, loader: Any, num_left: int | None) -> None:
    """Let a resumed epoch of Lightning's fit loop have ``num_left`` more batches, and later epochs the usual number.

    ``num_left`` is None at the start of an epoch: Lightning's own length stays. A limit set by the user stays, and so
    do the lengths of several loaders: Lightning combines these in several ways.
    """
    combined = loop._combined_loader  # noqa: SLF001  # Lightning has no public place for the length of one epoch
    is_alone = len(combined.flattened) == 1 and combined.flattened[0] is loader
    length = getattr(loop, "max_batches", None)
    if not is_alone or loop.trainer.limit_train_batches != 1.0 or not isinstance(length, int):
        return
    usual = _usual_lengths.get(loop, length)
    is_resumed = getattr(loop, "restarted_mid_epoch", False)  # not in Lightning before 2.5
    num_done = loop.epoch_loop.batch_progress.current.ready if is_resumed else 0
    num_batches = num_done + num_left if num_done and num_left is not None else usual
    if num_batches == length:
        return
    _usual_lengths[loop] = usual
    trainer = loop.trainer
    if isinstance(trainer.val_check_interval, float) and isinstance(trainer.val_check_batch, int):
        trainer.val_check_batch = max(1, int(num_batches * trainer.val_check_interval))
    loop.max_batches = combined.limits[0] = num_batches
    if loop._data_fetcher.length is not None:  # noqa: SLF001
        loop._data_fetcher.length = num_batches  # noqa: SLF001
