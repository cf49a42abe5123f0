"""shoal beside the loaders that others use, and beside what bounds them all: `make bench-peers`.

``python bench/peers/compare.py [--scale 0.25] [--rounds 5] [--only W1 litdata ...]`` makes the environments that are
missing (``.compat/peers``), writes each workload with each library's own writer, and streams an epoch with each row, a
process each, in interleaved rounds. It prints a table, a line for each goal (``goals.py``: met, short or not measured)
and every case in which a peer is ahead. ``--json FILE`` keeps the results of all rounds, with ``--only`` beside other
workloads of earlier calls. ``--page`` writes ``docs/benchmarks.md`` and its picture from such a file, and measures
nothing. ``--goals`` leaves out the rows that no goal names. ``--source DIRECTORY`` measures the shoal in another
directory.

Time is from the construction of a dataset to the end of its epoch, after a first sample of another one, so imports and
what is made on first use (shoal's index) are not in it. Shards are read once just before, and before a first batch the
files of the library, too: machines may take back pages that were not used for a minute. Processor time is that of the
process and its children. Memory is the peak of anonymous and shared pages of the process tree (PSS), looked at 20
times a second. Mixing is the number of distinct classes in 64 samples; a perfect shuffle has 47.4. "far" is a server
on this machine that answers after 20 ms and sends 60 MB/s over each connection.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

from ahead import peer_wins  # noqa: E402  # after the path to it
from goals import outcomes, rows_of_goals  # noqa: E402
from job import Job  # noqa: E402
from other_runs import OTHERS, OtherRuns  # noqa: E402
from page import DATA, write_page  # noqa: E402
from rows import LIBRARIES, ROWS, Figures, Row, measured_of  # noqa: E402
from servers.quick import Quick  # noqa: E402
from tests.compat.peers.environments import PEERS, TORCHVISION, Peer  # noqa: E402
from tests.environments import CannotHaveError, environment, home_of  # noqa: E402
from workloads import WORKLOADS, make_flat  # noqa: E402

WINDOW_BYTES = 16 << 20
SECONDS = 300
HOME = ROOT / ".compat" / "peers"
_ENVIRONMENTS = PEERS | {
    "datasets-torch": Peer(("datasets==5.2.0", "pillow>=11", "aiohttp>=3"), torch=True),
    "webdataset-pillow": Peer(("webdataset==1.0.2", "pillow>=11"), torch=True),
    "spdl": Peer(("spdl-core==0.8.0", "spdl-io==0.8.0", "numpy>=2"), program="ffmpeg"),  # for its libraries
    "torch-pillow": Peer(("numpy>=2", "pillow>=11"), torch=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.25, help="1 is 1 GB of tokens and 2 GB of blobs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], help="workloads and libraries")
    parser.add_argument("--goals", action="store_true", help="rows of goals, and the best peers of --json beside them")
    parser.add_argument("--data", type=Path, help="keep the shards there (default: a temporary folder)")
    parser.add_argument("--json", type=Path, default=DATA, help="where results are kept")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the directory of the package shoal")
    parser.add_argument("--page", action="store_true", help="write the page from --json alone")
    parser.add_argument("--no-page", action="store_true", help="keep results, and write no page")
    arguments = parser.parse_args()
    if not arguments.page:
        with tempfile.TemporaryDirectory(prefix="bench-peers-") as scratch:
            found = measure(arguments, (arguments.data or Path(scratch, "data")).resolve(), Path(scratch))
        if (arguments.only or arguments.goals) and arguments.json.exists():
            found = joined(json.loads(arguments.json.read_text()), found)
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    found = json.loads(arguments.json.read_text())
    show(figures_of(found))
    if not arguments.no_page:
        write_page(found, figures_of(found))


def joined(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Earlier results, without those of workloads that were measured now: only rows of one call took turns."""
    for name in ("results", "failed"):
        before[name] = {row: each for row, each in before[name].items() if row.partition("/")[0] not in found["sizes"]}
    return {name: {**before[name], **found[name]} for name in ("about", "versions", "sizes", "results", "failed")}


def is_chosen(row: Row, only: list[str]) -> bool:
    workloads, libraries = (set(only) & set(names) for names in (WORKLOADS, LIBRARIES))
    return (not workloads or row.workload in workloads) and (not libraries or row.library in libraries)


def measure(arguments: argparse.Namespace, data: Path, scratch: Path) -> dict[str, Any]:
    rows = [row for row in ROWS if is_chosen(row, arguments.only)]
    if arguments.goals:
        before = figures_of(json.loads(arguments.json.read_text())) if arguments.json.exists() else {}
        of_goals = rows_of_goals(before)
        rows = [row for row in rows if row in of_goals]
    runner = Runner(data, scratch, arguments.source.resolve())
    rows = [row for row in rows if runner.can_run(row)]
    sizes: dict[str, list[int]] = {}
    results: dict[str, list[dict[str, Any]]] = {}
    began, loads = datetime.now(UTC), [os.getloadavg()[0]]
    with ExitStack() as stack:
        for workload in dict.fromkeys(row.workload for row in rows):
            if workload in OTHERS:
                runs = stack.enter_context(OTHERS[workload](scratch, runner.source, runner.python_of))
                runner.others[workload] = runs
                sizes[workload] = [runs.num_samples, runs.num_bytes]
                continue
            count = make_flat(data / workload / "flat", workload, arguments.scale)
            sizes[workload] = [count, (data / workload / "flat" / "data.bin").stat().st_size]
            for name in dict.fromkeys(library for library, made in LIBRARIES.items() if made.format):
                runner.write(workload, name)
        data.mkdir(parents=True, exist_ok=True)
        server = stack.enter_context(Quick(data, 20.0, 60.0))
        for seed in range(arguments.rounds):
            for row in rows:
                found = runner.read(row, seed, server.url if "far" in (row.workload, row.way) else "")
                if found is not None:
                    results.setdefault(row.name, []).append(found)
            loads.append(os.getloadavg()[0])
    versions: dict[str, str] = {}
    for rounds in results.values():
        for each in rounds:
            versions |= each.pop("versions", {})
    about = {
        "date": began.date().isoformat(),
        "scale": arguments.scale,
        "rounds": arguments.rounds,
        "load": [round(load, 1) for load in loads],
        "machine": f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        "commit": commit_of(arguments.source),
    }
    abouts = dict.fromkeys(sizes, about)
    return {"about": abouts, "versions": versions, "sizes": sizes, "results": results, "failed": runner.failed}


def commit_of(source: Path) -> str:
    """The commit of a directory, or the name of the directory above it if git does not know it."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    told = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    return told.stdout.strip() or source.resolve().parent.name


def read_all(folder: Path) -> None:
    """Read all files of a folder, if there is one, so that they are in the page cache."""
    buffer = bytearray(1 << 20)
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


class Runner:
    """Runs jobs, each in the environment of its library."""

    def __init__(self, data: Path, scratch: Path, source: Path = ROOT / "src") -> None:
        self.data, self.scratch, self.source = data, scratch, source
        self.others: dict[str, OtherRuns] = {}
        self.pythons: dict[str, Path | None] = {}
        self.failed: dict[str, str] = {}

    def can_run(self, row: Row) -> bool:
        """Make the environment of a row; False, and a line about it, if this machine cannot have it."""
        name = LIBRARIES[row.library].environment
        if name not in self.pythons:
            peer = _ENVIRONMENTS.get(name)
            try:
                if peer is not None and peer.program and shutil.which(peer.program) is None:
                    msg = f"{peer.program} is not installed"
                    raise CannotHaveError(msg)  # told below as what pip cannot install
                self.pythons[name] = (
                    Path(sys.executable)
                    if peer is None
                    else environment(
                        home_of(HOME, name),
                        peer.packages,
                        alone=peer.alone,
                        stand_ins=TORCHVISION if peer.torch else None,
                        torch=peer.torch,
                    )
                )
            except CannotHaveError as error:
                print(f"cannot have {name}: {error}")
                self.pythons[name] = None
        return self.pythons[name] is not None

    def python_of(self, library: str) -> Path:
        """The interpreter of a library that can run."""
        python = self.pythons[LIBRARIES[library].environment]
        assert python is not None
        return python

    def write(self, workload: str, library: str) -> None:
        """Have a library write its shards, unless they are there."""
        made = LIBRARIES[library]
        folder = self.data / workload / made.format
        row = Row(workload, "one", library)
        is_used = any(each.workload == workload and each.library == library for each in ROWS)
        is_read = made.format in ("mds", "parquet", "tar")  # by shoal
        if (is_used or is_read) and not folder.exists() and self.can_run(row):
            began = time.perf_counter()
            self._run("write", row, 0, "")
            print(f"wrote {workload} with {library} in {time.perf_counter() - began:.1f} s", flush=True)

    def read(self, row: Row, seed: int, far: str) -> dict[str, Any] | None:
        """Stream an epoch; None if that failed, which is told and kept."""
        if row.workload == "first":
            read_all(Path(str(self.pythons[LIBRARIES[row.library].environment])).parent.parent / "lib")
        found = self._other(row, seed) if row.workload in self.others else self._run("read", row, seed, far)
        if found is None:
            print(f"round {seed}: {row.title} on {row.workload} failed: {self.failed[row.name]}", flush=True)
            return None
        told = f"{found['seconds']:.2f} s, {found['peak_bytes'] / 2**20:.0f} MiB, wrong {found.get('num_wrong', 0)}"
        print(f"round {seed}: {row.name}: {told}, load {os.getloadavg()[0]:.1f}", flush=True)
        return found

    def _other(self, row: Row, seed: int) -> dict[str, Any] | None:
        try:
            return self.others[row.workload].read(row, seed)
        except RuntimeError as error:
            self.failed[row.name] = str(error)
            return None

    def _run(self, action: str, row: Row, seed: int, far: str) -> dict[str, Any] | None:
        made = LIBRARIES[row.library]
        if action == "read":
            own = "parquet" if row.variant == "pyarrow" else row.variant.partition(" ")[0]
            for folder in {made.format, own, "flat"} - {""}:
                read_all(self.data / row.workload / folder)
        job = Job(
            *(made.module, row.variant, row.workload, row.way, str(self.data), WINDOW_BYTES, seed),
            far=far,
            workers=row.workers,
            packages=made.packages,
        )
        caches = Path(tempfile.mkdtemp(dir=self.scratch))
        # What pip installs is compiled. shoal's own source is as well, but for a user who lets nothing be written.
        not_meant = ("RANK", "WORLD_SIZE", "PYTHONDONTWRITEBYTECODE")
        inherited = {name: value for name, value in os.environ.items() if name not in not_meant}
        settings = {
            "PYTHONPATH": os.pathsep.join([str(HERE), str(self.source)]) if not made.environment else str(HERE),
            "TMPDIR": str(caches),
            "HF_HOME": str(caches),
            "HF_HUB_OFFLINE": "1",
            "SHOAL_CACHE_DIR": str(self.data / "shoal"),
            "LITDATA_DISABLE_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        command = [str(self.pythons[made.environment]), str(HERE / "job.py"), action, json.dumps(asdict(job))]
        try:
            return run_watched(command, inherited | settings)
        except RuntimeError as error:
            self.failed[row.name] = str(error)
            return None
        finally:
            shutil.rmtree(caches, ignore_errors=True)


def run_watched(command: list[str], settings: dict[str, str]) -> dict[str, Any]:
    """Run a job and return its result with the peak of its memory; raise RuntimeError with its last words."""
    with subprocess.Popen(
        command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        peak, is_over = 0, threading.Event()

        def look() -> None:
            nonlocal peak
            while not is_over.wait(0.05):
                peak = max(peak, sum(map(pinned_bytes, tree_of(process.pid))))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            out, complaints = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, complaints = process.communicate()[0], f"not done after {SECONDS} s"
        finally:
            is_over.set()
            watcher.join()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # helpers that it leaves
    if process.returncode:
        words = [line for line in complaints.strip().splitlines() if line.strip()]
        raise RuntimeError(words[-1][:300] if words else f"exit status {process.returncode}")
    return dict(json.loads(out.strip().splitlines()[-1])) | {"peak_bytes": peak}


def tree_of(pid: int) -> list[int]:
    """A process and all below it."""
    pids = [pid]
    for parent in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def pinned_bytes(pid: int) -> int:
    """Anonymous and shared pages of a process, those that it shares in part; pages of files are the system's."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))
    return 0


def figures_of(found: dict[str, Any]) -> Figures:
    """The medians of all rows, in the order of the rows."""
    return {
        row.name: measured_of(row, found["results"][row.name], *found["sizes"][row.workload])
        for row in ROWS
        if row.name in found["results"]
    }


def show(figures: Figures) -> None:
    for each in figures.values():
        if each.row.workload == "first" or each.row.way == "job":
            print(f"first batch, {each.row.way:5}{each.row.title:44}{each.seconds:8.3f} s")
            continue
        mixed = "" if each.classes is None else f"{each.classes:5.1f} classes"
        rates = f"{each.samples_per_second:12,.0f} samples/s {each.megabytes_per_second:9,.0f} MB/s"
        costs = f"{each.cpu_seconds_per_gb:7.2f} s/GB {each.peak_mib:7.0f} MiB"
        title = f"{each.row.workload:8}{each.row.way:8}{each.row.title:34}"
        print(f"{title}{rates}{costs} {each.spread:5.0%}  {mixed}")
    print("\nGoals:")
    for outcome in outcomes(figures):
        print(f"  {outcome.line()}")
    print("\nA peer is ahead:")
    for line in peer_wins(figures):
        print(f"  {line}")


if __name__ == "__main__":
    main()
