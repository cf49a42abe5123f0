"""Compares LeRobot datasets as shoal reads them with lerobot's own reader, value by value and pixel by pixel.

``python -m tests.compat.lerobot.robots [RELEASE ...]`` has lerobot write datasets (v3.0 with three codecs, and v2.1 by
an older release) and read them with both of its decoders: PyAV, whose pixels must be equal, and torchcodec, whose
conversion of colors may differ by some levels. Exit code 1 if any value differs; what this machine cannot have is
skipped by name.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.compat.peers.environments import HOME, in_own_cache, run_in
from tests.environments import CannotHaveError, environment, home_of

import shoal

HERE = Path(__file__).parent
# lerobot asks for robots, simulators and other versions of torch; its reader of datasets needs these alone.
_NEEDED = (
    *("numpy==2.2.6", "av==18.1.0", "pandas==3.1.1", "pillow>=11", "jsonlines==4.0.0"),
    *("safetensors==0.8.0", "psutil==7.2.2", "pyyaml==6.0.4"),
)
_ALONE = ("torchvision==0.25.0", "torchcodec==0.13.0", "accelerate==1.15.0")
_DATASETS = {"0.4.4": "datasets==4.8.5", "0.3.3": "datasets==3.6.0"}
RELEASES = {"0.4.4": ("h264", "hevc", "libsvtav1"), "0.3.3": ("libsvtav1",)}
"""Codecs by release: 0.4.4 writes v3.0, and 0.3.3 v2.1, with one codec."""
OFFSETS = {"observation.images.top": [-2, 0, 1], "action": list(range(16)), "observation.state": [-1, 0]}
_MOST_LEVELS = {"pyav": 0, "torchcodec": 2}


def python_of(release: str) -> Path:
    """The Python that has a release of lerobot."""
    alone = (f"lerobot=={release}", *_ALONE)
    return environment(home_of(HOME, f"lerobot-{release}"), (*_NEEDED, _DATASETS[release]), alone=alone, torch=True)


class Counts(NamedTuple):
    """What was compared, and what was wrong."""

    samples: int
    refused: int
    values: int
    frames: int
    most_levels: int
    wrong: list[str]


def expected_samples(path: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Rows and windows, by number of the row."""
    kept: dict[str, dict[int, dict[str, Any]]] = {"rows": defaultdict(dict), "windows": defaultdict(dict)}
    with np.load(path) as file:
        for key in file.files:
            kind, row, name = key.split("/", 2)
            kept[kind][int(row)][name] = file[key]
    return kept


def compared(expected: dict[int, dict[str, Any]], ds: shoal.Dataset, backend: str) -> Counts:
    """Compare samples by number of their row."""
    refused = values = frames = most = 0
    wrong: list[str] = []
    for row, sample in expected.items():
        found = ds[row]
        if "refused" in sample:  # by lerobot's reader, and here the sample is there
            refused += 1
            continue
        if found.keys() != sample.keys():
            wrong.append(f"row {row} has the fields {sorted(found.keys() ^ sample.keys())} on one side alone")
        for name in found.keys() & sample.keys():
            one, other = np.asarray(sample[name]), np.asarray(found[name])
            if one.shape != other.shape or (one.dtype.kind != "U" and one.dtype != other.dtype):
                wrong.append(f"row {row}, {name}: {other.dtype}{other.shape}, and lerobot gives {one.dtype}{one.shape}")
            elif one.dtype == np.uint8:
                frames += 1 if one.ndim == 3 else len(one)
                levels = int(np.abs(one.astype(int) - other.astype(int)).max())
                most = max(most, levels)
                if levels > _MOST_LEVELS[backend]:
                    wrong.append(f"row {row}, {name}: pixels differ by {levels} levels")
            else:
                values += one.size
                if not np.array_equal(one, other):
                    wrong.append(f"row {row}, {name}: {other!r:.80}, and lerobot gives {one!r:.80}")
    return Counts(len(expected) - refused, refused, values, frames, most, wrong)


def comparisons(python: Path, home: Path, codec: str) -> Iterator[tuple[str, Counts]]:
    """Have lerobot write a dataset, and compare it with each of lerobot's decoders."""
    root, script = home / codec, HERE / "in_lerobot.py"
    run_in(python, script, "write", root, codec)
    rows = shoal.open(f"lerobot://{root}")
    windows = rows.windows(offsets=OFFSETS, pad="edge")
    for backend in _MOST_LEVELS:
        path = home / f"{codec}.{backend}.npz"
        run_in(python, script, "read", root, backend, path)
        expected = expected_samples(path)
        for kind, ds in (("rows", rows), ("windows", windows)):
            found = compared(expected[kind], ds.decode_frames(), backend)
            yield f"{codec}, {backend}, {kind}", found


def main() -> int:
    """Compare, and return the exit code."""
    num_wrong = 0
    for release in sys.argv[1:] or RELEASES:
        codecs = RELEASES[release]
        with tempfile.TemporaryDirectory(prefix="shoal-lerobot-") as home:
            try:
                python = python_of(release)
            except CannotHaveError as error:
                print(f"lerobot {release} skipped: {error}", flush=True)
                continue
            for codec in codecs:
                for what, found in comparisons(python, Path(home), codec):
                    counts = f"{found.samples} samples, {found.values} values, {found.frames} frames"
                    counts += f", {found.refused} samples that lerobot cannot read" if found.refused else ""
                    counts += f", at most {found.most_levels} levels"
                    verdict = f"differ in {len(found.wrong)} places" if found.wrong else "equal"
                    print(f"lerobot {release:6} {what:30} {verdict}: {counts}", flush=True)
                    print(*(f"    {line}\n" for line in found.wrong[:5]), sep="", end="", flush=True)
                    num_wrong += len(found.wrong)
    return int(bool(num_wrong))


if __name__ == "__main__":
    sys.exit(in_own_cache(main))
