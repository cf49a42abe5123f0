"""States of loaders that a framework has read from a checkpoint and not loaded."""

from __future__ import annotations

import sys
from typing import Any

_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


def load_what_lightning_kept() -> None:
    """Let Lightning load the states of loaders that it has read from a checkpoint and not loaded.

    It loads them when it sets loaders up. If ``configure_optimizers`` asks for ``trainer.estimated_stepping_batches``,
    loaders are set up before the checkpoint is read, and Lightning never comes back to them. This is called when it
    names the epoch, before the first batch.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # the loop is known to its methods only
    for _ in range(5):
        if frame.f_globals.get("__name__") in _FIT_LOOPS:
            loop: Any = frame.f_locals.get("self")
            if getattr(loop, "_combined_loader_states_to_load", None):
                loop._load_combined_loader_states()  # noqa: SLF001  # if it is restarting
            return
        if frame.f_back is None:
            return
        frame = frame.f_back
