"""A process that consumes a live stream and is killed: ``python killed_stream.py KIND DIRECTORY CHECKPOINT CONTENTS``.

Every few batches it replaces its checkpoint: the state, and all that was delivered up to it. It says "saved" each time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shoal
from shoal.live.live_dataset import LiveDataset

TOTAL = 400


class Events:
    """Events by number, as of a log that can be read from an offset."""

    next = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.next < TOTAL:
            self.next += 1
            yield {"id": self.next - 1, "payload": bytes(self.next % 50)}

    def state_dict(self) -> dict[str, int]:
        return {"offset": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["offset"]


def stream(kind: str, directory: Path) -> LiveDataset:
    if kind == "followed":
        ds = shoal.follow(str(directory), idle_seconds=0)
    elif kind == "replayed":
        ds = shoal.from_iterable(Events, replay=True)
    else:
        ds = shoal.from_iterable(Events())
    return ds.shuffle(seed=7, buffer=50).batch(3)


def main(kind: str, directory: Path, checkpoint: Path, *, contents: bool) -> None:
    ds = stream(kind, directory)
    delivered: list[int] = []
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        ds.load_state_dict(saved["state"])
        delivered = saved["delivered"]
    for step, batch in enumerate(ds):
        delivered += batch["id"].tolist()
        time.sleep(0.001)
        if step % 5 == 4:
            part = checkpoint.with_suffix(".part")
            part.write_text(json.dumps({"state": ds.state_dict(contents=contents), "delivered": delivered}))
            part.replace(checkpoint)
            sys.stdout.write("saved\n")
            sys.stdout.flush()
    assert not ds.stats()["num_lost"]
    sys.stdout.write(json.dumps(delivered) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), contents=sys.argv[4] == "contents")
