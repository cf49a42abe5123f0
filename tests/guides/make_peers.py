"""Made ``mds/`` and ``litdata/`` beside this file, once, with mosaicml-streaming 0.13.0 and litdata 0.2.76.

Each holds 200 samples, ``{"id": i, "text": ...}``, in some small shards: what the migration guides begin with.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def sample(number: int) -> dict[str, Any]:
    """One sample."""
    return {"id": number, "text": f"document {number} " + "word " * (number % 17)}


def main() -> None:
    """Write both."""
    import litdata
    from streaming import MDSWriter

    for name in ("mds", "litdata"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    with MDSWriter(out=str(HERE / "mds"), columns={"id": "int", "text": "str"}, size_limit=4096) as writer:
        for number in range(200):
            writer.write(sample(number))
    litdata.optimize(fn=sample, inputs=list(range(200)), output_dir=str(HERE / "litdata"), chunk_size=50, num_workers=1)


if __name__ == "__main__":
    main()
