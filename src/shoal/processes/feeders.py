"""The thread behind a queue of multiprocessing, which packs what was put there: its failures are nobody's otherwise."""

from __future__ import annotations

import os
import traceback
from multiprocessing import queues, reduction
from typing import Any

UNSENT_EXIT_CODE = 71
"""Of a process whose queue could not send what it was given."""


def end_where_unsent() -> None:
    """End this process when a queue of it cannot send something, as where no more files can be open.

    Python prints the error and goes on, and whoever waits for what was lost waits for ever.
    """
    setattr(queues.Queue, "_on_queue_feeder_error", staticmethod(_end))  # noqa: B010  # made for this, and private


def packed_as_by_queues(thing: Any) -> bytes:
    """The bytes that a queue would send, for `pickle.loads` in another process, once; what fails is raised here."""
    return bytes(reduction.ForkingPickler.dumps(thing))


def _end(error: BaseException, _: object) -> None:
    traceback.print_exception(error)
    os._exit(UNSENT_EXIT_CODE)
