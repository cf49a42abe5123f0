"""Makes tests/formats/data/mds with Streaming's own writers (run where mosaicml-streaming 0.13.0 is installed).

    python tests/formats/data/make_mds.py

Two shards of all encodings (and what Streaming's own reader gives for them, as JSON), one of pickles, one for each
compression, and the shards that Streaming splits at newlines.
"""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).parent / "mds"
COLUMNS = {
    **{name: name for name in ("bytes", "str", "int", "json", "str_int", "str_float", "str_decimal")},
    **{name: name for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")},
    **{name: name for name in ("float16", "float32", "float64")},
    "any_array": "ndarray",
    "typed_array": "ndarray:int16",
    "fixed_array": "ndarray:float32:2,3",
    **{name: name for name in ("pil", "jpeg", "png", "jpeg_array", "list[pil]", "list[jpeg]", "list[png]")},
}


def image(number: int, mode: str = "RGB") -> Image.Image:
    bands = 3 if mode == "RGB" else 1
    pixels = np.arange(4 * 5 * bands, dtype=np.uint8).reshape((4, 5, 3) if bands == 3 else (4, 5)) + number
    return Image.fromarray(pixels.astype(np.uint8))


def encoded(picture: Image.Image) -> bytes:
    out = BytesIO()
    picture.save(out, "JPEG")
    return out.getvalue()


def sample(number: int) -> dict[str, Any]:
    return {
        "bytes": bytes(range(number)),
        "str": "caf\u00e9 " * number,
        "int": number - 2**40,
        "json": {"a": [number, None], "b": "x"},
        "str_int": 10**30 + number,
        "str_float": number / 7,
        "str_decimal": Decimal("1.10") * number,
        **{
            name: np.dtype(name).type(number + 3)
            for name in COLUMNS
            if name.startswith(("uint", "int")) and name != "int"
        },
        **{name: np.dtype(name).type(number / 2 - 1) for name in ("float16", "float32", "float64")},
        "any_array": np.arange(2 * (number + 1), dtype=["uint8", "int64", "float16"][number % 3]).reshape(2, -1),
        "typed_array": np.arange(300 if number == 1 else number + 1, dtype=np.int16),
        "fixed_array": np.arange(6, dtype=np.float32).reshape(2, 3) * number,
        "pil": image(number, "L" if number % 2 else "RGB"),
        "jpeg": image(number),
        "png": image(number),
        "jpeg_array": [encoded(image(number + place)) for place in range(2)],
        "list[pil]": [image(number)] * (number % 3),
        "list[jpeg]": [image(number)] * (number % 2 + 1),
        "list[png]": [],
    }


def plain(value: Any) -> Any:
    """A value as JSON, with its type, so that equal means equal."""
    if isinstance(value, Image.Image):
        return ["image", value.mode, list(value.size), value.tobytes().hex()]
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.name, list(value.shape), value.tobytes().hex()]
    if isinstance(value, np.generic):
        return ["scalar", value.dtype.name, value.tobytes().hex()]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, list):
        return ["list", [plain(item) for item in value]]
    return [type(value).__name__, value if isinstance(value, dict) else str(value)]


def main() -> None:
    from streaming import CSVWriter, JSONWriter, LocalDataset, MDSWriter, TSVWriter

    shutil.rmtree(HERE, ignore_errors=True)
    with MDSWriter(out=str(HERE / "all"), columns=COLUMNS, size_limit=5000) as writer:
        for number in range(5):
            writer.write(sample(number))
    read = LocalDataset(str(HERE / "all"))
    values = [{name: plain(value) for name, value in read[number].items()} for number in range(5)]
    (HERE / "all.json").write_text(json.dumps(values) + "\n")
    with MDSWriter(out=str(HERE / "pickles"), columns={"x": "pkl"}) as writer:
        writer.write({"x": {1, 2}})
    for codec in ("zstd", "gz", "bz2", "br", "snappy"):
        with MDSWriter(
            out=str(HERE / codec),
            columns={"n": "int", "s": "str"},
            compression=codec,
            hashes=["sha1", "xxh64"],
            size_limit=300,
        ) as writer:
            for number in range(20):
                writer.write({"n": number, "s": "ab" * number})
    rows = [{"n": number, "s": f"text {number}"} for number in range(7)]
    for writer_of, name in ((JSONWriter, "json"), (CSVWriter, "csv"), (TSVWriter, "tsv")):
        with writer_of(out=str(HERE / name), columns={"n": "int", "s": "str"}) as writer:
            for row in rows:
                writer.write(row)


if __name__ == "__main__":
    main()
