"""How fast many small files are packed, next to `tar` piped over the same list of files, pages warm.

``python bench/pack.py [--files 100000] [--directory DIR]`` cuts the texts of the standard library into paragraphs, a
file each, reads all once, and then packs them in turns: by `tar -cf - -T LIST | cat > one.tar`, and by `shoal pack`
with one process, with two, and with one per processor. Wall-clock and CPU seconds, children included, best of some
rounds.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

FILES_PER_DIRECTORY = 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where files and shards are written (temporary)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as home:
        files = Path(home, "files")
        num_bytes = make_files(files, asked.files)
        names = Path(home, "names")
        listed = sorted(str(path.relative_to(files)) for path in files.rglob("*.txt"))
        names.write_text("\n".join(listed))
        print(f"{asked.files:,} files, {num_bytes / 1e6:,.0f} MB of text, {len(os.sched_getaffinity(0))} processors")
        counts = sorted({1, 2, len(os.sched_getaffinity(0))})
        work: dict[str, Callable[[], None]] = {"tar | cat": lambda: tar(files, names, Path(home, "one.tar"))}
        for count in counts:
            work[f"shoal pack, {count} process{'es' * (count > 1)}"] = lambda count=count: shoal(
                files, Path(home, "shards"), count
            )
        tar(files, names, Path(home, "one.tar"))  # warm
        best = {name: (float("inf"), float("inf")) for name in work}
        for _ in range(asked.rounds):
            for name, step in work.items():
                best[name] = min(best[name], measured(step))
        for name, (wall_seconds, cpu_seconds) in best.items():
            rate = asked.files / wall_seconds
            print(f"{name:26} {wall_seconds:7.2f} s  {rate:9,.0f} files/s  {cpu_seconds:7.2f} s of CPU")


def make_files(root: Path, count: int) -> int:
    """Paragraphs of the standard library, around again where there are too few; their bytes in all."""
    paragraphs: list[str] = []
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        text = source.read_text(encoding="utf-8", errors="replace")
        paragraphs += [part for part in text.split("\n\n") if part.strip()]
        if len(paragraphs) >= count:
            break
    num_bytes = 0
    for number in range(count):
        directory, place = divmod(number, FILES_PER_DIRECTORY)
        if place == 0:
            (root / f"{directory:06d}").mkdir(parents=True)
        data = paragraphs[number % len(paragraphs)].encode()
        (root / f"{directory:06d}" / f"{place:03d}.txt").write_bytes(data)
        num_bytes += len(data)
    return num_bytes


def tar(files: Path, names: Path, out: Path) -> None:
    out.unlink(missing_ok=True)
    command = f"tar -cf - -C '{files}' -T '{names}' | cat > '{out}'"
    subprocess.run(["bash", "-c", command], check=True)


def shoal(files: Path, out: Path, count: int) -> None:
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "shoal", "pack", files, out, "--no-label", "--shard-bytes", "16MiB"]
    subprocess.run([*command, "--workers", str(count)], check=True, stdout=subprocess.DEVNULL)


def measured(step: Callable[[], None]) -> tuple[float, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    step()
    wall_seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
