"""Runs the cells of a launch with torch's loader and with shoal's, and compares what became of them."""

from __future__ import annotations

import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.integration.frameworks.cells import CELLS, EXPLAINED, LAUNCHES, NOTES, Launch
from tests.integration.frameworks.outcomes import Outcome, differences, read, wrong_orders
from tests.stream.made import write_tars

import shoal
from shoal.errors import ShuffleWarning

ROOT = Path(__file__).parent.parent.parent.parent
KINDS = ("torch", "shoal")
Order = Callable[[int], list[list[int]]]
NUM_SAMPLES = 150
_SECONDS = 500


@dataclass
class Compared:
    """A cell with both kinds of loader, and what of shoal's is not as it should be, by name."""

    launch: Launch
    cell: str
    torch: Outcome
    shoal: Outcome
    found: dict[str, str]

    @property
    def laws(self) -> dict[str, str]:
        """What may differ, and why."""
        return EXPLAINED.get((self.launch.framework, self.cell), {})

    @property
    def unexplained(self) -> list[str]:
        """What nobody explained, and what was explained and is not so."""
        said = [f"{name}: {text}" for name, text in self.found.items() if name not in self.laws]
        return said + [f"{name} is explained, and does not differ" for name in self.laws if name not in self.found]


def write_data(folder: Path) -> None:
    """150 samples."""
    write_tars(folder / "data", [70, 1, 0, 49, 30])


def compare(launch: Launch, python: Path, folder: Path) -> Iterator[Compared]:
    """Run both jobs of a launch at once."""
    starts = 2 if launch.is_killed else 1
    for number in range(starts):
        _run(launch, python, folder, is_killed=number + 1 < starts)
    for cell in launch.cells:
        torch, ours = (read((folder / kind).glob(f"{cell}-[0-9].jsonl")) for kind in KINDS)
        found = differences(torch, ours)
        if wrong := wrong_orders(ours, orders_of(launch, cell, folder)):
            found["order"] = "; ".join(wrong)
            if still := wrong_orders(ours, orders_of(launch, cell, folder, by_law=True)):
                found["order by law"] = "; ".join(still)
        if ours.warned:
            found["warned"] = "; ".join(sorted(set(ours.warned)))
        yield Compared(launch, cell, torch, ours, found)


def _run(launch: Launch, python: Path, folder: Path, *, is_killed: bool) -> None:
    script = [str(Path(__file__).parent / "start.py"), launch.framework]
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(launch.world_size)]
    told = {
        "SHOAL_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
    }
    jobs = {}
    for kind in KINDS:
        arguments = [
            *script,
            kind,
            str(folder / "data"),
            str(folder / kind),
            str(launch.num_workers),
            *launch.cells,
        ]
        (folder / kind).mkdir(exist_ok=True)
        with (folder / f"{kind}.log").open("ab") as log:
            jobs[kind] = subprocess.Popen(
                [python, *(ranks if launch.world_size > 1 else []), *arguments],
                env={**os.environ, **told},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    try:
        for kind, job in jobs.items():
            assert (job.wait(_SECONDS) != 0) == is_killed, (folder / f"{kind}.log").read_text()[-4000:]
    finally:
        for job in jobs.values():
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()


def orders_of(launch: Launch, cell: str, folder: Path, *, by_law: bool = False) -> dict[str, Order]:
    """The batches that shoal should give to all ranks, by stream and epoch; ``by_law`` where a cell is explained."""
    train, twice, plain = (
        _order(launch, folder, batch=8),
        _order(launch, folder, batch=16),
        _order(launch, folder, batch=8, is_shuffled=False),
    )
    orders = _Orders({"train": train, "a": train, "b": twice, "validation": plain, "prediction": plain})
    orders |= {"gathered": lambda _: [list(range(145))], "samples": lambda _: [list(range(150))]}
    if cell == "overfit":
        orders["train"] = lambda _: train(0)
    elif cell == "combined_cycle":
        orders["b"] = lambda epoch: twice(epoch) + twice(epoch + 1)
    elif cell == "resume_ignore_data_skip":
        # The Trainer begins the epoch again, and counts as if it had not.
        orders["train"] = lambda epoch: train(epoch)[:2] + train(epoch) if epoch == 1 else train(epoch)
    elif by_law and cell in {"limit_break", "limit_islice"}:
        orders["train"] = lambda _: train(0)
    elif by_law and cell == "metrics":
        orders["gathered"] = lambda _: [[*range(145), 143]]  # the repeat is of the sample before the last batch
    return orders


class _Orders(dict[str, Order]):
    def __missing__(self, stream: str) -> Order:
        return self["train"]


def _order(launch: Launch, folder: Path, *, batch: int, is_shuffled: bool = True) -> Order:
    warnings.simplefilter("ignore", ShuffleWarning)
    ds = shoal.open(str(folder / "data"))
    ds = (ds.shuffle(seed=0) if is_shuffled else ds).batch(batch)
    size = launch.world_size
    num_steps = len(ds.partition(rank=0, world_size=size))
    known: dict[int, list[list[int]]] = {}

    def batches(epoch: int) -> list[list[int]]:
        if epoch not in known:
            known[epoch] = [
                sorted({i for rank in range(size) for i in ds.batch_ids(step, epoch=epoch, rank=rank, world_size=size)})
                for step in range(num_steps)
            ]
        return known[epoch]

    return batches


def launches_of(framework: str) -> list[Launch]:
    """All of a framework."""
    return [launch for launch in LAUNCHES if launch.framework == framework]


def table(framework: str, compared: list[Compared]) -> str:
    """Markdown: a row for each cell of a framework, with what differs and why."""
    names = (
        "run",
        "batches of each epoch",
        "optimizer steps",
        "samples of torch's loader",
        "of shoal's",
        "at",
        "reason of a difference",
    )
    rows = [names, ("---",) * len(names)]
    for cell, words in CELLS[framework].items():
        runs = [one for one in compared if one.cell == cell and one.launch.framework == framework]
        if runs:
            one = runs[0]
            sizes = "; ".join(run.launch.size for run in runs)
            laws = " ".join(dict.fromkeys([*one.laws.values(), *NOTES.get((framework, cell), ())]))
            steps = one.torch.steps() if "steps" not in one.found else f"{one.torch.steps()}; shoal {one.shoal.steps()}"
            num_updates = str(len(one.torch.updates) or "")
            rows.append((words, steps, num_updates, _samples(one.torch), _samples(one.shoal), sizes, laws))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows).replace("|  |", "| |")


def _samples(outcome: Outcome) -> str:
    seen = max(outcome.seen(stream) for stream, _ in outcome.batches)
    again = outcome.repeated()
    told = f"{again} came again in an epoch" if again else "each once an epoch"
    return told if seen >= NUM_SAMPLES or again else f"{seen} of {NUM_SAMPLES}"
