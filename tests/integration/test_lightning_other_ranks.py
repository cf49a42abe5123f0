"""Lightning resumes in the middle of an epoch on another number of ranks: every sample once, in every epoch."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NUM_SAMPLES = 208  # ranks never have fewer samples left than ranks, so no sample repeats
TRAIN = """
import json, os, sys
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
import shoal, shoal.torch

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []
    def training_step(self, batch, _):
        self.seen.append((self.current_epoch, batch["__id__"].tolist()))
        return self.layer(batch["__id__"][:, None].float() / 1000).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

name, checkpoint, max_epochs, max_steps = sys.argv[1], sys.argv[2] or None, int(sys.argv[3]), int(sys.argv[4])
loader = shoal.torch.DataLoader(shoal.open("data").shuffle(seed=0).with_ids().columns("__id__").batch(8))
model = Model()
trainer = lightning.Trainer(
    max_epochs=max_epochs, max_steps=max_steps, accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]),
    strategy="ddp", logger=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[ModelCheckpoint("kept", every_n_train_steps=5, save_top_k=-1)],
)
trainer.fit(model, loader, ckpt_path=checkpoint, **({"weights_only": False} if checkpoint else {}))
with open(f"{name}-{os.environ['RANK']}.json", "w") as file:
    json.dump(model.seen, file)
"""


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 4)])
def test_every_sample_comes_once(before: int, after: int, python: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines = "".join(json.dumps({"number": number}) + "\n" for number in range(NUM_SAMPLES))
    (tmp_path / "data" / "0.jsonl").write_text(lines)
    (tmp_path / "train.py").write_text(TRAIN)
    settings = {"PYTHONPATH": str(ROOT / "src"), "SHOAL_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}

    def seen(num_ranks: int, name: str, *arguments: object) -> Counter[tuple[int, int]]:
        command: list[str | Path] = [python("frameworks"), "-m", "torch.distributed.run", "--standalone"]
        command.append(f"--nproc-per-node={num_ranks}")
        done = subprocess.run(
            [*command, "train.py", name, *map(str, arguments)],
            env=os.environ | settings, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        batches = [json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(num_ranks)]
        return Counter((epoch, sample_id) for rank in batches for epoch, ids in rank for sample_id in ids)

    first = seen(before, "first", "", 1, 5)
    (checkpoint,) = (tmp_path / "kept").glob("*.ckpt")
    resumed = seen(after, "resumed", checkpoint, 3, -1)
    assert len(first) == 5 * 8 * before
    assert first + resumed == Counter((epoch, sample_id) for epoch in range(3) for sample_id in range(NUM_SAMPLES))
