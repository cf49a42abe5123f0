"""Runs inside a new environment that has nothing but an installed shoal: streams tars and JSON Lines, and resumes.

``python inside_install.py DIRECTORY`` prints one object of JSON: where shoal was imported, whether the compiled module
is used, and a digest of the streamed samples, which must be equal in every environment.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

import shoal

_BATCH = 6


def write_shards(directory: Path) -> None:
    """Write three tars and two files of JSON Lines with known samples."""
    for shard in range(3):
        with tarfile.open(directory / f"train-{shard:06d}.tar", "w") as archive:
            for number in range(20 + shard):
                members = {"txt": f"text {shard} {number}", "cls": str(number % 5), "json": json.dumps({"n": number})}
                for suffix, text in members.items():
                    member = tarfile.TarInfo(f"{shard:02d}{number:04d}.{suffix}")
                    member.size = len(text)
                    archive.addfile(member, io.BytesIO(text.encode()))
    for shard in range(2):
        lines = [json.dumps({"text": f"line {shard} {number}", "number": number}) for number in range(30)]
        (directory / f"rows-{shard:06d}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def streamed(source: str) -> bytes:
    """Return a digest of an epoch, after checking that a second run continues at the stopped position."""
    ds = shoal.open(source).shuffle(seed=1, window="1MiB").decode().batch(_BATCH)
    batches = [repr(batch) for batch in ds]
    first = shoal.open(source).shuffle(seed=1, window="1MiB").decode().batch(_BATCH)
    iterator = iter(first)
    begun = [repr(next(iterator)) for _ in range(3)]
    state = json.loads(json.dumps(first.state_dict()))  # as a file of JSON would give it back
    resumed = shoal.open(source).shuffle(seed=1, window="1MiB").decode().batch(_BATCH)
    resumed.load_state_dict(state)
    if begun + [repr(batch) for batch in resumed] != batches:
        sys.exit(f"{source}: the resumed run differs")
    return "\n".join(batches).encode()


def main() -> None:
    """Write, stream, resume and report."""
    directory = Path(sys.argv[1])
    write_shards(directory)
    digest = hashlib.sha256()
    for source in ("train-*.tar", "rows-*.jsonl"):
        digest.update(streamed(str(directory / source)))
    from shoal.formats.compiled_cutting import is_compiled  # after the public names have worked

    report = {"file": shoal.__file__, "is_compiled": is_compiled, "samples": digest.hexdigest()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
