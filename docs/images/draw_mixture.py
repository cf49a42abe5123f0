"""Draws ``mixture.svg``: ``python docs/images/draw_mixture.py``, which runs `shoal mix` on the mixture below."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

SIZES = {"web": 12_000, "code": 4000, "books": 1500, "wiki": 1200}
BLEND = """
sources:
  web: {path: web.jsonl, weight: 0.6}
  code: {path: code.jsonl, weight: 0.25}
  books: {path: books.jsonl, weight: 0.1}
  wiki: {path: wiki.jsonl, weight: 0.05}
seed: 3
epoch_size: 16000
shuffle: {window: 1MiB, seed: 1}
changes:
  - {at: 5000, ramp: 3000, weights: {web: 0.2, code: 0.45, books: 0.2, wiki: 0.15}}
  - {at: 12000, weights: {web: 0.11, code: 0.6, books: 0, wiki: 0.29}}
"""


def main() -> None:
    """Draw it."""
    picture = Path(__file__).parent.absolute() / "mixture.svg"
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SHOAL_CACHE_DIR"] = f"{directory}/cache"
        from shoal.cli.main import main as shoal  # noqa: PLC0415  # it reads the variable

        os.chdir(directory)
        for name, size in SIZES.items():
            lines = (json.dumps({"id": number, "text": "word " * 9}) for number in range(size))
            Path(f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        Path("blend.yaml").write_text(BLEND)
        picture.unlink(missing_ok=True)
        shoal(["mix", "blend.yaml", "--global-batch", "64", "--picture", str(picture)])
        os.chdir("/")


if __name__ == "__main__":
    main()
