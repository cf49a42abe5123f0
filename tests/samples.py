"""Small datasets for tests and for the code in the documentation."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

NUM_SHARDS = 4
SAMPLES_PER_SHARD = 50
NUM_DOCS = 200


def write_tar(path: Path, samples: list[dict[str, bytes]]) -> None:
    """Write samples (``__key__`` and one entry per extension) as a tar shard, the same bytes every time."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in samples:
            for extension, data in sample.items():
                if extension == "__key__":
                    continue
                member = tarfile.TarInfo(f"{sample['__key__'].decode()}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def write_tar_shards(
    directory: Path, *, num_shards: int = NUM_SHARDS, samples_per_shard: int = SAMPLES_PER_SHARD
) -> list[Path]:
    """Write ``train-000000.tar`` and so on: sample NNNN is ``NNNN.txt`` ("sample NNNN") and ``NNNN.cls`` (its shard).

    Samples are numbered through all shards, and the class is the same all over a shard, so that an order that does
    not mix shows.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for shard in range(num_shards):
        first = shard * samples_per_shard
        samples = [
            {"__key__": f"{i:04d}".encode(), "txt": f"sample {i:04d}".encode(), "cls": str(shard).encode()}
            for i in range(first, first + samples_per_shard)
        ]
        paths.append(directory / f"train-{shard:06d}.tar")
        write_tar(paths[-1], samples)
    return paths


def write_jsonl(path: Path, *, num_docs: int = NUM_DOCS) -> Path:
    """Write one JSON object a line: ``{"id": i, "text": ...}``, of varying length."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"id": i, "text": f"document {i} " + "word " * (i % 17)}) for i in range(num_docs))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_photos(directory: Path, *, num_shards: int = 2, photos_per_shard: int = 40) -> None:
    """Write ``train-000000.tar`` and so on: sample NNNN is ``NNNN.jpg``, 48 pixels wide and 32, 40 or 48 high."""
    from PIL import Image

    directory.mkdir(parents=True, exist_ok=True)
    for shard in range(num_shards):
        samples = []
        for number in range(shard * photos_per_shard, (shard + 1) * photos_per_shard):
            stream = io.BytesIO()
            Image.new("RGB", (48, 32 + number % 3 * 8), (3 * number, 200 - number, 99)).save(stream, "JPEG")
            samples.append({"__key__": f"{number:04d}".encode(), "jpg": stream.getvalue()})
        write_tar(directory / f"train-{shard:06d}.tar", samples)


def write_sample_data(directory: Path) -> Path:
    """Write what the documentation reads: ``data/train-000000.tar`` to ``-000003.tar`` and ``data/docs.jsonl``.

    And ``mds/`` and ``litdata/``: 200 small documents, as MosaicML Streaming and LitData wrote them; ``robot/``: four
    episodes of a LeRobot dataset (``python -m tests.robots``).
    """
    write_tar_shards(directory / "data")
    write_jsonl(directory / "data" / "docs.jsonl")
    for name in ("mds", "litdata", "robot"):
        shutil.copytree(Path(__file__).parent / "guides" / name, directory / name)
    return directory


def write_example_data(directory: Path) -> Path:
    """Write what the examples of docstrings read; the docstring of `shoal` describes the data.

    ``pets/`` has 120 texts of cats, 60 of dogs and 20 of owls, ``data/`` has their four tar shards, and ``pets.csv``
    three rows. ``docs/`` has 40 documents of 8 to 47 tokens, ``tokens.bin`` 5,000 tokens; ``web/`` and ``code/`` have
    90 and 30 texts. LitData wrote ``litdata/`` and ``litdata-tokens/``; ``robot/`` is a LeRobot dataset.
    ``tokenizer.json`` has all words of ``pets/``.
    """
    import numpy as np

    import shoal

    for name, number in {"cat": 120, "dog": 60, "owl": 20}.items():
        (directory / "pets" / name).mkdir(parents=True)
        for i in range(number):
            (directory / "pets" / name / f"{i:03d}.txt").write_text(f"{name} {i}")
    shoal.pack.pack(directory / "pets", directory / "data", prefix="train", shard_bytes="100KiB", num_workers=1)
    (directory / "pets.csv").write_text("name;age\nTom;3\nRex;5\nHoot;2\n")
    lengths = [8 + 7 * i % 40 for i in range(40)]
    docs = ({"tokens": np.arange(100, 100 + n, dtype=np.uint16), "num_tokens": n} for n in lengths)
    shoal.pack.pack(docs, directory / "docs", format="mds", columns=["num_tokens"])
    np.arange(5000, dtype=np.uint16).tofile(directory / "tokens.bin")
    for name, number in {"web": 90, "code": 30}.items():
        shoal.pack.pack(({"text": f"{name} {i}"} for i in range(number)), directory / name, format="jsonl")
    for name in ("litdata", "robot"):
        shutil.copytree(Path(__file__).parent / "guides" / name, directory / name)
    peers = Path(__file__).parent / "formats" / "data" / "peers"
    shutil.copytree(peers / "litdata" / "numpy", directory / "litdata-tokens")
    words = ["[UNK]", "cat", "dog", "owl", *map(str, range(120))]
    model = {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {word: i for i, word in enumerate(words)}}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory
