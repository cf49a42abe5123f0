"""shoal as a row of a benchmark of streaming loaders, which reads what the peers wrote, where it lies.

The module is put into the ``adapters/`` of that benchmark by ``bench/peerbench.py``, and has the names that it wants:
`fmt`, `write` and `Pipeline`. Variants are formats: "mds", "parquet" and "tar". Where the benchmark has a server, they
are read from it over http, and with "+s3" behind them by S3; with "+1MiB" in requests of that size.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import shoal

warnings.simplefilter("ignore", shoal.errors.ShuffleWarning)

_BATCH = 64


def fmt(variant: str) -> str:
    """The directory of the peer whose shards are read."""
    return variant.partition("+")[0]


def write(cfg: Any, variant: str, directory: str, samples: Any) -> None:  # noqa: ARG001
    """Nothing: the shards are a peer's."""
    msg = f"{directory} is not there: let the peer that writes {variant} go first"
    raise SystemExit(msg)


class Pipeline:
    """One epoch: sample by sample, or in batches from worker processes."""

    def __init__(self, cfg: Any, variant: str) -> None:
        self.variant, *how = variant.split("+")
        self.cfg = cfg
        directory = Path(cfg.dir(self.variant))
        names = sorted(path.name for path in directory.glob(f"*.{self.variant}"))
        options: dict[str, Any] | None = None
        if not cfg.s3:
            root = str(directory)
        elif "s3" in how:
            root = f"s3://{cfg.s3['bucket']}/{directory.name}"
            options = {"endpoint": cfg.s3["endpoint"], "anonymous": True, "region": "us-east-1"}
        else:
            root = f"{cfg.s3['endpoint']}/{cfg.s3['bucket']}/{directory.name}"
        ds = shoal.open([f"{root}/{name}" for name in names], storage_options=options)
        ds = ds.shuffle(seed=cfg.seed, window=cfg.budget, chunk="1MiB" if "1MiB" in how else None)
        if self.variant == "tar":
            ds = ds.decode()
        ds.set_epoch(cfg.epoch)
        self.ds = ds.partition(rank=cfg.rank, world_size=cfg.world).format("numpy")
        self.batches = self.ds.batch(cfg.batch)
        self.saved: dict[str, Any] | None = None

    def _fields(self) -> tuple[str, str, str]:
        payload = {"tokens": "x", "blob": "x", "text": "text"}[self.cfg.kind]
        if self.variant == "tar":
            return "__key__", "cls", "bin"
        return "idx", "class", payload

    def _payloads(self, values: Any) -> Any:
        if self.cfg.kind == "text" or isinstance(values, np.ndarray):
            return values
        kind = np.uint16 if self.cfg.kind == "tokens" else np.uint8
        return [np.frombuffer(value, kind) for value in values]

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        ds, (idx, cls, payload) = self.ds.batch(_BATCH), self._fields()
        if self.saved is not None:
            ds.load_state_dict(self.saved)
        self.iterator = iter(ds)
        for batch in self.iterator:
            ids, classes = (list(map(int, batch[name])) for name in (idx, cls))
            yield from zip(ids, classes, self._payloads(batch[payload]), strict=True)

    def loader(self) -> Iterator[tuple[Any, Any, Any]]:
        """Batches: of numpy's arrays from this process, or from ``cfg.workers`` of them."""
        if not self.cfg.workers:
            stream: Any = self.batches
        else:
            import shoal.torch  # noqa: PLC0415  # without workers nothing of torch is loaded

            stream = shoal.torch.DataLoader(self.batches, num_workers=self.cfg.workers)
        if self.saved is not None:
            stream.load_state_dict(self.saved)
        self.iterator = stream
        idx, cls, payload = self._fields()
        for batch in stream:
            yield batch[idx], batch[cls], self._payloads(batch[payload])

    def state(self, seen: int) -> bytes:
        """What goes on after so many samples, which are whole batches."""
        del seen
        return json.dumps(self.iterator.state_dict()).encode()

    def load(self, blob: bytes) -> None:
        """Go on from a state."""
        self.saved = json.loads(blob)
