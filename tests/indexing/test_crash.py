"""A run that is killed again and again, and goes on each time where its log ends: every sample is used once."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.stream.made import write_lines

from shoal.stream.open_dataset import open_dataset

# The trainer's commit is one line of its log: the samples it used and the state after them, in one write. A line that a
# kill cut short was never used. A fork of a process that has imported what it needs starts in a millisecond, so most
# of the time a run is killed while it runs, and sometimes while it opens the dataset, or makes its index.
SCRIPT = """
    import json, os, random, signal, sys, time, traceback
    sys.path[:0] = {path!r}
    import numpy, shoal
    list(shoal.open({warm!r}).shuffle(seed=1).batch(2))  # so that all is imported before the forks
    from shoal.errors import ShuffleWarning
    import warnings
    warnings.simplefilter("ignore", ShuffleWarning)

    def run(number, until_epoch):
        with open({log!r}, "rb+") as log:
            whole = log.read()
            whole = whole[: whole.rfind(b"\\n") + 1]
            log.truncate(len(whole))
            log.seek(0, 2)
            ds = shoal.open({data!r}).shuffle(seed=11, window="200KiB").batch(1 + number % 7)
            ds.stream.opened.store.reads_ahead = number % 2 == 0
            if whole:
                ds.load_state_dict(json.loads(whole.splitlines()[-1])["state"])
            while ds.state_dict()["epoch"] < until_epoch:
                epoch = ds.state_dict()["epoch"]
                for batch in ds:
                    line = {{"epoch": epoch, "ids": batch["id"].tolist(), "state": ds.state_dict()}}
                    log.write(json.dumps(line).encode() + b"\\n")
                    log.flush()
                    os.fsync(log.fileno())

    def forked(number, until_epoch):
        child = os.fork()
        if not child:
            code = 1
            try:
                run(number, until_epoch)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        return child

    dice = random.Random(5)
    killed = 0
    for number in range({num_kills}):
        child = forked(number, 10**6)
        time.sleep(dice.uniform(0.001, 0.08))
        os.kill(child, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    print(killed)
    with open({log!r}, "rb") as log:
        last = json.loads(log.read().rpartition(b"\\n")[0].splitlines()[-1])
    child = forked(3, last["epoch"] + 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_every_sample_is_used_once_over_fifty_kills(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "data", [150, 1, 90, 100])
    warm = write_lines(tmp_path / "warm", [3])
    log = tmp_path / "log"
    log.touch()
    source = [str(Path(__file__).parents[2] / "src")]
    script = SCRIPT.format(path=source, data=str(data), warm=str(warm), log=str(log), num_kills=50)
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == 50
    used: dict[int, list[int]] = {}
    lines = [json.loads(line) for line in log.read_bytes().splitlines()]
    for line in lines:
        used.setdefault(line["epoch"], []).extend(line["ids"])
    ds = open_dataset(data).shuffle(seed=11, window="200KiB")
    assert len(ds.resolved.chunks) > ds.resolved.order.parameters["chunks"]
    assert len(lines) > 100
    assert sorted(used) == list(range(len(used)))
    for epoch, ids in used.items():
        assert ids == ds.ids(epoch=epoch).tolist()
