"""Batches on their way from workers: no loop waits for ever for one that could not be sent."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integrations import full, stages
from tests.stream.made import open_finely, write_tars

from shoal.errors import UsageError, WorkerError
from shoal.integrations.torch.torch_in_worker import reduce_tensor
from shoal.stream.dataset import Dataset
from shoal.stream.workers.shared_batches import BatchReceiver, BatchSender
from shoal.stream.workers.worker_pool import WorkerPool
from shoal.torch import DataLoader, IterableDataset

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EMFILE])
def test_batches_without_room_in_shared_memory_come_through_the_pipe(
    number: int, tars: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    ds = tars.shuffle(seed=1).with_ids().map(stages.large_with_id).batch(20)
    loader = DataLoader(ds, num_workers=2, worker_init_fn=functools.partial(stages.without_room, number))
    assert [i for batch in loader for i in batch["__id__"].tolist()] == ds.ids().tolist()
    assert loader.stats()["num_unshared_batches"] == 10
    assert caplog.text.count("no memory left for batches on their way") == 1


def test_what_cannot_be_sent_is_said(tars: Dataset) -> None:
    with pytest.raises(UsageError, match="cannot be sent from the worker that made it: TypeError"):
        next(iter(DataLoader(tars.map(stages.generated).batch(5), num_workers=1)))


Pair = namedtuple("Pair", "a b")  # noqa: PYI024  # as old code has them


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.arange(4), "name": ["a", b"b", None], "n": [1, [2.5, True]]},
        (torch.ones(2, 3)[:, 1], np.arange(3)),
        Pair(torch.zeros(0), {1: torch.tensor(3)}),
        {"leaf": torch.ones(2, requires_grad=True), "half": torch.ones(2, dtype=torch.bfloat16)},
        [torch.ones(2), {"set": {1, 2}}],
        np.array([1, None], dtype=object),
    ],
)
def test_a_batch_is_what_it_was(batch: Any) -> None:
    here, there = Pipe()
    sender = BatchSender(there, reduce_tensor)
    packed, buffers = sender.packed(batch)
    receiver = BatchReceiver(here, most_lent=4)
    sender.send(packed, buffers)
    assert repr(receiver.receive()) == repr(batch)
    receiver.close()
    sender.close()


@pytest.mark.drill
def test_a_container_with_little_shared_memory(tmp_path: Path) -> None:
    """As Docker gives by default; in a mount of its own, if this user may mount."""
    unshare = shutil.which("unshare")
    mount = "mount -t tmpfs -o size=3m tmpfs /dev/shm"
    if (
        unshare is None
        or subprocess.run([unshare, "-m", "sh", "-c", mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("nothing can be mounted here")
    open_finely(write_tars(tmp_path / "data", [30]))
    command = f'{mount} && exec "$0" "$@"'
    words = [sys.executable, full.__file__, str(tmp_path / "data"), str(tmp_path / "fine.index")]
    done = subprocess.run(
        [unshare, "-m", "sh", "-c", command, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_file_is_left_where_shared_memory_is_full(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it: it makes the file, finds no room, and raises."""
    name = f"torch_{os.getpid()}_123_4"

    def refuse(_: Any) -> None:
        Path("/dev/shm", name).touch()
        msg = f"unable to allocate shared memory(shm) for file </{name}>: No space left on device (28)"
        raise RuntimeError(msg)

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    with pytest.raises(WorkerError, match="shared memory"):
        IterableDataset(tars)
    assert not Path("/dev/shm", name).exists()


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EROFS, "read-only"),
        (errno.ENOSPC, "/dev/shm"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EAGAIN, "ulimit -u"),
    ],
)
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_workers_that_the_system_refuses_are_a_named_error(
    number: int, hint: str, method: str, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(WorkerPool, "_start_one", refuse)
    with pytest.raises(WorkerError, match=rf"could not be started: .*{os.strerror(number)}(.|\n)*{hint}"):
        iter(DataLoader(tars.batch(5), num_workers=1, multiprocessing_context=method))
