"""States of loaders that a framework has read and not loaded, or saves too late."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Sized
from typing import Any

_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
_FRAMES = 5
_log = logging.getLogger("shoal")
_warned: weakref.WeakSet[Sized] = weakref.WeakSet()


def meet_lightning(loader: Sized) -> int | None:
    """Let Lightning load the states of loaders that it has read from a checkpoint and not loaded, if it is calling.

    It loads them when it sets loaders up. If ``configure_optimizers`` asks for ``trainer.estimated_stepping_batches``,
    loaders are set up before the checkpoint is read, and Lightning never comes back to them. This is called when it
    names the epoch, before the first batch.

    A warning says that Lightning takes a batch before it trains on the one before, where a loader has no length. Where
    it has one, Lightning ends every epoch after as many batches as the first: this number is returned.
    """
    loop = _calling_loop()
    if loop is None:
        return None
    if getattr(loop, "_combined_loader_states_to_load", None):
        loop._load_combined_loader_states()  # noqa: SLF001  # if it is restarting
    if loader not in _warned and (why := _why_without_length(loader)):
        _warned.add(loader)
        _log.warning(
            "without a length of its loader, Lightning is one batch ahead of the training, and a run that resumes in "
            "the middle of an epoch never trains on that batch (%s)",
            why,
        )
    return _limit_of(loop, loader)


def _calling_loop() -> Any:
    frame = sys._getframe(2)  # noqa: SLF001  # the loop is known to its methods only
    for _ in range(_FRAMES):
        if frame.f_globals.get("__name__") in _FIT_LOOPS:
            return frame.f_locals.get("self")
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def _limit_of(loop: Any, loader: Sized) -> int | None:
    """Return the batches after which Lightning ends every epoch; None if the user has limited them, or nothing does."""
    if loop.trainer.limit_train_batches != 1.0:
        return None
    combined = loop._combined_loader  # noqa: SLF001  # it asks for lengths again, and keeps to the first ones
    limits = zip(combined.flattened, combined.limits, strict=False)
    return next((limit for one, limit in limits if one is loader and isinstance(limit, int)), None)


def _why_without_length(loader: Sized) -> str:
    try:
        len(loader)
    except TypeError as error:
        return str(error)
    return ""
