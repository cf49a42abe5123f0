"""Which predictor ranks the losses: rank correlations on settings that did not choose it, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Records = list[dict[str, Any]]
SPANS = (1, 2, 4, 8, 16)  # batches
COLOURS = {
    "window": "#0072b2",
    "stratified_window": "#56b4e9",
    "block": "#cc79a7",
    "buffer": "#d55e00",
    "storage": "#8c8c8c",
}


def rank_correlation(first: Any, second: Any) -> float:
    """Return Spearman's rank correlation; ties share their mean rank.

    >>> rank_correlation([1, 2, 3], [10, 30, 20])
    0.5
    """
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Any) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse])


def by_training(records: Records) -> dict[tuple[Any, ...], Records]:
    """Return the records of each task, batch and rate, without the full permutation that is the measure."""
    groups: dict[tuple[Any, ...], Records] = {}
    for record in records:
        if record["order"] != "full":
            groups.setdefault((record["task"], record["batch"], record["rate"]), []).append(record)
    return groups


def predictions(records: Records, spans: tuple[int, ...]) -> dict[str, list[float]]:
    """Return by name of each predictor its values; VR and the excess are over 1 to 16 batches."""
    batch = records[0]["batch"]
    values: dict[str, list[float]] = {}
    for batches in SPANS:
        if batches * batch in spans:
            place = spans.index(batches * batch)
            if all(len(record["vr"]) > place for record in records):
                values[f"VR({batches}b)"] = [record["vr"][place] for record in records]
            values[f"excess({batches}b)"] = [record["more"][place] for record in records]
    return values


def report(records: Records, spans: tuple[int, ...]) -> None:
    """Choose a predictor on every second setting of the first text training, and print how it ranks all others."""
    groups = by_training(records)
    chosen_on = next(key for key in groups if key[0] == "text")
    half = sorted(groups[chosen_on], key=lambda record: (record["order"], record["chunk_rows"], record["memory_rows"]))
    to_choose, held_out = half[::2], half[1::2]
    names = list(predictions(to_choose, spans))
    print(f"{'rank correlation with the gap, of settings of':52}" + " ".join(f"{name:>12}" for name in names))
    rows = {f"{chosen_on}, to choose": to_choose, f"{chosen_on}, held out": held_out}
    rows |= {f"{key}": group for key, group in groups.items() if key != chosen_on}
    for name, some in rows.items():
        gaps = [record["gap"] for record in some]
        values = predictions(some, spans)
        shown = [f"{rank_correlation(values[each], gaps):12.3f}" if each in values else " " * 12 for each in names]
        print(f"{name} ({len(some)})".ljust(52) + " ".join(shown))


def draw(path: Path, records: Records, spans: tuple[int, ...]) -> None:
    """Draw the gap over VR of one batch and of four, and the rank correlation over the span."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    groups = by_training(records)
    key = next(key for key in groups if key[0] == "text")
    figure, axes = plt.subplots(1, 3, figsize=(11.0, 3.7), layout="constrained")
    for panel, name, title in zip(axes, ("VR(1b)", "VR(4b)"), ("one batch", "four successive batches"), strict=False):
        values = predictions(groups[key], spans)[name]
        for value, record in zip(values, groups[key], strict=True):
            order = record["order"] if record["order"] in COLOURS else "window"
            panel.errorbar(
                value, record["gap"], 2 * record["error"], fmt="o", markersize=4, linewidth=0.8, color=COLOURS[order]
            )
        panel.set_xscale("log")
        panel.set_yscale("symlog", linthresh=0.5)
        panel.axhspan(-0.2, 0.2, color="#009e73", alpha=0.15, linewidth=0)
        panel.set_yticks([0, 0.2, 0.5, 1, 2, 5], ["0", "0.2", "0.5", "1", "2", "5"])
        panel.set(xlabel=f"variance ratio of the mean of {title}")
        panel.set_title(f"VR of {title}", loc="left", fontweight="bold")
    axes[0].set_ylabel("% above the full permutation's loss")
    for order, colour in COLOURS.items():
        axes[0].plot([], [], "o", color=colour, markersize=4, label=order.replace("_", " "))
    axes[0].legend(frameon=False, fontsize=8)
    for (task, batch, rate), some in groups.items():
        values, gaps = predictions(some, spans), [record["gap"] for record in some]
        drawn = [(number, f"VR({number}b)") for number in SPANS if f"VR({number}b)" in values]
        axes[2].plot(
            [number for number, _ in drawn],
            [rank_correlation(values[name], gaps) for _, name in drawn],
            "o-",
            markersize=3,
            label=f"{task}, batch {batch}, rate {rate:g} ({len(some)})",
        )
    axes[2].set_xscale("log", base=2)
    axes[2].set_xticks(SPANS, [str(number) for number in SPANS])
    axes[2].set(xlabel="batches whose mean varies", ylabel="rank correlation of VR with the gap", ylim=(0.5, 1.01))
    axes[2].set_title("How well VR ranks the losses", loc="left", fontweight="bold")
    axes[2].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120, metadata={"Software": None})
