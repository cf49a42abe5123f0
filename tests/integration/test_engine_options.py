"""`shoal pack --engine` as it is typed, on real engines; no process of them stays."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pack.contents import contents_of
from tests.pack.files import make_files

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(("name", "address"), [("spark", "local[2]"), ("ray", "local")])
def test_a_packing_that_is_typed(name: str, address: str, python: Callable[[str], Path], tmp_path: Path) -> None:
    if name == "spark" and shutil.which("java") is None:
        pytest.skip("there is no Java")
    make_files(tmp_path / "in")
    (tmp_path / "in" / "zebra" / "copy.txt").write_text("zebra 1 zebra 1 ")
    words = ["pack", tmp_path / "in", tmp_path / "here", "--shuffle", "--dedup", "content", "--balance", "cls"]
    words += ["--shard-bytes", "60KB"]
    here = typed(python(name), *words, directory=tmp_path)
    assert (here["num_samples"], here["num_duplicates"]) == (180, 1)
    words[2] = tmp_path / "there"
    told = ["--engine", name, "--address", address]
    there = typed(python(name), *words, *told, directory=tmp_path)
    assert (there["engine"], there["num_units_run"], there["num_units_done_before"]) == (name, here["num_shards"], 0)
    assert contents_of(tmp_path / "there") == contents_of(tmp_path / "here")

    words = ["repack", tmp_path / "here", tmp_path / "mixed", "--mix", "--memory", "1MiB", "--shard-bytes", "100KB"]
    typed(python(name), *words, directory=tmp_path)
    words[2] = tmp_path / "mixed-there"
    typed(python(name), *words, *told, directory=tmp_path)
    assert contents_of(tmp_path / "mixed-there") == contents_of(tmp_path / "mixed")
    done = typed(python(name), *words, *told, directory=tmp_path)
    assert (done["num_units_run"], done["num_units_done_before"]) == (0, done["num_shards"])


def typed(python: Path, *words: object, directory: Path) -> dict[str, Any]:
    """The one JSON object that a command of ours prints, and nothing else."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short:  # sockets have short paths
        told = {
            "PYTHONPATH": str(ROOT / "src"),
            "PYSPARK_PYTHON": str(python),
            "SHOAL_CACHE_DIR": str(directory / "cache"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "spark"),
            "RAY_TMPDIR": short,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",  # or Ray writes a token into the home directory
        }
        command = [str(python), "-m", "shoal", *map(str, words), "--json"]
        job = subprocess.Popen(
            command,
            env={**os.environ, **told},
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said, complaints = job.communicate(timeout=200)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    assert job.returncode == 0, complaints[-4000:]
    found: dict[str, Any] = json.loads(said)
    return found
