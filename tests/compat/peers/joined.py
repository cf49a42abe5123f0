"""Compares joins of shoal with WebDataset's zipped streams, field for field.

``python -m tests.compat.peers.joined`` has WebDataset write images and captions in equal order, and zip them. A join
gives the same samples in storage order. In a window, without some shards of captions, it gives the samples with a
caption. The exit code is 1 if any sample differs; without WebDataset the comparison is skipped.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.compat.peers.environments import in_own_cache, python_of, run_in, title_of
from tests.environments import CannotHaveError

import shoal

HERE = Path(__file__).parent


def hexed(sample: dict[str, Any]) -> dict[str, str]:
    """The fields of a sample as WebDataset's script wrote them."""
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in sample.items()}


def differences(directory: Path, expected: list[dict[str, str]]) -> list[str]:
    """What is wrong; empty where nothing is."""
    images, captions = shoal.open(directory / "images"), shoal.open(directory / "captions")
    wrong = []
    rows = list(map(hexed, images.join(captions)))
    if rows != expected:
        row = next((row for row, pair in enumerate(zip(rows, expected, strict=False)) if pair[0] != pair[1]), len(rows))
        wrong.append(f"row {row} of {len(rows)}: {rows[row : row + 1]!s:.300}, and zipped {expected[row]!s:.300}")
    shards = sorted(str(path) for path in (directory / "captions").glob("*.tar"))
    some = images.join(shoal.open(shards[1:-1])).shuffle(seed=1, window="256KiB")
    left_out = {sample["__key__"] for shard in (shards[0], shards[-1]) for sample in shoal.open(shard)}
    kept = [row for row in expected if row["__key__"] not in left_out]
    if sorted(map(hexed, some), key=lambda row: row["__key__"]) != kept:
        wrong.append(f"without two shards of captions, {some.num_samples} samples are not the {len(kept)} zipped ones")
    return wrong


def main() -> int:
    """Compare, and return the exit code."""
    with tempfile.TemporaryDirectory() as home:
        directory, zipped = Path(home, "data"), Path(home, "zipped.json")
        directory.mkdir()
        try:
            run_in(python_of("webdataset"), HERE / "zips.py", directory, zipped)
        except CannotHaveError as error:
            print(f"{'joins':<24} skipped: {error}")
            return 0
        expected = json.loads(zipped.read_text())
        wrong = differences(directory, expected)
    print(f"{'joins':<24} {'differ' if wrong else 'as zipped by'} {title_of('webdataset')}, {len(expected)} samples")
    print(*(f"    {line}" for line in wrong), sep="\n", end="")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(in_own_cache(main))
