"""The same mixtures of 64 sources by Hugging Face, Streaming, Energon, LitData, Grain and shoal, in their environments.

``python bench/mixtures.py [PEER ...] [--only MIXTURE] [--keep FILE]`` makes the environments that are missing, has each
peer write its sources in its own format and read two mixtures of them, and prints a table of what was measured from the
(source, sample) pairs that arrived; what cannot be had is named with the reason. ``--keep FILE`` adds the figures to a
file of JSON, and without a peer the table of that file is printed.

The mixtures: "nine" has one source of weight 0.9 and 16,384 samples, and 63 small ones that share 0.1, of 48 samples
each; "zipf" has 64 sources of 1,024 samples with weights 1, 1/2 .. 1/64. A run has 1,000 steps of a global batch of 96,
at one rank and at eight, which are eight processes. Each source has eight shards, a sample 1,000 bytes.

For each peer and mixture: the distance of counts from their shares, at all positions of one rank and at the steps of
eight; the worst share of a source on one of eight ranks; samples that came again while others of their source had come
less often; distinct samples in as many deliveries as 1, 2 and 3 rounds have, and whether the second round has the order
of the first; of "zipf" the samples in place of others after a resume at 8, 4 and 6 ranks from step 400 of 8; seconds
from the imports to the first batch (the least of three), the peak of PSS, and CPU time a sample, all at one rank.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "mixture_peers"))

import numpy as np
from job import Job
from measures import Array, Delivered, drift, early, merged, resumed, rounds, skew, uneven_epochs
from tests.compat.peers.environments import PEERS, TORCHVISION, Peer
from tests.environments import ROOT, CannotHaveError, environment, home_of

HERE = Path(__file__).parent / "mixture_peers"

GLOBAL_BATCH, STEPS, SAVE_AT, RANKS, STARTS = 96, 1000, 400, 8, 3
RESUMED = 100 * GLOBAL_BATCH  # positions that are compared after a resume
SECONDS = 900
_ENERGON = (
    *("braceexpand", "click", "filetype", "mfusepy", "multi-storage-client>=0.40.0", "numpy", "pillow>=11", "pyyaml"),
    *("rapidyaml>=0.10.0", "s3fs", "tqdm", "webdataset==1.0.2"),
)


class Mixed(NamedTuple):
    """A library, with the environment that it needs; ``keeps_batch`` where a resume must keep a rank's batch size."""

    title: str
    script: str
    peer: Peer
    workers: int = 0
    keeps_batch: bool = False


MIXED = {
    "hf": Mixed("datasets 5.2.0", "hf_mixture.py", PEERS["datasets"]),
    "mds": Mixed("Streaming 0.13.0", "mds_mixture.py", PEERS["streaming"]),
    "mds_stratified": Mixed("Streaming, stratified", "mds_stratified.py", PEERS["streaming"]),
    # The command that redistributes states needs those of worker processes.
    "energon": Mixed(
        *("Energon 7.4.1", "energon_mixture.py", Peer(_ENERGON, torch=True, alone=("megatron-energon==7.4.1",))),
        workers=1,
        keeps_batch=True,
    ),
    "litdata": Mixed("LitData 0.2.76", "litdata_mixture.py", PEERS["litdata"]),
    "grain": Mixed("Grain 0.2.18", "grain_mixture.py", Peer(("grain==0.2.18", "array-record==0.8.6"))),
    "shoal": Mixed("shoal", "shoal_mixture.py", Peer()),
}


class Mixture(NamedTuple):
    """Weights and sizes of sources, those of them whose rounds are looked at, and the ranks after a resume."""

    weights: list[float]
    sizes: list[int]
    rounds_of: list[int]
    resumed_at: tuple[int, ...] = ()


def mixtures() -> dict[str, Mixture]:
    zipf = 1 / np.arange(1, 65)
    return {
        "nine": Mixture([0.9] + [0.1 / 63] * 63, [16384] + [48] * 63, list(range(1, 64))),
        "zipf": Mixture((zipf / zipf.sum()).tolist(), [1024] * 64, list(range(5)), resumed_at=(8, 4, 6)),
    }


def python_of(name: str) -> Path:
    """The Python of a peer's environment, which is made if it is not there."""
    peer = MIXED[name].peer
    if not peer.packages:
        return Path(sys.executable)
    shared = next((known for known, other in PEERS.items() if other is peer), None)
    home = home_of(ROOT / ".compat" / ("peers" if shared else "mixtures"), shared or name)
    stand_ins = TORCHVISION if shared and peer.torch else None
    return environment(home, peer.packages, alone=peer.alone, stand_ins=stand_ins, torch=peer.torch)


class FailedError(Exception):
    """A peer said no, or took too long; the end of what it said."""


class Bench:
    """A peer with its sources below a directory."""

    def __init__(self, name: str, directory: Path) -> None:
        self.mixed, self.python, self.directory = MIXED[name], python_of(name), directory
        self.runs = 0

    def write(self, mixture: str, sizes: Sequence[int]) -> None:
        """Have the peer write the sources of a mixture."""
        self._wait([self._start(["write", str(self.directory / mixture), json.dumps(sizes)])])

    def read(
        self, mixture: str, world_size: int, steps: int, *, save_at: int = 0, states: Sequence[str] = (), batch: int = 0
    ) -> tuple[list[Delivered], dict[str, float], list[str]]:
        """Run all ranks as processes of their own; what they got, what the run cost, and the files of their states."""
        self.runs += 1
        out = str(self.directory / f"run-{self.runs}")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        jobs = [
            Job(
                directory=str(self.directory / mixture),
                weights=mixtures()[mixture].weights,
                rank=rank,
                world_size=world_size,
                batch_size=batch or GLOBAL_BATCH // world_size,
                steps=steps,
                out=f"{out}-{rank}",
                save_at=save_at,
                states=list(states),
                workers=self.mixed.workers if world_size > 1 else 0,
            )
            for rank in range(world_size)
        ]
        peak = self._wait([self._start(["read", str(job.write())], job, port) for job in jobs])
        told = [json.loads(Path(f"{job.out}.json").read_text(encoding="utf-8")) for job in jobs]
        delivered = []
        for job in jobs:
            with np.load(f"{job.out}.npz") as arrays:
                delivered.append(Delivered(arrays["pairs"], arrays["ends"], arrays["epochs"]))
        costs = {"peak_mib": peak, **{key: sum(one[key] for one in told) / len(told) for key in told[0]}}
        return delivered, costs, [f"{job.out}.state" for job in jobs]

    def _start(self, arguments: list[str], job: Job | None = None, port: int = 0) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        rank, world_size = (job.rank, job.world_size) if job else (0, 1)
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "GLOBAL_RANK": rank, "WORLD_SIZE": world_size, "NNODES": 1}
        place = {"LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(self.directory / "hf"), "LITDATA_DISABLE_VERSION_CHECK": "1"}
        said = (self.directory / f"said-{rank}").open("wb")
        return subprocess.Popen(
            [self.python, HERE / self.mixed.script, *arguments],
            env=inherited | offline | {name: str(value) for name, value in {**ranks, **place}.items()},
            stdout=said,
            stderr=subprocess.STDOUT,
        )

    def _wait(self, processes: list[subprocess.Popen[bytes]]) -> float:
        """Wait for the end of all; the most memory that they had together, in MiB."""
        peak, ends = 0.0, time.monotonic() + SECONDS
        try:
            while any(process.poll() is None for process in processes):
                peak = max(peak, sum(tree_pss(process.pid) for process in processes))
                if any(process.returncode for process in processes):
                    time.sleep(2)  # the others often have the same to say
                    break
                if time.monotonic() > ends:
                    msg = f"took longer than {SECONDS} seconds"
                    raise FailedError(msg)
                time.sleep(0.1)
            for rank, process in enumerate(processes):
                if process.poll():
                    lines = (self.directory / f"said-{rank}").read_text(encoding="utf-8", errors="replace").split("\n")
                    raise FailedError(next((line.strip() for line in reversed(lines) if line.strip()), "no word"))
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return peak


def tree_pss(pid: int) -> float:
    """The memory of a process and all below it in MiB, pages that they share counted once."""
    total, waiting = 0.0, [pid]
    while waiting:
        home = Path("/proc", str(waiting.pop()))
        try:
            waiting += [int(child) for path in home.glob("task/*/children") for child in path.read_text().split()]
            lines = (home / "smaps_rollup").read_text(encoding="utf-8").splitlines()
        except OSError:  # it ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return total


def attempted(bench: Bench, name: str, mixture: Mixture) -> Any:
    """The figures of a peer and a mixture, or why there are none."""
    try:
        return measured(bench, name, mixture)
    except FailedError as error:
        return str(error)


def measured(bench: Bench, name: str, mixture: Mixture) -> dict[str, Any]:
    """All figures of a peer and a mixture."""
    weights = np.array(mixture.weights)
    bench.write(name, mixture.sizes)
    (one,), costs, _ = bench.read(name, 1, STEPS)
    found: dict[str, Any] = {
        "one": drift(one.pairs, weights, np.arange(1, len(one.pairs) + 1)),
        "early": early(one.pairs, one.ends, mixture.sizes) / len(one.pairs),
        "rounds": rounds(one.pairs, one.ends, mixture.sizes, mixture.rounds_of),
        "epochs": int(one.epochs[-1]) + 1,
        "costs": costs | {"us_each": costs["cpu_s"] / len(one.pairs) * 1e6},
    }
    starts = [bench.read(name, 1, 1)[1] for _ in range(STARTS)]
    found["costs"] |= {key: min(start[key] for start in starts) for key in ("first_s", "first_cpu_s", "import_s")}
    ranks, _, states = bench.read(name, RANKS, STEPS, save_at=SAVE_AT)
    pairs, ends = merged(ranks)
    found |= {
        "eight": drift(pairs, weights, ends),
        "early_eight": early(pairs, ends, mixture.sizes) / len(pairs),
        "rounds_eight": rounds(pairs, ends, mixture.sizes, mixture.rounds_of),
        "skew": skew(ranks, weights),
        "uneven_epochs": uneven_epochs(ranks),
        "state_bytes": sum(Path(state).stat().st_size for state in states),
        "resume": {
            str(world_size): after_resume(bench, name, mixture, (pairs, ends), states, world_size)
            for world_size in mixture.resumed_at
        },
    }
    return found


def after_resume(
    bench: Bench, name: str, mixture: Mixture, reference: tuple[Array, Array], states: list[str], world_size: int
) -> Any:
    """What came after a resume, or how it was refused."""
    pairs, ends = reference
    batch = GLOBAL_BATCH // (RANKS if bench.mixed.keeps_batch else world_size)
    try:
        ranks, _, _ = bench.read(name, world_size, RESUMED // (batch * world_size), states=states, batch=batch)
    except FailedError as error:
        return str(error)[:300]
    at = ends[SAVE_AT - 1]
    return resumed(pairs[:at], (pairs[at:], ends[SAVE_AT:] - at), merged(ranks), mixture.sizes)


def table(results: dict[str, Any]) -> str:
    """The figures as two tables of Markdown, a column for each peer."""
    lines = []
    for name in mixtures():
        columns = {peer: figures[name] for peer, figures in results.items() if peer in MIXED and name in figures}
        cells = [cells_of(column) if isinstance(column, dict) else {"": column} for column in columns.values()]
        titles = [MIXED[peer].title for peer in columns]
        lines += ["", f"| {name} | {' | '.join(titles)} |", "| --- |" + " --- |" * len(titles)]
        rows = dict.fromkeys(row for column in cells for row in column)
        lines += [f"| {row} | {' | '.join(str(column.get(row, '-')) for column in cells)} |" for row in rows]
    return "\n".join(lines)


def cells_of(found: dict[str, Any]) -> dict[str, str]:
    """The rows of a peer."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.3g} %"

    def of_resume(answer: Any) -> str:
        if isinstance(answer, str):
            return f"refused: {answer.replace('|', '/')}"
        return f"{answer['others']} of {answer['compared']}, {answer['again']} again"

    one, eight, costs = found["one"], found["eight"], found["costs"]
    covered = [" ".join(percent(found[key].get(k)) for k in "123") for key in ("rounds", "rounds_eight")]
    return {
        "counts off, at most (1 rank)": f"{one['most']:.1f}",
        "at 1/4, 1/2, end": f"{one['quarter']:.1f} {one['half']:.1f} {one['end']:.1f}",
        "worst rare source at the end": percent(one["rare"]),
        "counts off, at most (8 ranks)": f"{eight['most']:.1f}",
        "at 1/4, 1/2, end (8 ranks)": f"{eight['quarter']:.1f} {eight['half']:.1f} {eight['end']:.1f}",
        "worst rare source at the end (8 ranks)": percent(eight["rare"]),
        "worst share on a rank: sources of 1 % and more, all": f"{percent(found['skew']['common'])}, "
        f"{percent(found['skew']['all'])}",
        "come again early (1 rank, 8 ranks)": f"{percent(found['early'])}, {percent(found['early_eight'])}",
        "second round in the order of the first": percent(found["rounds"].get("same")),
        "coverage after 1, 2, 3 rounds (1 rank)": covered[0],
        "coverage after 1, 2, 3 rounds (8 ranks)": covered[1],
        "epochs; ranks end them at different steps": f"{found['epochs']}; {'yes' if found['uneven_epochs'] else 'no'}",
        **{f"others after a resume, 8 to {size} ranks": of_resume(found["resume"][size]) for size in found["resume"]},
        "states of 8 ranks": f"{found['state_bytes']:,} bytes",
        "first batch after imports, CPU time": f"{costs['first_s']:.2f} s, {costs.get('first_cpu_s', 0):.2f} s",
        "peak memory (of it after imports)": f"{costs['peak_mib']:.0f} MiB ({costs['imported_mib']:.0f})",
        "CPU time a sample, with imports": f"{costs['us_each']:.0f} us",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*", help=", ".join(MIXED))
    parser.add_argument("--keep", type=Path, help="a file of JSON that figures are added to")
    parser.add_argument("--only", choices=mixtures(), help="one of the mixtures")
    options = parser.parse_args()
    results = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else {}
    for peer in options.peers or ([] if results else MIXED):
        directory = Path(tempfile.mkdtemp(prefix=f"shoal-mixture-{peer}-"))
        results.setdefault(peer, {})
        try:
            bench = Bench(peer, directory)
            for name, mixture in mixtures().items():
                if options.only in (None, name):
                    began = time.monotonic()
                    results[peer][name] = attempted(bench, name, mixture)
                    print(f"{peer} {name}: {time.monotonic() - began:.0f} s", flush=True)
                    if options.keep:
                        options.keep.write_text(json.dumps(results, indent=1))
        except CannotHaveError as error:
            results[peer] = dict.fromkeys(mixtures(), str(error))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    print(table(results))


if __name__ == "__main__":
    main()
