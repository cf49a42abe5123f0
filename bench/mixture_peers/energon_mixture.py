"""Megatron Energon: prepared tars, a metadataset with `blend`, `get_savable_loader`, `energon checkpoint redist`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from job import SEED, SHARDS, Job, Pair, main, payload, shards_of
from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from megatron.energon.edataclass import edataclass
from megatron.energon.flavors import BaseWebdatasetFactory


@edataclass
class Numbered(Sample):
    """A sample, cooked."""

    source: int
    number: int
    payload: bytes


@stateless
def cook(sample: dict[str, Any]) -> Numbered:
    source, number = bytes(sample["bin"][:12]).split(b"/")
    return Numbered(**basic_sample_keys(sample), source=int(source), number=int(number), payload=sample["bin"])


class Encoder(DefaultTaskEncoder):
    """Batches as lists of pairs."""

    decoder = None
    cookers = [Cooker(cook)]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(raw_batch_type=None)

    @stateless
    def batch(self, samples: list[Numbered]) -> list[Pair]:
        """The pairs of a batch."""
        return [(sample.source, sample.number) for sample in samples]


class Reader:
    """A buffer of 100 samples and sequences of 100, as the documentation of Energon has them."""

    def __init__(self, job: Job, states: list[Any]) -> None:
        self.epoch = 0
        path = Path(job.out).with_suffix(".yaml")
        parts = [f"      - weight: {weight}\n        path: {job.source(k)}\n" for k, weight in enumerate(job.weights)]
        head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        path.write_text(head + "".join(parts), encoding="utf-8")
        workers = job.workers
        if states and len(states) != job.world_size:
            workers = len(states) * max(1, job.workers) // job.world_size
        config = WorkerConfig(rank=job.rank, world_size=job.world_size, num_workers=workers, seed_offset=SEED)
        dataset = get_train_dataset(
            path,
            batch_size=job.batch_size,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=config,
            task_encoder=Encoder(),
        )
        self.loader = get_savable_loader(dataset)
        if states:
            if len(states) != job.world_size:
                states = redistributed(states, job.world_size)
            self.loader.restore_state_rank(states[job.rank])

    def batches(self) -> Iterator[list[Pair]]:
        """What this rank gets."""
        yield from self.loader

    def state(self) -> Any:
        """A checkpoint."""
        return self.loader.save_state_rank()


def redistributed(states: list[Any], world_size: int) -> list[Any]:
    """The states for another number of ranks, by Energon's own command."""
    energon = Path(sys.executable).with_name("energon")
    with tempfile.TemporaryDirectory() as directory:
        old = [Path(directory, f"rank_{rank}.pt") for rank in range(len(states))]
        for path, state in zip(old, states, strict=True):
            torch.save(state, path)
        new = Path(directory, "new")
        new.mkdir()
        command = [energon, "checkpoint", "redist", "--new-world-size", str(world_size), *old, new]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"energon checkpoint redist: {done.stderr.strip().splitlines()[-1]}")
        return [torch.load(new / f"rank_{rank}.pt", weights_only=False) for rank in range(world_size)]


def write(directory: str, source: int, size: int) -> None:
    """As ``energon prepare`` does it, without a process for each source."""
    names = []
    for shard, numbers in enumerate(shards_of(size)):
        names.append(f"{shard:05d}.tar")
        with wds.TarWriter(f"{directory}/{names[-1]}") as writer:
            for number in numbers:
                writer.write({"__key__": f"{source:03d}-{number:08d}", "bin": payload(source, number)})
    BaseWebdatasetFactory.prepare_dataset(directory, names, split_parts_ratio=[("train", 1.0)], workers=1)
    definition = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    Path(directory, ".nv-meta", "dataset.yaml").write_text(definition, encoding="utf-8")
    assert len(names) == SHARDS


if __name__ == "__main__":
    main(Reader, write)
