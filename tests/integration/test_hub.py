"""``hf://`` through the filesystem of huggingface_hub, from a hub that runs on this machine."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.samples import write_tar_shards

ROOT = Path(__file__).parent.parent.parent


def test_a_dataset_of_the_hub_streams_as_its_files_do(python: Callable[[str], Path], tmp_path: Path) -> None:
    write_tar_shards(tmp_path / "data")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SHOAL_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [python("datasets"), ROOT / "tests" / "integration" / "inside_hub.py", tmp_path / "data"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**environment, "HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "127.0.0.1"},
    )
    assert done.stdout == "200 samples, the same; some by ranges: True\n", done.stderr[-2000:]


def test_datasets_by_name_are_those_of_the_library(python: Callable[[str], Path], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "SHOAL_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [python("datasets"), ROOT / "tests" / "integration" / "inside_hub_names.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**environment, "HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "127.0.0.1"},
    )
    assert re.fullmatch(r"\d+ layouts, \d\d splits, \d+ rows compared\n", done.stdout), (
        done.stdout + done.stderr[-2000:]
    )
