"""A process that makes shards: started anew, told what to do over a connection, gone when the other end is.

Started as ``python -m shoal.pack.engines.pack_worker DESCRIPTOR``: no module of the user's is imported, but for that
of a format of the user's own, and nothing is inherited but the connection and the lock of the output.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

from shoal.errors import ShoalError
from shoal.pack.destination import Output
from shoal.processes.parents import end_with_parent

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Do jobs until the connection ends."""
    end_with_parent()
    connection: Connection[Any, Any] = Connection(descriptor)
    try:
        # Behind what it has: a json.py in the user's directory must not become ours.
        sys.path += [entry for entry in connection.recv() if entry not in sys.path]
        out: Output = connection.recv()
        while (job := connection.recv()) is not None:
            try:
                answer: Any = job.do(out, lambda number, share: connection.send((number, share)))
            except ShoalError as error:
                answer = error
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # whoever asked is gone, and the unfinished shard with this process


if __name__ == "__main__":
    main(int(sys.argv[1]))
