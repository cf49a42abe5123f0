"""Makes tests/formats/data/litdata with LitData's own writer (run where litdata 0.2.76 is installed).

    python tests/formats/data/make_litdata.py

Three chunks, their index.json, and what LitData's own reader gives for them, as JSON.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from litdata import StreamingDataset
from litdata.streaming.writer import BinaryWriter

OUT = Path(__file__).parent / "litdata"


def item(number: int) -> dict[str, Any]:
    return {
        "i": number - 2,
        "f": number * 0.5,
        "s": f"text \u00e9 {number}",
        "b": b"ab" * number,
        "ok": number % 2 == 0,
        "a": np.arange(number * 2, dtype=np.int16).reshape(2, number),
        "v": np.arange(number, dtype=np.float32),
        "t": torch.arange(number + 1),
        "m": torch.ones((2, number)),
        "nest": [number, ("x", {"k": number})],
    }


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.name, list(value.shape), value.tobytes().hex()]
    if isinstance(value, bytes | memoryview | bytearray):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, dict):
        return ["dict", {name: plain(inner) for name, inner in value.items()}]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [plain(inner) for inner in value]]
    return [type(value).__name__, str(value)]


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    writer = BinaryWriter(str(OUT), chunk_size=3)
    for number in range(7):
        writer[number] = item(number)
    writer.done()
    writer.merge()
    found = StreamingDataset(str(OUT))
    expected = [{name: plain(value) for name, value in found[number].items()} for number in range(7)]
    (OUT / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")


if __name__ == "__main__":
    main()
