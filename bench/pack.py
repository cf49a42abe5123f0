"""How fast many small files are packed, next to `tar` piped over the same list of files, pages warm.

``python bench/pack.py [--files 100000] [--directory DIR]`` cuts the texts of the standard library into paragraphs, a
file each, reads all once, and then packs them in turns: by `tar -cf - -T LIST | cat > one.tar`; by `tar` with as much
to do as shoal has (it finds and sorts the names itself, the bytes get a SHA-256, and are on the disk in the end); and
by `shoal pack` with one process, with two, and with one per processor. Wall-clock seconds, best and median of some
rounds, and CPU seconds, children included. ``--made DIR`` takes the files that an earlier run has left there.
"""

from __future__ import annotations

import argparse
import compileall
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

import shoal

FILES_PER_DIRECTORY = 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where files and shards are written (temporary)")
    parser.add_argument("--made", type=Path, help="where the files are, or shall stay")
    asked = parser.parse_args()
    compileall.compile_dir(Path(shoal.__file__).parent, quiet=1)  # as it is where it was installed
    with tempfile.TemporaryDirectory(dir=asked.directory) as home:
        files = asked.made or Path(home, "files")
        if not files.exists():
            make_files(files, asked.files)
        names = Path(home, "names")
        listed = sorted(str(path.relative_to(files)) for path in files.rglob("*.txt"))
        names.write_text("\n".join(listed))
        print(f"{len(listed):,} files, {len(os.sched_getaffinity(0))} processors")
        counts = sorted({1, 2, len(os.sched_getaffinity(0))})
        work: dict[str, Callable[[], None]] = {
            "tar | cat": lambda: tar(files, names, Path(home, "one.tar")),
            "find | sort | tar | sha256": lambda: tar_of_all(files, Path(home, "one.tar")),
        }
        for count in counts:
            work[f"shoal pack, {count} process{'es' * (count > 1)}"] = lambda count=count: shoal_pack(
                files, Path(home, "shards"), count
            )
        tar(files, names, Path(home, "one.tar"))  # warm
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
        for _ in range(asked.rounds):
            for name, step in work.items():
                found[name].append(measured(step))
        for name, rounds in found.items():
            wall_seconds, cpu_seconds = sorted(wall for wall, _ in rounds), sorted(cpu for _, cpu in rounds)
            middle = len(rounds) // 2
            print(
                f"{name:28} {wall_seconds[0]:6.2f} s, median {wall_seconds[middle]:6.2f} s  "
                f"{len(listed) / wall_seconds[0]:9,.0f} files/s  {cpu_seconds[middle]:6.2f} s of CPU"
            )


def make_files(root: Path, count: int) -> None:
    """Paragraphs of the standard library, around again where there are too few."""
    paragraphs: list[str] = []
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        text = source.read_text(encoding="utf-8", errors="replace")
        paragraphs += [part for part in text.split("\n\n") if part.strip()]
        if len(paragraphs) >= count:
            break
    for number in range(count):
        directory, place = divmod(number, FILES_PER_DIRECTORY)
        if place == 0:
            (root / f"{directory:06d}").mkdir(parents=True)
        data = paragraphs[number % len(paragraphs)].encode()
        (root / f"{directory:06d}" / f"{place:03d}.txt").write_bytes(data)


def tar(files: Path, names: Path, out: Path) -> None:
    out.unlink(missing_ok=True)
    command = f"tar -cf - -C '{files}' -T '{names}' | cat > '{out}'"
    subprocess.run(["bash", "-c", command], check=True)


def tar_of_all(files: Path, out: Path) -> None:
    out.unlink(missing_ok=True)
    command = (
        f"cd '{files}'; find . -type f | sort | tar -cf - -T - | tee '{out}' | sha256sum > /dev/null; sync '{out}'"
    )
    subprocess.run(["bash", "-c", command], check=True)


def shoal_pack(files: Path, out: Path, count: int) -> None:
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
