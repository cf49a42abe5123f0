"""Errors of worker processes with their causes: a resource that the system refuses, or a process that has ended."""

from __future__ import annotations

import contextlib
import errno
import signal
from collections.abc import Iterator

from shoal.errors import ShoalError, WorkerError

SHARED_MEMORY_HINT = (
    "the machine or the container has no memory left for batches on their way (free -m, df -h /dev/shm): take fewer "
    "workers, a smaller prefetch_factor or smaller batches; and a higher ulimit -n if files ran out"
)
_REFUSAL_HINTS = {
    errno.ENOSPC: SHARED_MEMORY_HINT,
    errno.EROFS: "a directory for temporary files is read-only: set TMPDIR to a writable one, or num_workers=0",
    errno.EACCES: "a directory for temporary files is closed to this user: set TMPDIR to a writable one",
    errno.EPERM: "the system forbids processes or shared memory here: num_workers=0",
    errno.EMFILE: "this process may not open more files: a higher ulimit -n, or fewer workers",
    errno.ENFILE: "this machine may not open more files: fewer workers (cat /proc/sys/fs/file-nr)",
    errno.EAGAIN: "this user may not start more processes: a higher ulimit -u (or pids limit of the container)",
    errno.ENOMEM: "this machine has no memory for more processes: fewer workers",
}
_END_HINTS = {
    "SIGKILL": "often the system was out of memory (see dmesg): fewer workers, a smaller window, or batches",
    "SIGBUS": f"often {SHARED_MEMORY_HINT}",
    "SIGSEGV": "a library crashed in the worker; num_workers=0 shows where",
}


@contextlib.contextmanager
def named_refusals() -> Iterator[None]:
    """Raise `WorkerError` with a hint if the system refuses a resource of worker processes."""
    try:
        yield
    except ShoalError:
        raise
    except OSError as error:
        msg = f"workers could not be started: {error}"
        raise WorkerError(msg, hint=_REFUSAL_HINTS.get(error.errno or 0, "")) from error


def error_of_ended(worker: int, num_workers: int, pid: int | None, exitcode: int | None) -> WorkerError:
    """Return the error for a worker process that has ended while its batches were due."""
    how, hint = _cause(exitcode)
    return WorkerError(f"worker {worker} of {num_workers} (pid {pid}) {how}", hint=hint)


def _cause(exitcode: int | None) -> tuple[str, str]:
    if exitcode is None or exitcode >= 0:
        hint = (
            'its own message is on stderr. A script that starts workers needs `if __name__ == "__main__":` around '
            "its work, and functions for map(), filter() and collate_fn= must be importable: not of a notebook"
        )
        return ("ended" if exitcode is None else f"ended with exit code {exitcode}"), hint
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    return f"was ended by {name}", _END_HINTS.get(name, "something outside of shoal ended it")
