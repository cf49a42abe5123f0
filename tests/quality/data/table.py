"""Prints the table of docs/guides/how-good-is-my-shuffle.md: audits of the ids that ``make_ids.py`` wrote.

python tests/quality/data/table.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.measure import Audit, audit
from shoal.orders import Window

HERE = Path(__file__).parent


def emitted(name: str, stream: str) -> Any:
    with np.load(HERE / f"{name}.npz") as file:
        return file[stream].astype(np.int64)


def of_shoal() -> Any:
    order = Window(chunks=256, num_canonical_nodes=1)
    return np.stack([order.bind([32] * 1024, seed=0, epoch=epoch).ids(0, 1 << 15) for epoch in range(2)])


def audits() -> dict[str, tuple[Audit, str]]:
    """Every row: what was audited, the audit, and the name of the finding that is quoted."""
    perfect = np.stack([np.random.default_rng(seed).permutation(1 << 15) for seed in range(2)])
    naive: dict[str, Any] = {"num_samples": 32_000, "is_part": True}
    mixed: dict[str, Any] = {"labels": np.arange(20_000) // 10_000, "num_samples": 20_000, "is_part": True}
    grain, passes = emitted("grain", "seed5"), emitted("datasets", "passes")
    return {
        "numpy `permutation`, two seeds": (audit(perfect), ""),
        "shoal, window of 256 chunks of 32": (audit(of_shoal()), ""),
        "Grain 0.2.18, `shuffle(seed=5)`, epoch 1": (audit(grain), "echo"),
        "the same beside seed 6, epoch 0": (audit(grain, others={"seed 6": emitted("grain", "seed6")}), "same order"),
        "Levanter 9263f81, Feistel permutation": (audit(emitted("levanter", "ids")), "parity"),
        "Streaming 0.13.0, `py1br`, blocks of 8000": (audit(emitted("streaming", "py1br")), "storage order"),
        "Streaming 0.13.0, `naive`, seed 7, epoch 1, beside seed 8, epoch 0": (
            audit(emitted("streaming_naive", "seed7"), others={"seed 8": emitted("streaming_naive", "seed8")}, **naive),
            "same order",
        ),
        "Streaming 0.13.0, stratified batching: one stream of a mix beside the other": (
            audit(emitted("streaming_mix", "first"), others={"the other": emitted("streaming_mix", "second")}),
            "same order",
        ),
        "LitData 0.2.76, `shuffle=True`, 2 workers, chunks of 1024": (audit(emitted("litdata", "ids")), "locality"),
        "datasets 5.2.0, buffer of 1000 over 20 shards": (audit(passes[0]), "variance"),
        "the same, two passes without `set_epoch`": (audit(passes), "same order"),
        "datasets 5.2.0, `interleave_datasets` of two sources in storage order, epoch 1, seed 1 beside 2": (
            audit(emitted("datasets", "mix_seed1"), others={"seed 2": emitted("datasets", "mix_seed2")}, **mixed),
            "same order",
        ),
        "WebDataset 1.0.2, `shardshuffle=100, seed=0`, `shuffle(1000)` over 20 shards, two epochs": (
            audit(emitted("webdataset", "epochs")),
            "in step",
        ),
    }


def table() -> str:
    """The table in Markdown."""
    lines = [
        "| audited order | samples | VR(64) | serious findings | one of them |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, (result, quoted) in audits().items():
        serious = [finding.name for finding in result.findings if finding.is_serious]
        text = next((finding.text for finding in result.findings if finding.name == quoted), "none")
        row = (name, f"{result.num_samples:,}", f"{result.vr[64]:.2f}", len(serious), text)
        lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table())
    for title, (found, _) in audits().items():
        print(f"{title}\n{found}\n")
