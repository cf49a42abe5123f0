"""A format of one's own is read by every verb, as ``--format module:Class``: here the one of the guide."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.calls import Calls
from tests.documents import blocks_of

import shoal
from shoal.cli.main import main

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "add-a-format.md"
FORMAT = ("--format", "own_lengths:Lengths")


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module and shards of 300 samples below it."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_lengths.py").write_text(blocks_of(GUIDE.read_text())[0].code + "\nSOME = Lengths()\nNONE = 3\n")
    (tmp_path / "data").mkdir()
    for shard in range(3):
        records = [f"record {number}".encode() for number in range(100 * shard, 100 * (shard + 1))]
        data = b"".join(len(record).to_bytes(4, "little") + record for record in records)
        (tmp_path / "data" / f"part-{shard}.lrec").write_bytes(data)
    path = list(sys.path)
    yield tmp_path / "data"
    sys.path[:] = path
    sys.modules.pop("own_lengths", None)


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.drill)])
def test_every_verb_reads_it(data: Path, calls: Calls, tmp_path: Path, num_workers: int) -> None:
    assert calls.json("info", data, *FORMAT)["num_samples"] == 300
    (sample,) = calls.json_lines("head", data, "--ids", 250, *FORMAT)
    assert sample["fields"] == {"data": "record 250"}
    assert len(calls.json("trace", data, "--step", 0, "--batch-size", 8, *FORMAT)["samples"]) == 8
    assert calls.json("audit", data, *FORMAT)["num_samples"] == 300
    assert calls.json("verify", data, *FORMAT)["num_damages"] == 0
    assert calls.json("bench", data, "--stop-after", 100, *FORMAT)["num_samples"] >= 100
    assert calls.json("plan", data, "--nodes", 2, "--global-batch", 8, *FORMAT)
    made = ("--to", "mds", "--shard-bytes", "2KiB", "--workers", num_workers)
    assert calls.json("repack", data, tmp_path / "packed", *made, *FORMAT)["num_samples"] == 300
    assert shoal.open(tmp_path / "packed")[7] == {"data": b"record 7"}


def test_the_index_that_is_written_is_used(data: Path, calls: Calls) -> None:
    assert calls.json("index", data, *FORMAT)["num_samples"] == 300
    assert calls.json("info", data, *FORMAT)["num_samples"] == 300
    assert calls.json("verify", data, *FORMAT)["num_damages"] == 0
    (data / "part-1.lrec").write_bytes(b"\xff" * 1000)
    calls.text("verify", data, *FORMAT, code=1)
    assert "--format module:Class" in calls.refused("info", data / "shoal.index")


def test_an_object_may_be_named_too(data: Path, calls: Calls) -> None:
    assert calls.json("info", data, "--format", "own_lengths:SOME")["num_samples"] == 300


@pytest.mark.drill
def test_a_format_of_the_script_itself_is_used_in_its_process(data: Path, tmp_path: Path) -> None:
    """Processes that make shards do not run the script again, and so cannot know it."""
    script = tmp_path / "script.py"
    call = f"shoal.pack.repack({str(data)!r}, 'packed', source_format=Lengths(), format='mds', shard_bytes='2KiB', "
    script.write_text((tmp_path / "own_lengths.py").read_text() + f"print({call}num_workers=2).summary.num_samples)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "300\n")
    assert "the script itself defines Lengths" in done.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("own_length:Lengths", "there is no module 'own_length'"),
        ("own_lengths:Length", "did you mean 'Lengths'?"),
        ("own_lengths:NONE", "not a format; missing: name, suffixes, scan, parse"),
        ("own_lengths:", "module:Class"),
        ("shoal.formats:LitDataTokens", "cannot be made without arguments"),
    ],
)
def test_what_is_no_format(data: Path, text: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["info", str(data), "--format", text])
    assert complaint in capsys.readouterr().err
