"""Batches on their way from workers: no loop waits for ever for one that could not be sent."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integrations import full, stages
from tests.stream.made import open_finely, write_tars

from shoal.errors import UsageError, WorkerError
from shoal.integrations.torch.batch_transfer import sendable
from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader, IterableDataset

torch = pytest.importorskip("torch")


def test_batches_without_room_in_shared_memory_come_through_the_pipe(
    tars: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    ds = tars.shuffle(seed=1).with_ids().batch(20)
    loader = DataLoader(ds, num_workers=2, worker_init_fn=stages.without_room)
    assert [i for batch in loader for i in batch["__id__"].tolist()] == ds.ids().tolist()
    assert loader.stats()["num_unshared_batches"] == 10
    assert caplog.text.count("shared memory is full (df -h /dev/shm)") == 1


def test_what_cannot_be_sent_is_said(tars: Dataset) -> None:
    with pytest.raises(UsageError, match="cannot be sent from the worker that made it: TypeError"):
        next(iter(DataLoader(tars.map(stages.generated).batch(5), num_workers=1)))


def test_a_worker_whose_queue_cannot_send_ends(tars: Dataset) -> None:
    options: Any = {"worker_init_fn": stages.without_descriptors, "multiprocessing_context": "fork"}
    loader = DataLoader(tars.with_ids().batch(5), num_workers=1, **options)
    with pytest.raises(WorkerError, match=r"could not send its batch(.|\n)*ulimit -n"):
        next(iter(loader))


def test_workers_without_room_for_their_semaphores_are_not_started(
    tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", refuse)
    with pytest.raises(WorkerError, match=r"could not be started(.|\n)*shared memory is full"):
        iter(DataLoader(tars.batch(5), num_workers=1))


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
    sent, is_copied = sendable(batch)
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(sent)
    assert repr(ForkingPickler.loads(buffer.getvalue())) == repr(batch)
    assert not is_copied


@pytest.mark.drill
def test_full_shared_memory(tmp_path: Path) -> None:
    """With a small one of its own, where this user may mount."""
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
    assert done.returncode == 0, done.stderr[-2000:]
    assert "shared memory is full" in done.stderr


def test_no_file_is_left_where_shared_memory_is_full(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it: it makes the file, finds no room, and raises."""
    name = f"torch_{os.getpid()}_123_4"

    def refuse(_: Any) -> None:
        Path("/dev/shm", name).touch()
        msg = f"unable to allocate shared memory(shm) for file </{name}>: No space left on device (28)"
        raise RuntimeError(msg)

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    _, is_copied = sendable({"x": torch.ones(2)})
    assert is_copied
    assert not Path("/dev/shm", name).exists()
    with pytest.raises(WorkerError, match="shared memory"):
        IterableDataset(tars)
    assert not Path("/dev/shm", name).exists()


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.EROFS, "read-only"), (errno.EACCES, "/dev/shm"), (errno.EMFILE, "ulimit -n"), (errno.EAGAIN, "ulimit -u")],
)
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_workers_that_the_system_refuses_are_a_named_error(
    number: int, hint: str, method: str, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", refuse)
    with pytest.raises(WorkerError, match=rf"could not be started: .*{os.strerror(number)}(.|\n)*{hint}"):
        iter(DataLoader(tars.batch(5), num_workers=1, multiprocessing_context=method))
