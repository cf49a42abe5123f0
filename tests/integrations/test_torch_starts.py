"""Workers started in every way, by a parent that has read or has not, from every kind of place: never wrong bytes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.integrations import stages
from tests.storage.servers import Place, moto, place_of_kind
from tests.stream.made import check_batch, flat, open_finely, write_tars

from shoal.errors import ForkError
from shoal.processes.start_methods import existing_main
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.torch import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]
NUM = 90
_numbers = itertools.count()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("starts")
    write_tars(directory / "data", [40, 50])
    open_finely(directory / "data")
    return directory


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("obstore")
    with moto() as url:
        yield url


def place_of(kind: str, request: pytest.FixtureRequest) -> Any:
    endpoint = request.getfixturevalue("endpoint") if kind == "s3" else ""
    return place_of_kind(kind, f"starts-{next(_numbers)}", endpoint)


def dataset(kind: str, place: Place | None, local: Path) -> Dataset:
    index = local / "fine.index"
    if place is None:
        return open_dataset(local / "data", index=index)
    for path in sorted((local / "data").glob("*.tar")):
        place.put(path.name, path.read_bytes())
    return open_dataset([f"{place.root}/s-{n:03d}.tar" for n in (0, 1)], index=index, storage_options=place.options)


def check(ds: Dataset, context: str, *, kind: str, used: bool) -> None:
    ds = ds.shuffle(seed=4, chunk="6KiB").with_ids().batch(8)
    if used:
        with iter(ds) as iterator:
            next(iterator)
    ds.set_epoch(0)
    loader = DataLoader(ds, num_workers=2, multiprocessing_context=context, timeout=60)
    refused: ForkError | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the point
            batches = [{**batch, "__id__": batch["__id__"].numpy()} for batch in loader]
    except ForkError as error:
        refused = error
    if refused is not None:
        # obstore's threads stay behind in the parent, and a forked child would wait for them for ever.
        assert (context, kind) == ("fork", "s3")
        assert "forkserver" in refused.hint or "spawn" in refused.hint
        return
    assert (context, kind, used) != ("fork", "s3", True)
    assert flat(check_batch(batch) for batch in batches) == ds.ids().tolist()
    assert len(ds.ids()) == NUM


CONTEXTS = ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.soak)]


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
@pytest.mark.parametrize("kind", ["local", "http", "s3"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_workers_read_right_bytes_or_say_at_once_that_they_cannot(
    context: str, kind: str, used: bool, local: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "local":
        check(dataset(kind, None, local), context, kind=kind, used=used)
    else:
        with place_of(kind, request) as place:
            check(dataset(kind, place, local), context, kind=kind, used=used)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shoal-make")]


def main_module(path: Path | str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Replace the main module by one of a script."""
    main = ModuleType("__main__")
    main.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def test_the_path_of_a_main_module_is_hidden_unless_its_file_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "job.py"
    script.touch()
    for path, hidden in [(str(script), str(script)), (str(tmp_path / "deleted.py"), None), ("<stdin>", None)]:
        main = main_module(path, monkeypatch)
        with existing_main():
            assert main.__file__ == hidden
        assert main.__file__ == path


@pytest.mark.parametrize("name", ["<stdin>", "deleted.py"])
def test_workers_do_not_run_a_main_module_without_a_file(
    name: str, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = main_module(name if name == "<stdin>" else tmp_path / name, monkeypatch)
    paths_at_start = []
    ensure_running = forkserver.ensure_running

    def noted() -> None:
        paths_at_start.append(main.__file__)  # a fork server that starts imports the main module
        ensure_running()

    monkeypatch.setattr(forkserver, "ensure_running", noted)
    ds = open_dataset(local / "data", index=local / "fine.index").with_ids().map(stages.plain).batch(30)
    loader = DataLoader(ds, num_workers=1, multiprocessing_context="forkserver")
    assert flat(batch["__id__"].tolist() for batch in loader) == list(range(NUM))
    assert paths_at_start
    assert set(paths_at_start) == {None}


SCRIPT = """
import os, sys
import shoal, shoal.torch
if sys.argv[3:]:
    os.unlink(sys.argv[3])
ds = shoal.open(sys.argv[1], index=sys.argv[2]).with_ids().batch(5)
loader = shoal.torch.DataLoader(ds, num_workers=2, multiprocessing_context={method!r})
assert [i for batch in loader for i in batch["__id__"].tolist()] == list(range(90))
"""


@pytest.mark.drill
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_script_that_is_no_file_starts_workers(method: str, is_deleted: bool, local: Path, tmp_path: Path) -> None:
    """One on standard input, or one that was deleted after its start, as by a scheduler."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT.format(method=method))
    data, index = str(local / "data"), str(local / "fine.index")
    arguments = [script, data, index, script] if is_deleted else ["-", data, index]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        input=script.read_text(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
