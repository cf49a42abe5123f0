"""Logs a run to TensorBoard, an offline run of Weights & Biases and a logger of Lightning: ``... FOLDER``.

Prints what each tool has kept, as JSON.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
import lightning.pytorch.loggers
import torch.utils.tensorboard
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import shoal
import shoal.watch

NUM_BATCHES = 12


def main() -> None:
    """Log three intervals to each, and print them."""
    folder = Path(sys.argv[1])
    board = torch.utils.tensorboard.SummaryWriter(str(folder / "board"))
    run = wandb.init(project="shoal", dir=str(folder))
    logger = lightning.pytorch.loggers.CSVLogger(str(folder), name="csv")
    live = shoal.from_iterable(range(10 * NUM_BATCHES)).batch(10)
    logs = [shoal.watch.log_to(writer, live, every_seconds=1e-9) for writer in (board, run, logger)]
    for step, _ in enumerate(live, 1):
        if step % 4 == 0:
            logs[0](100 + step)
            logs[1]()
            logs[2]()
    board.close()
    logger.save()
    kept: dict[str, Any] = {"wandb": dict(run.summary)}
    run.finish()
    events = EventAccumulator(str(folder / "board"))
    events.Reload()
    kept["tensorboard"] = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
    with (Path(logger.log_dir) / "metrics.csv").open(newline="", encoding="utf-8") as file:
        kept["lightning"] = [(int(row["step"]), float(row["data/samples"])) for row in csv.DictReader(file)]
    print(json.dumps(kept, default=float))


if __name__ == "__main__":
    main()
