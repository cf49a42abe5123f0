"""Makes tests/formats/data/hf with Hugging Face datasets itself (run where datasets 5.2.0 and pillow are installed).

    python tests/formats/data/make_hf.py

A directory of `save_to_disk` in two shards, a Parquet file and a cache file of the same rows; and what datasets gives
for them, as JSON.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent / "hf"


def picture(number: int, *, turned: bool = False) -> bytes:
    from PIL import Image

    pixels = (np.arange(4 * 5 * 3).reshape(4, 5, 3) * 3 + 11 * number).astype(np.uint8)
    image = Image.fromarray(pixels if number % 2 else pixels[:, :, 0])
    out = io.BytesIO()
    exif = Image.Exif()
    if turned:
        exif[0x0112] = 6
    image.save(out, "PNG", exif=exif)
    return out.getvalue()


def rows() -> list[dict[str, Any]]:
    return [
        {
            "image": None if number == 4 else {"bytes": picture(number, turned=number == 2), "path": f"{number}.png"},
            "grey": {"bytes": picture(1), "path": None},
            "raw": {"bytes": picture(number), "path": None},
            "label": -1 if number == 3 else number % 2,
            "audio": {"bytes": bytes([82, 73, number]), "path": "a.wav"},
            "views": [{"bytes": picture(place), "path": None} for place in range(number % 3)],
            "boxes": [{"label": place % 2, "area": place / 2} for place in range(number % 3)],
            "deep": {"label": number % 2, "text": f"row {number}"},
            "when": f"2026-01-0{number + 1}",
            "any": (None, "7", "1.5", '"text \u00e9"', '[1, null, {"k": []}]', '{"deep": {"yes": true}}')[number],
            "calls": [json.dumps({"name": "f", "arguments": {f"x{place}": place}}) for place in range(number % 3)],
        }
        for number in range(6)
    ]


def plain(value: Any) -> Any:
    """A value as JSON, with its type, so that equal means equal."""
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return ["image", value.mode, list(value.size), value.tobytes().hex()]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, list):
        return ["list", [plain(item) for item in value]]
    if isinstance(value, dict):
        return ["dict", {name: plain(item) for name, item in value.items()}]
    return [type(value).__name__, value]


def main() -> None:
    import datasets
    import pyarrow as pa
    from datasets import Audio, ClassLabel, Dataset, DatasetInfo, Features, Image, Json, List, Value
    from datasets.table import InMemoryTable

    classes = ClassLabel(names=["cat", "dog"])
    features = Features(
        {
            "image": Image(),
            "grey": Image(mode="L"),
            "raw": Image(decode=False),
            "label": classes,
            "audio": Audio(decode=True, sampling_rate=8000),
            "views": List(Image()),
            "boxes": List({"label": classes, "area": Value("float32")}),
            "deep": {"label": classes, "text": Value("string")},
            "when": Value("string"),
            "any": Json(),
            "calls": List(Json()),
        }
    )
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    # Of a table: to encode audio datasets wants a decoder of audio, too.
    schema, known = features.arrow_schema, rows()
    plain_fields = [field for field in schema if field.name not in ("any", "calls")]
    table = pa.Table.from_pylist(known, schema=pa.schema(plain_fields))
    calls = pa.array([call for row in known for call in row["calls"]], pa.json_())
    ends = np.cumsum([0, *(len(row["calls"]) for row in known)])
    for name, array in (
        ("any", pa.array([row["any"] for row in known], pa.json_())),
        ("calls", pa.ListArray.from_arrays(pa.array(ends, pa.int32()), calls)),
    ):
        table = table.append_column(schema.field(name), array)
    table = table.replace_schema_metadata(schema.metadata)
    made = Dataset(InMemoryTable(table), info=DatasetInfo(features=features))
    made.save_to_disk(str(HERE / "saved"), num_shards=2)
    made.to_parquet(str(HERE / "rows.parquet"), batch_size=4)
    read = datasets.load_from_disk(str(HERE / "saved")).cast_column("audio", Audio(decode=False))
    cached = read.map(lambda row: row, cache_file_name=str(HERE / "cache.arrow"), writer_batch_size=2)
    (HERE / "rows.json").write_text(json.dumps([plain(dict(row)) for row in cached]) + "\n")


if __name__ == "__main__":
    main()
