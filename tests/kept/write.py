"""Writes the set of one release: ``python -m tests.kept.write 0.1.0``, once, when the release is made.

The files do not depend on the machine, Python, numpy or the date, except for compressed samples in a live state.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

from tests.kept.datasets import COUNTS, TABLES, WRITTEN, digests_of, write_datasets, write_inputs, write_tables
from tests.kept.streams import MAKERS, MERGED, MIXTURES, NUM_BATCHES_BEFORE, after, numbers_of, state_of
from tests.pack.forks import killed_in_fork

import shoal
from shoal.cli.main import main as shoal_command
from shoal.errors import ShuffleWarning

KEPT = Path(__file__).parent
PACK = ("--seed", "5", "--shuffle", "--shard-bytes", "2KB", "--format", "jsonl", "--workers", "1")
KILLED_AT = 11  # the file whose name the killed packing does not write any more, counted from 1
NUM_RANKS = 3
CERTIFIED = ("order-window", "without", "balanced", "mixture", "packed", "by-length")


def main(version: str) -> int:
    """Write one set below ``tests/kept``; 1 if it is there already."""
    out = KEPT / version
    if out.exists():
        print(f"{out} exists: a set is written once")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SHOAL_CACHE_DIR"] = str(Path(scratch, "cache"))
        directory = Path(scratch, "data")
        write_datasets(directory)
        write_tables(directory)
        made = digests_of(directory)
        for name in TABLES:
            shutil.copytree(directory / name, out / "shards" / name)
        write_json(out / "shards.json", made)
        for name, text in MIXTURES.items():
            (directory / name).write_text(text, encoding="utf-8", newline="\n")
            (out / "mixtures").mkdir(exist_ok=True)
            shutil.copyfile(directory / name, out / "mixtures" / name)
        write_indexes(directory, out / "indexes")
        with warnings.catch_warnings(), mock.patch("time.time_ns", return_value=WRITTEN * 10**9):
            warnings.simplefilter("ignore", ShuffleWarning)
            write_states(directory, out / "states")
            write_certificates(directory, out / "certificates")
        write_packing(Path(scratch), out / "packing")
    num_bytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {num_bytes} bytes")
    return 0


def write_indexes(directory: Path, out: Path) -> None:
    """Index each dataset finely, with columns; the growing dataset has no index."""
    out.mkdir()
    for name in ("tar", "jsonl", "other", "mds", "tfrecord", *TABLES):
        columns = "label=cls" if name == "tar" else "class,length"
        words = ["index", str(directory / name), "--columns", columns, "--extent-bytes", "512", "--checksum"]
        run(words)
        shutil.copyfile(directory / name / "shoal.index", out / f"{name}.index")


def write_states(directory: Path, out: Path) -> None:
    """Save the state of each kind of stream inside of an epoch, and the batches that follow."""
    out.mkdir()
    for kind, make in MAKERS.items():
        stream = make(directory)
        iterator = iter(stream)
        before = [numbers_of(batch) for batch in itertools.islice(iterator, NUM_BATCHES_BEFORE)]
        state = json.loads(json.dumps(state_of(kind, iterator, stream)))
        close(iterator)
        again = make(directory)
        again.load_state_dict(state)
        write_json(out / f"{kind}.json", {"state": state, "before": before, "after": after(again)})
    for kind, make_rank in MERGED.items():
        states = []
        for rank in range(NUM_RANKS):
            stream = make_rank(directory, rank, NUM_RANKS)
            iterator = iter(stream)
            next(iterator)
            states.append(json.loads(json.dumps(stream.state_dict())))
        merged = shoal.merge_states(states)
        ranks = [make_rank(directory, rank, NUM_RANKS) for rank in range(NUM_RANKS)]
        for stream in ranks:
            stream.load_state_dict(merged)
        record = {"ranks": states, "state": merged, "after": [after(stream) for stream in ranks]}
        write_json(out / f"{kind}-merged.json", record)


def write_certificates(directory: Path, out: Path) -> None:
    """Save the certificate of each of several ranks after an epoch, and the merged certificate."""
    out.mkdir()
    for kind in CERTIFIED:
        certificates = []
        for rank in range(NUM_RANKS):
            stream = MAKERS[kind](directory).partition(rank=rank, world_size=NUM_RANKS)
            for _ in stream:
                pass
            certificates.append(stream.certificate())
        write_json(out / f"{kind}.json", {"ranks": certificates, "merged": shoal.merge_certificates(certificates)})


def write_packing(scratch: Path, out: Path) -> None:
    """Save a packing that was killed between two shards, and digests of the finished shards."""
    source = write_inputs(scratch / "inputs")
    words = ["pack", str(source), str(out / "unfinished"), *PACK]
    out.mkdir()
    killed_in_fork(lambda: shoal_command(words), dies_at=KILLED_AT)
    for path in (out / "unfinished" / ".shoal-pack").iterdir():
        if path.name == "lock" or path.suffix == ".tmp":
            path.unlink()
    words[2] = str(scratch / "finished")
    run(words)
    finished = {name: digest for name, digest in digests_of(scratch / "finished").items() if name != "shoal.index"}
    write_json(out / "finished.json", {"num_samples": sum(COUNTS), "shards": finished})


def run(words: list[str]) -> None:
    """Run a command of shoal without its output."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = shoal_command(words)
    if code:
        msg = f"shoal {' '.join(words)} ended with {code}"
        raise RuntimeError(msg)


def write_json(path: Path, value: Any) -> None:
    """Write a value with one line for each of its fields, for short differences between sets."""
    fields = ",\n".join(f" {json.dumps(name)}: {json.dumps(field, sort_keys=True)}" for name, field in value.items())
    path.write_text(f"{{\n{fields}\n}}\n", encoding="utf-8", newline="\n")


def close(iterator: Any) -> None:
    """End the threads and processes of an iterator."""
    for name in ("close", "stop"):
        if hasattr(iterator, name):
            getattr(iterator, name)()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
