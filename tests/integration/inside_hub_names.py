"""Opens datasets of a hub of this machine by name, with shoal and with ``datasets``; run by test_hub.py.

Prints one line for each layout and split that differs, and at the end how many layouts, splits and rows are equal.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.hub_server import HubServer

from shoal.errors import ShoalError


def rows(name: str, count: int) -> list[dict[str, Any]]:
    """Rows that name their file."""
    return [{"text": f"{name} {number}", "number": number} for number in range(count)]


def jsonl(name: str, count: int = 3) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows(name, count)).encode()


def csv(name: str, count: int = 3, delimiter: str = ",") -> bytes:
    lines = [f"{row['text']}{delimiter}{row['number']}" for row in rows(name, count)]
    return "\n".join([f"text{delimiter}number", *lines, ""]).encode()


def parquet(name: str, count: int = 3) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows(name, count)), sink)
    return sink.getvalue()


def tar(name: str, count: int = 3) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for number in range(count):
            for suffix, text in (("txt", f"{name} {number}"), ("cls", str(number))):
                member = tarfile.TarInfo(f"{name}-{number}.{suffix}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return sink.getvalue()


def image(shade: int) -> bytes:
    from PIL import Image

    sink = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, shade, shade)).save(sink, "PNG")
    return sink.getvalue()


def card(text: str) -> bytes:
    return f"---\nlicense: mit\n{text}\n---\n# About\n".encode()


def many(names: str, make: Any) -> dict[str, bytes]:
    """Files by name, each with rows that name it."""
    return {name: make(name) for name in names.split()}


SPLITS_IN_README = """configs:
- config_name: default
  data_files:
  - split: train
    path: "first/*.jsonl"
  - split: later
    path:
    - second/b.jsonl
    - second/a.jsonl"""
TWO_CONFIGS = """configs:
- config_name: en
  data_files: "en/*.parquet"
- config_name: de
  data_dir: de
  default: true"""
DELIMITED = """configs:
- config_name: default
  data_files: "*.csv"
  sep: ";\""""
TREE = """configs:
- config_name: default
  data_files:
  - split: train
    path: "**/*.jsonl"
"""

LAYOUTS: dict[str, dict[str, bytes]] = {
    "one file": many("data.jsonl", jsonl),
    "names of files": many("train.csv test.csv validation.csv", csv),
    "words in names": many("my_train_file-1.jsonl my_train_file-2.jsonl eval-set.jsonl x.dev.jsonl", jsonl),
    "directories": many("train/b.parquet train/a.parquet test/a.parquet", parquet),
    "directories below": many("data/train/x/1.jsonl data/train/y/0.jsonl data/val/1.jsonl", jsonl),
    "words in directories": many("my-train-part/a.jsonl my-test-part/b.jsonl", jsonl),
    "pushed": many(
        "data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet data/test-00000-of-00001.parquet "
        "data/odd_split-00000-of-00001.parquet",
        parquet,
    ),
    "pushed with digests": many("data/train-00000-of-00001-abcdef0123.parquet", parquet),
    "splits in README": {
        "README.md": card(SPLITS_IN_README),
        **many("first/b.jsonl first/a.jsonl second/a.jsonl second/b.jsonl other/c.jsonl", jsonl),
    },
    "two configurations": {
        "README.md": card(TWO_CONFIGS),
        **many("en/1.parquet en/2.parquet de/train.parquet de/test.parquet", parquet),
    },
    "own YAML": {"README.md": card("tags: [x]"), ".huggingface.yaml": SPLITS_IN_README.encode()}
    | many("first/b.jsonl second/a.jsonl second/b.jsonl", jsonl),
    "a delimiter": {"README.md": card(DELIMITED), "a.csv": csv("a", delimiter=";")},
    "compressed": {f"{split}.jsonl.gz": gzip.compress(jsonl(split)) for split in ("train", "test")},
    "text": {"train.txt": b"one\ntwo\nthree\n", "test.txt": b"four\n"},
    "tsv": {"train.tsv": csv("train", delimiter="\t")},
    "tars": many("train-000.tar train-001.tar test-000.tar", tar),
    "mixed suffixes": {**many("a.parquet b.parquet", parquet), "notes.txt": b"no data\n"},
    "a draw of suffixes": {**many("a.parquet", parquet), **many("b.csv", csv), **many("c.jsonl", jsonl)},
    "hidden files": many("train.jsonl .hidden/train.jsonl __pycache__/train.jsonl .train.jsonl", jsonl),
    "hidden by a tree": {"README.md": card(TREE), **many("a/b/x.jsonl .y/z.jsonl a.jsonl", jsonl)},
    "no data": {"dataset_infos.json": b"{}", "config.json": b"{}", "train.jsonl": jsonl("train.jsonl")},
    "images in classes": {f"{split}/{kind}/{number}.png": image(50 * number) for split in ("train", "test")
                          for kind in ("cat", "dog") for number in (1, 2)},
    "images with a table": {
        **{f"{number}.png": image(number) for number in (1, 2)},
        "metadata.jsonl": b'{"file_name": "1.png", "what": "one"}\n{"file_name": "2.png", "what": "two"}\n',
    },
    "upper case": many("TRAIN.jsonl Test.jsonl", jsonl),
    "words of splits beside others": many("training.jsonl pretrain.jsonl trainee.jsonl testing_x.jsonl", jsonl),
}  # fmt: skip


def plain(value: Any) -> Any:
    """A value as text, so that a csv's numbers, which `datasets` converts, compare."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if hasattr(value, "tobytes"):
        return value.tobytes()  # an image, decoded
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return str(value) if isinstance(value, int | float) else value


def by_shoal(source: str, split: str, url: str) -> Iterator[dict[str, Any]]:
    import shoal

    for sample in shoal.open(source, split=split, storage_options={"endpoint": url}):
        named = {{"png": "image", "cls": "label"}.get(name, name): value for name, value in sample.items()}
        if "image" in named:
            from PIL import Image

            named.pop("__key__")
            named["image"] = Image.open(io.BytesIO(named["image"]))
            yield {name: plain(value) for name, value in named.items()}
        else:
            yield {name: plain(value) for name, value in sample.items()}


def by_datasets(repository: str, config: str | None, split: str) -> Iterator[dict[str, Any]]:
    import datasets

    streamed = datasets.load_dataset(repository, config, split=split, streaming=True)
    for sample in streamed:
        yield {name: plain(value) for name, value in sample.items() if name != "__url__"}


def main() -> None:
    """Compare every layout, configuration and split."""
    with HubServer() as hub:
        # Before the libraries are imported.
        os.environ.update(HF_ENDPOINT=hub.url, HF_DATASETS_CACHE=tempfile.mkdtemp(), HF_HUB_CACHE=tempfile.mkdtemp())
        import datasets

        datasets.config.USE_PARQUET_EXPORT = False
        datasets.disable_progress_bars()
        num_splits = num_rows = 0
        for number, (layout, files) in enumerate(LAYOUTS.items()):
            repository = f"me/layout{number}"
            hub.commit(repository, files)
            for config in datasets.get_dataset_config_names(repository):
                default = config == "default" and b"config_name" not in files.get("README.md", b"")
                name = f"hf://datasets/{repository}" + ("" if default else f"#{config}")
                for split in datasets.get_dataset_split_names(repository, config):
                    expected = list(by_datasets(repository, config, str(split)))
                    try:
                        found = list(by_shoal(name, str(split), hub.url))
                    except ShoalError as error:
                        print(f"{layout}, {config}, {split}: {error}")
                        continue
                    if found != expected:
                        print(f"{layout}, {config}, {split}: {found[:3]}, and datasets reads {expected[:3]}")
                    num_splits += 1
                    num_rows += len(expected)
        print(f"{len(LAYOUTS)} layouts, {num_splits} splits, {num_rows} rows compared")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
