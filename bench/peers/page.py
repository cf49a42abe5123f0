"""The page of the comparison, and its picture, from the results that were kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ahead import peer_wins
from goals import outcomes
from rows import LIBRARIES, Figures, Measured, Row, of_workload, shown
from workloads import WORKLOADS

ROOT = Path(__file__).parent.parent.parent
DATA = Path(__file__).parent / "results.json"
PAGE, PICTURE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "images" / "benchmarks.png"
COLOURS = {
    "shoal": "#0072b2",
    "streaming": "#e69f00",
    "litdata": "#009e73",
    "datasets": "#cc79a7",
    "webdataset": "#d55e00",
    "torch": "#999999",
    "spdl": "#56b4e9",
}
PERFECT = 47.4
QUIET_LOAD = 3.0  # one job on two cores keeps it between 1 and 2
GOOD_SCALE = 0.2


def write_page(found: dict[str, Any], figures: Figures) -> None:
    """Write both files, the same bytes from the same results."""
    abouts = list(found["about"].values())
    limits = [each for each in figures.values() if each.row.library == "limit"]
    parts = [HEAD.format(**summary(abouts))]
    loads = [load for about in abouts for load in about["load"]]
    if max(loads) > QUIET_LOAD or min(about["scale"] for about in abouts) < GOOD_SCALE or fewest_rounds(abouts) < 3:
        parts.append(PROVISIONAL)
    parts.append("![Speed over mixing for each workload; the area of a bubble is memory](images/benchmarks.png)\n")
    parts += ["## Goals\n", GOALS_TOLD]
    parts.append("| goal | measured | wanted | | equal mixing | fastest of all | limit |")
    parts.append("| --- | ---: | --- | --- | --- | --- | --- |")
    for goal in outcomes(figures):
        verdict = "met" if goal.is_met else f"**{goal.verdict}**"
        cells = (goal.title, goal.measured, goal.wanted, verdict, goal.mixing, goal.fastest, goal.limits)
        parts.append(f"| {' | '.join(cells)} |")
    parts += ["\n## Where a peer is ahead\n", "The comparison takes the best format of shoal with good mixing:\n"]
    parts += [f"- {line}" for line in peer_wins(figures)] or ["Nowhere."]
    parts.append("\n## All figures\n")
    for workload, made in WORKLOADS.items():
        rows = [each for way in ("one", "batches", "epoch") for each in of_workload(figures, workload, way)]
        if rows:
            parts += [
                f"### {workload}: {made.title}\n",
                *table(rows, [e for e in limits if e.row.workload == workload]),
            ]
    parts += first_batches(figures)
    parts.append("## Versions\n")
    versions = {name: number for name, number in found["versions"].items() if name != "shoal"}
    parts.append(", ".join(f"{name} {number}" for name, number in sorted(versions.items())) + ".")
    for name, why in found["failed"].items():
        parts.append(f"\n`{name}` has no figures, since it failed: {why}")
    PAGE.write_text("\n".join(parts) + "\n")
    draw(figures)


def summary(abouts: list[dict[str, Any]]) -> dict[str, str]:
    """What the head of the page says of all calls: dates, commits, loads, scales and rounds."""
    told = {name: sorted({str(about[name]) for about in abouts}) for name in ("date", "commit", "machine", "scale")}
    loads = [load for about in abouts for load in about["load"]]
    rounds = f"{fewest_rounds(abouts)} or more rounds"
    return {**{name: ", ".join(texts) for name, texts in told.items()}, "rounds": rounds,
            "loads": f"{min(loads):.1f} to {max(loads):.1f}"}  # fmt: skip


def fewest_rounds(abouts: list[dict[str, Any]]) -> int:
    return min(int(about["rounds"]) for about in abouts)


def first_batches(figures: Figures) -> list[str]:
    """The times until the first batch: a line for each library, a column for each place and number of workers."""
    firsts = {each.row: each.seconds for each in figures.values() if is_first(each)}
    if not firsts:
        return []
    lines = ["| | near | near, 2 workers | 20 ms away | 20 ms away, 2 workers |", "| --- | ---: | ---: | ---: | ---: |"]
    for library, variant in dict.fromkeys((row.library, row.variant) for row in firsts):
        cases = [Row("first", way, library, variant, workers) for way in ("near", "far") for workers in (0, 2)]
        cells = [f"{firsts[case]:.2f}" if case in firsts else "" for case in cases]
        title = f"*{variant}*" if library == "limit" else Row("", "", library, variant).title
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return ["### The first batch\n", FIRST, *lines, ""]


def is_first(each: Measured) -> bool:
    return each.row.workload == "first"


def table(rows: list[Measured], limits: list[Measured]) -> list[str]:
    lines = [
        "| | | samples/s | MB/s | CPU s/GB | peak MiB | classes in 64 | spread |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for each in [*rows, *limits]:
        name = f"*{each.row.variant}*" if each.row.library == "limit" else each.row.title
        way = "" if each.row.library == "limit" else {"one": "one by one", "epoch": ""}.get(each.row.way, each.row.way)
        rates = f"{shown(each.samples_per_second)} | {shown(each.megabytes_per_second)}"
        mixed = "" if each.classes is None else f"{each.classes:.1f}"
        costs = f"{each.cpu_seconds_per_gb:.2f} | {each.peak_mib:.0f} | {mixed} | {each.spread:.0%}"
        lines.append(f"| {name} | {way} | {rates} | {costs} |")
    return [*lines, ""]


def draw(figures: Figures) -> None:
    """A panel for each workload: mixing across, speed upwards, memory as the area of a bubble."""
    import matplotlib as mpl  # noqa: PLC0415  # for the picture alone

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    panels = [
        name for name in WORKLOADS if any(each.row.workload == name and each.classes for each in figures.values())
    ]
    if not panels:
        return
    figure, grid = plt.subplots(1, len(panels), figsize=(2.9 * len(panels), 3.9), layout="constrained", squeeze=False)
    for axes, workload in zip(grid[0], panels, strict=True):
        one = of_workload(figures, workload, "one")
        rows = one or of_workload(figures, workload, "batches")
        for each in sorted(rows, key=lambda each: -each.peak_mib):
            colour, classes = COLOURS[each.row.library], each.classes or 0.0
            axes.scatter(
                classes,
                each.samples_per_second,
                s=each.peak_mib * 1.2,
                color=colour,
                alpha=0.55,
                edgecolor=colour,
                clip_on=False,
            )
        top = max((each.samples_per_second for each in rows), default=1.0)
        axes.set(yscale="log", xlim=(-6, 58), ylim=(top / 300, top * 2.4), xlabel="classes in 64 samples")
        axes.axvline(PERFECT, color="#bbbbbb", linewidth=0.8, linestyle=(0, (4, 2)), zorder=0)
        axes.set_title(WORKLOADS[workload].title, loc="left", fontsize=9.5)
    grid[0][0].set_ylabel("samples/s, one by one (images in batches)")
    handles = [plt.Line2D([], [], marker="o", linestyle="", color=COLOURS[name]) for name in COLOURS]
    titles = [LIBRARIES[name].title for name in COLOURS]
    figure.legend(handles, titles, loc="outside lower center", ncols=len(titles), frameon=False)
    title = "Up is faster, right is better mixed (dashed: a perfect shuffle); the area is memory"
    figure.suptitle(title, x=0.005, ha="left", fontweight="bold", fontsize=11)
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})
    plt.close(figure)


HEAD = """# Benchmarks: beside other loaders

`make bench-peers` made this page on {date} at {commit} ({machine}; load {loads}; scale {scale}, the part of each
workload's samples that is streamed; medians of {rounds} in which all loaders take turns). Run the comparison on
your machine, or a part of it with `python bench/peers/compare.py --only W1 shoal litdata`.

**The work.** Samples lie in a hundred contiguous classes, like data sorted by its source. Each loader mixes 16 MiB of
samples, if the loader has such a setting, reads shards of 16 MiB from its own writer, and uses one process (except for
images). shoal reads the shards of the other loaders, with an index made before.

- **W1**: rows of 4 KiB of tokens. **W2**: blobs of 100 KB. **W3**: documents of 2 KB with JSON metadata. **W4**: JPEGs,
  decoded. All shards are in the page cache. **far**: the blobs on a server of the same machine with 20 ms of latency
  and 60 MB/s over each connection. **first**: from the start to the first batch. **growing**: tars of small members
  without an index, at the same distance. **index**: an index of 3e8 samples.
- *one by one*: a loop over samples; *batches*: a loop over collated batches of 64.
- *LitData* is LitData's default on local files, a shuffle of parts of a chunk; *LitData, all keys* permutes the whole
  chunk. *plain torch* is a map-style dataset of files, read by a random sampler. *mds 1MiB* is shoal with chunks of
  1 MiB, and *mds 1MiB 64MiB* has a window of 64 MiB as well.

**The figures.**

- *classes in 64*: distinct classes in 64 samples; a perfect shuffle has 47.4. A loader that mixes less also reads less
  from all over, so compare speeds of equal mixing.
- *peak MiB*: anonymous and shared memory of all processes, interpreter and libraries included.
- *spread*: between the fastest and the slowest round, by the median. Smaller differences are not significant.
- *Italics* are floors of the same work, in a plain loop: all bytes by `readv`, in order; samples of permuted chunks of
  4 MiB in plain Python; row groups by pyarrow; decoders alone, in threads that each fill batches of 64 with them; GETs
  alone, 64 at a time. Floors run in one thread unless stated otherwise, so loaders that read ahead in threads may be
  faster.

SPDL decodes by FFmpeg. The table omits torchvision and torchcodec, which do not load from PyPI beside torch for
processors, and FFCV, which has no wheel and its own format.
"""
GOALS_TOLD = """\
Beside each goal stand the best peer that mixes as well (40 or more of 47 classes in 64 samples), the best peer however
it mixes (with its classes if there are fewer), and the limit: the same work in a plain loop. A goal that names a time,
a processor time or a memory is met at that figure or below.
"""
FIRST = """\
Seconds from the construction of a dataset of 100 KB blobs to the first 64 of them, in a new process that has imported
the library (and torch, with workers) and nothing else; the index was made before. "From 99 %": resumed at 99 % of the
epoch. Italics: torch's loader with workers that read nothing, and 64 GETs alone.
"""
PROVISIONAL = """\
> **Provisional.** The machine was busy or the run small (see the load, scale and rounds above). These figures are a
> trial and say little about any loader; a run on a quiet machine will replace them.
"""
