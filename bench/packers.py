"""What packing costs, and what a kill leaves, in shoal and in the packers of other libraries.

``python bench/packers.py [PACKER ...] [--files 20000] [--bytes 16384] [--rounds 3] [--kill]`` makes the environments
that are missing, writes files of random bytes, and has each packer pack them with two processes, in turn. It prints
rows/s and CPU seconds of the packing, those of what comes before it (modules, engines), bytes and files written, and
peak memory (PSS) of the driver and of all processes together. CPU seconds include every process that was started.

With ``--kill``, a worker (the process that has written most) gets SIGKILL when two fifths of the bytes are written,
and in another run the driver. It prints how the run ends, what a reader then finds, how the same command ends when it
is given again, as the documentation of the packer has it, then samples that are lost and doubled, files that no index
names, and whether shards have the names and bytes of an undisturbed run.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent / "packing_peers"
sys.path.insert(0, str(HERE.parents[1]))
sys.path.insert(0, str(HERE))

from process_tree import ProcessTree  # noqa: E402  # after the path to it
from tests.compat.peers.environments import NEEDED_BESIDE_TORCH, PEERS, TORCHVISION, Peer  # noqa: E402
from tests.environments import ROOT, CannotHaveError, environment, home_of  # noqa: E402
from tests.integration.installs import python_with  # noqa: E402

SHARD_BYTES = 16 << 20
SECONDS = 600  # a run that was not disturbed and takes longer has failed
STUCK_SECONDS = 90  # one that a kill holds up for so long hangs
_SHARDS = (".tar", ".mds", ".bin")
_ENVIRONMENTS = PEERS | {
    "streaming-spark": Peer(
        (*NEEDED_BESIDE_TORCH, "pyarrow==26.0.1", "pandas<3", "pyspark==4.0.1"),
        torch=True,
        alone=("mosaicml-streaming==0.13.0",),
        program="java",
    )
}


class Packer(NamedTuple):
    """A packer; its environment is one of peers, one of the integration tests, or that of shoal."""

    title: str
    script: str
    environment: str = ""
    format: str = "tar"


PACKERS = {
    "mds": Packer("Streaming 0.13.0, MDSWriter in a pool", "mds_processes.py", "streaming"),
    "mds-spark": Packer("Streaming 0.13.0, dataframe_to_mds", "mds_spark.py", "streaming-spark"),
    "ray": Packer("Ray Data 2.60.0, write_webdataset", "ray_data.py", "ray"),
    "litdata": Packer("LitData 0.2.76, optimize", "litdata_optimize.py", "litdata"),
    "img2dataset": Packer("the loop of img2dataset, webdataset 1.0.2", "img2dataset_style.py", "webdataset"),
    "shoal": Packer("shoal pack", "shoal_pack.py"),
    "shoal-mds": Packer("shoal pack --format mds", "shoal_pack.py", format="mds"),
    "shoal-ray": Packer("shoal.pack.ray.run, Ray 2.60.0", "shoal_with_ray.py", "ray"),
    "shoal-spark": Packer("shoal.pack.spark.run, Spark 4.0.1", "shoal_with_spark.py", "streaming-spark"),
}


def python_for(name: str) -> Path:
    if not name:
        return Path(sys.executable)
    if name not in _ENVIRONMENTS:
        return python_with(name)
    peer = _ENVIRONMENTS[name]
    if peer.program and shutil.which(peer.program) is None:
        msg = f"{peer.program} is not installed"
        raise CannotHaveError(msg)
    home, stand_ins = home_of(ROOT / ".compat" / "peers", name), TORCHVISION if peer.torch else None
    return environment(home, peer.packages, alone=peer.alone, stand_ins=stand_ins, torch=peer.torch)


class Run:
    """Runs of one packer, in a folder of their own below ``home``."""

    def __init__(self, name: str, files: Path, home: Path) -> None:
        self.packer, self.files, self.out = PACKERS[name], files, home / "out"
        self._python, self._home = python_for(PACKERS[name].environment), home
        self._environment = {name: value for name, value in os.environ.items() if name != "RANK"} | {
            "HOME": str(home),
            "TMPDIR": str(home),
            "RAY_TMPDIR": str(home),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "src")]),
            "PYSPARK_PYTHON": str(self._python),
            "PACKING_BEGUN": str(home / "begun"),
            "PACKING_FORMAT": self.packer.format,
            "LITDATA_DISABLE_VERSION_CHECK": "1",
        }

    def start(self, *words: str) -> ProcessTree:
        """Begin to pack."""
        command = [str(self._python), str(HERE / self.packer.script), "write", str(self.files), str(self.out)]
        return ProcessTree(
            [*command, str(SHARD_BYTES), *words],
            environment=self._environment,
            begun=self._home / "begun",
            log=self._home / "log",
        )

    def clear(self) -> None:
        """Remove everything that was written."""
        for path in self._home.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    def keys(self) -> list[str] | None:
        """The keys that a reader finds in a copy, since some readers write; None if it refuses to read."""
        listed, copy = self._home / "keys", self._home / "copy"
        listed.unlink(missing_ok=True)
        shutil.copytree(self.out, copy)
        command = [self._python, HERE / self.packer.script, "read", copy, listed]
        with (self._home / "log").open("ab") as log:
            subprocess.run(command, env=self._environment, check=False, stdout=log, stderr=log, timeout=SECONDS)
        shutil.rmtree(copy)
        return listed.read_text().split("\n") if listed.exists() else None

    def last_words(self) -> str:
        """The last line that the packer or its reader has printed."""
        lines = (self._home / "log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:140] if lines else ""

    def written(self) -> dict[str, tuple[int, str]]:
        """Size and digest of each file that was written."""
        return {
            str(path.relative_to(self.out)): (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
            for path in sorted(self.out.rglob("*"))
            if path.is_file()
        }

    def shards(self) -> dict[str, tuple[int, str]]:
        """`written`, of what holds samples."""
        return {name: found for name, found in self.written().items() if name.endswith(_SHARDS)}


class Figures(NamedTuple):
    """What one undisturbed run has cost."""

    wall_seconds: float
    cpu_seconds: float
    cpu_before: float
    driver_bytes: int
    total_bytes: int


def measured(run: Run) -> Figures:
    run.clear()
    tree = run.start()
    status = tree.wait(SECONDS)
    tree.end(20)
    if status:
        msg = f"{run.packer.title} ended with {status}: {run.last_words()}"
        raise SystemExit(msg)
    return Figures(
        tree.ended - tree.begun,
        tree.cpu_seconds - tree.cpu_when_begun,
        tree.cpu_when_begun,
        tree.driver_bytes,
        tree.total_bytes,
    )


def killed(run: Run, what: str, wanted: set[str], whole: dict[str, tuple[int, str]]) -> None:
    """Kill a worker or the driver, go on, and print what is there in the end."""
    run.clear()
    tree = run.start()
    num_bytes = sum(size for size, _ in whole.values())
    while _bytes_in(run.out) < 0.4 * num_bytes and tree.wait(0.02) is None:
        pass
    name = tree.kill_writer() if what == "worker" else tree.kill_driver() or "the driver"
    began = time.perf_counter()
    status = tree.wait(STUCK_SECONDS)
    ended = "hangs" if status is None else "ends well" if status == 0 else f"ends with {status}: {run.last_words()}"
    seconds = time.perf_counter() - began
    tree.end(5)
    print(f"  {what} killed ({name.strip()}): it {ended}, after {seconds:.0f} s")
    print(f"    then: {told(run, wanted, whole)}")
    if status == 0:
        return
    tree = run.start("retry")
    status = tree.wait(SECONDS)
    tree.end(20)
    ended = (
        f"ends well in {tree.ended - tree.begun:.1f} s" if status == 0 else f"ends with {status}: {run.last_words()}"
    )
    print(f"    again: it {ended}")
    print(f"    then: {told(run, wanted, whole)}")


def told(run: Run, wanted: set[str], whole: dict[str, tuple[int, str]]) -> str:
    """What a reader finds, and what lies there."""
    keys, found = run.keys(), run.written()
    same = "as undisturbed" if run.shards() == whole else "not those of an undisturbed run"
    if keys is None:
        return f"no dataset ({run.last_words()}); {len(found)} files, {sum(size for size, _ in found.values()):,} bytes"
    counts = Counter(keys)
    doubled = sum(count - 1 for key, count in counts.items() if key in wanted)
    num_broken = sum(key.startswith("broken") for key in counts)
    orphans = _named_by_no_index(run.out, found)
    return (
        f"{len(keys) - num_broken:,} samples, {len(wanted - counts.keys()):,} lost, {doubled:,} doubled, "
        f"{num_broken} broken shards; {orphans}; names and bytes of shards are {same}"
    )


def _named_by_no_index(out: Path, found: dict[str, tuple[int, str]]) -> str:
    """How many of the files that hold samples the index does not name."""
    index = out / "index.json"
    if not index.exists():
        return f"{len(found)} files"
    text = json.loads(index.read_text())
    named = {part["raw_data"]["basename"] for part in text.get("shards", ())}
    named |= {part["filename"] for part in text.get("chunks", ())}
    orphans = {name: size for name, (size, _) in found.items() if name.endswith(_SHARDS) and name not in named}
    return f"{len(found)} files, {len(orphans)} of them ({sum(orphans.values()):,} bytes) shards that no index names"


def _bytes_in(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):  # gone meanwhile
            total += path.stat().st_size
    return total


def make_files(root: Path, count: int, num_bytes: int) -> None:
    """Files of random bytes, a thousand in a directory."""
    for number in range(count):
        directory = root / f"{number // 1000:04d}"
        if number % 1000 == 0:
            directory.mkdir(parents=True)
        (directory / f"{number:07d}.bin").write_bytes(os.urandom(num_bytes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packers", nargs="*", metavar="PACKER", help=", ".join(PACKERS))
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--directory", help="where everything is written (temporary)")
    asked = parser.parse_args()
    compileall.compile_dir(ROOT / "src" / "shoal", quiet=1)  # as it is where it was installed
    with tempfile.TemporaryDirectory(dir=asked.directory, prefix="p") as home:
        files = Path(home, "files")
        make_files(files, asked.files, asked.bytes)
        runs: dict[str, Run] = {}
        for name in asked.packers or PACKERS:
            Path(home, name).mkdir()
            try:
                runs[name] = Run(name, files, Path(home, name))
            except CannotHaveError as error:
                print(f"{PACKERS[name].title}: not measured, {error}")
        side_by_side(runs, asked.files, asked.rounds)
        if asked.kill:
            wanted = {path.stem for path in files.rglob("*.bin")}
            for name, run in runs.items():
                print(PACKERS[name].title)
                measured(run)
                whole = run.shards()
                killed(run, "worker", wanted, whole)
                killed(run, "driver", wanted, whole)
                run.clear()


def side_by_side(runs: dict[str, Run], num_files: int, rounds: int) -> None:
    figures: dict[str, list[Figures]] = {name: [] for name in runs}
    written: dict[str, dict[str, tuple[int, str]]] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            figures[name].append(measured(run))
            written[name] = run.written()
            run.clear()
    for name, found in figures.items():
        if found:
            wall = min(each.wall_seconds for each in found)
            cpu, before = (statistics.median(column) for column in list(zip(*found, strict=True))[1:3])
            driver, total = (max(column) / 1e6 for column in list(zip(*found, strict=True))[3:])
            num_bytes = sum(size for size, _ in written[name].values())
            print(
                f"{PACKERS[name].title:42} {num_files / wall:8,.0f} rows/s (best), {cpu:6.2f} s of CPU "
                f"after {before:5.2f} s to start; {num_bytes:,} bytes in {len(written[name])} files; "
                f"driver {driver:,.0f} MB, all {total:,.0f} MB"
            )


if __name__ == "__main__":
    main()
