"""What Accelerate makes of `shoal.torch.IterableDataset` on two ranks: it ends with an error, or is right.

Usage: torchrun --nproc-per-node 2 second_dealing.py WAY DATA NUM_WORKERS; rank 0 prints what became of it.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch.utils.data
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, gather_object

import shoal
import shoal.torch
from shoal.errors import UsageError


def main() -> None:
    way, data, num_workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    warnings.simplefilter("ignore")
    dispatch = {"dispatched": True, "sharded": False, "plain": None}[way]
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    ds = shoal.open(data).shuffle(seed=0).with_ids().columns("__id__")
    # Accelerate cannot share out what comes in batches: it multiplies batch_size=None.
    ds, batch_size = (ds, 8) if way == "sharded" else (ds.batch(8), None)
    options: dict[str, Any] = {"multiprocessing_context": "forkserver"} if num_workers else {}
    loader: Any = torch.utils.data.DataLoader(
        shoal.torch.IterableDataset(ds), batch_size=batch_size, num_workers=num_workers, **options
    )
    if way != "plain":
        loader = accelerator.prepare(loader)
    seen: list[int] = []
    said = ""
    try:
        for batch in loader:
            seen += batch["__id__"].tolist()
    except UsageError as error:
        said = str(error)
    everybody = gather_object([(said, seen)])
    if accelerator.is_main_process:
        errors = sorted({text for text, _ in everybody if text})
        ids = sorted(i for _, part in everybody for i in part)
        print("refused: " + errors[0] if errors else f"right: {ids == list(range(ds.num_samples))}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
