"""Worker process that makes shards: a fresh interpreter that takes jobs over a connection and ends with its parent.

Started as ``python -m shoal.pack.jobs.pack_worker DESCRIPTOR``. It imports no user module, except the module of a
user-defined format, and inherits only the connection and the lock of the output.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

from shoal.errors import ShoalError
from shoal.pack.jobs.process_jobs import Done, peak_bytes
from shoal.pack.output.destination import Output
from shoal.processes.process_ends import end_with_parent


def main(descriptor: int) -> None:
    """Run jobs until the connection closes."""
    end_with_parent()
    connection: Connection[Any, Any] = Connection(descriptor)
    try:
        # Appended, not prepended: a json.py in the user's directory must not shadow the standard library's.
        sys.path += [entry for entry in connection.recv() if entry not in sys.path]
        out: Output | None = connection.recv()
        while (job := connection.recv()) is not None:
            try:
                result = job.run(out, lambda number, share: connection.send((number, share)))
                answer: Done | ShoalError = Done(job.number, result, peak_bytes())
            except ShoalError as error:
                answer = error
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone; the unfinished shard vanishes with this process


if __name__ == "__main__":
    main(int(sys.argv[1]))
