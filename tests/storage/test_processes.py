"""Processes that read from stores: started in every way, forked after their parent read, and ending in the middle."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.storage.servers import Place, place_of_kind

from shoal.order.orders_without_window import Full

ROOT = Path(__file__).parents[2]
LINES = "".join(json.dumps({"id": number, "text": "x" * number}) + "\n" for number in range(200))
_numbers = itertools.count()
# Each takes about half a second of a processor; `make soak` asks for many.
NUM_SHORT = int(os.environ.get("SHOAL_SHORT_PROCESSES", "16"))


@pytest.fixture
def there(request: pytest.FixtureRequest, s3_endpoint: str, tmp_path: Path) -> Iterator[Place]:
    """The lines as ``a.jsonl`` in a place of the kind asked for."""
    if request.param == "local":
        (tmp_path / "a.jsonl").write_text(LINES)
        yield Place("local", str(tmp_path), lambda *_: None)
        return
    with place_of_kind(request.param, f"processes-{next(_numbers)}", s3_endpoint) as place:
        place.put("a.jsonl", LINES.encode())
        yield place


def run_program(place: Place, *, used: bool, methods: Sequence[str]) -> dict[str, Any]:
    lines = LINES if place.kind == "memory" else None
    task = {"source": f"{place.root}/a.jsonl", "options": place.options, "used": used, "lines": lines}
    task["methods"] = methods
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.in_processes", json.dumps(task)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(autouse=True)
def _each_client(request: pytest.FixtureRequest, http_client: str) -> None:
    """By each client for http; other places are asked once."""
    if http_client != "libcurl" and request.node.callspec.params["there"] != "http":
        pytest.skip("has no client for http")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("http_client", ["libcurl"], indirect=True)
@pytest.mark.parametrize(("there", "used"), [("s3", True), ("memory", False)], indirect=["there"])
def test_children_read_right_bytes_or_say_at_once_that_they_cannot(there: Place, used: bool) -> None:
    check_children(there, used=used, methods=("spawn",) if there.kind == "memory" else ("fork",))


@pytest.mark.drill
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
@pytest.mark.parametrize("there", ["local", "http", "s3", "memory"], indirect=True)
def test_children_started_in_each_way_do(there: Place, used: bool) -> None:
    check_children(there, used=used, methods=("fork", "spawn", "forkserver"))


def check_children(there: Place, *, used: bool, methods: Sequence[str]) -> None:
    answers = run_program(there, used=used, methods=methods)
    assert tuple(answers) == methods
    order = Full().bind([1] * 200, seed=1, epoch=0).ids(0, 200).tolist()
    for method, (exit_code, said) in answers.items():
        assert exit_code == 0, (method, said)
        if there.kind == "s3" and used and method == "fork":
            assert said[0] == "ForkError"
            assert "forkserver" in said[1]
        elif there.kind == "memory" and method != "fork":
            assert said[0] == "StorageError"
            assert "memory of" in said[1]
        else:
            assert said == order, method


SHORT = """
import json, sys
from shoal.stream.open_dataset import open_dataset
ds = open_dataset(sys.argv[1], storage_options=json.loads(sys.argv[2]))
samples = iter(ds.shuffle("full", seed=1))
for _ in range(int(sys.argv[3])):
    next(samples)
"""


@pytest.mark.parametrize("http_client", ["libcurl"], indirect=True)
@pytest.mark.parametrize("there", ["http"], indirect=True)
def test_a_process_that_streams_and_ends_in_the_middle_ends_well(there: Place) -> None:
    check_ends(there, num_rounds=1, numbers=(3,))


@pytest.mark.drill
@pytest.mark.parametrize("there", ["http", "s3"], indirect=True)
def test_processes_that_stream_and_end_end_well(there: Place) -> None:
    check_ends(there, num_rounds=NUM_SHORT // 8, numbers=(1, 3, 150, 200))


def check_ends(there: Place, *, num_rounds: int, numbers: Sequence[int]) -> None:
    """Some in the middle of an epoch, with requests under way: threads, connections and libraries must let go."""
    large = "".join(json.dumps({"id": number, "text": "x" * 20_000}) + "\n" for number in range(200))
    there.put("large.jsonl", large.encode())
    words = [sys.executable, "-c", SHORT, f"{there.root}/large.jsonl", json.dumps(there.options)]
    for _ in range(num_rounds):
        running = [
            subprocess.Popen([*words, str(num_samples)], stderr=subprocess.PIPE, text=True) for num_samples in numbers
        ]
        for process in running:
            _, said = process.communicate(timeout=100)
            others = [line for line in said.splitlines() if not line.startswith("http is read by")]
            assert (process.returncode, others) == (0, [])
