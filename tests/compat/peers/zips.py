"""Runs in the environment of WebDataset: writes images and captions, and zips both as its documentation does.

``python zips.py DIRECTORY ZIPPED.json``
"""

import json
import sys
from pathlib import Path
from typing import Any

import webdataset as wds

NUM_SAMPLES = 500


def write(directory: Path) -> None:
    """Shards of 70 images and of 110 captions, so that no borders agree."""
    for name, size in (("images", 70), ("captions", 110)):
        (directory / name).mkdir()
        with wds.ShardWriter(str(directory / name / "%04d.tar"), maxcount=size, verbose=0) as sink:
            for i in range(NUM_SAMPLES):
                key = f"{i // 100:02d}/{i:05d}.{i % 3}"  # WebDataset ends a key at the first dot
                fields = {"png": bytes([i % 251]) * (i % 700), "cls": str(i % 10)}
                more = {"caption.txt": f"caption of {i}", "score.json": {"score": i / 8}}
                sink.write({"__key__": key.replace(".", "-"), **(fields if name == "images" else more)})


def read(directory: Path, name: str) -> Any:
    urls = sorted(str(path) for path in (directory / name).iterdir())
    return wds.WebDataset(urls, shardshuffle=False)


def zipped(directory: Path) -> list[dict[str, str]]:
    """Both streams side by side, with the same keys at the same places."""
    rows = []
    for image, caption in zip(read(directory, "images"), read(directory, "captions"), strict=True):
        assert image["__key__"] == caption["__key__"]
        joined = {**caption, **image}
        fields = {name: value for name, value in joined.items() if isinstance(value, bytes)}
        rows.append({"__key__": joined["__key__"], **{name: value.hex() for name, value in fields.items()}})
    return rows


if __name__ == "__main__":
    where = Path(sys.argv[1])
    write(where)
    Path(sys.argv[2]).write_text(json.dumps(zipped(where)))
