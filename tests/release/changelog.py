"""Puts the fragments of ``changes/`` into the section of the next release in CHANGELOG.md, and removes the fragments.

``python -m tests.release.changelog`` (``make changelog``) may be run again at any time: the lines of new fragments join
the section of the version in pyproject.toml, and without new fragments nothing changes. ``--check`` changes nothing,
and ends with 1 if a release would lack a line. Each paragraph of a fragment is one change, so it becomes one line.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADINGS = {"feature": "Added", "speed": "Faster", "fix": "Fixed", "removal": "Removed"}
UNRELEASED = "unreleased"
_NAME = re.compile(r"(\d+)\.(\w+)\.md")
_SECTION = re.compile(r"^## (?P<version>\S+) \((?P<date>[^)]*)\)\n", re.MULTILINE)


def fragments_in(directory: Path) -> dict[str, list[Path]]:
    """Return the fragments by kind, in the order of their numbers; a file of another name is a ValueError."""
    fragments: dict[str, list[tuple[int, Path]]] = {kind: [] for kind in HEADINGS}
    for path in directory.iterdir():
        if path.name == "README.md":
            continue
        name = _NAME.fullmatch(path.name)
        if name is None or name[2] not in HEADINGS:
            msg = f"{path.name} is no fragment: NUMBER.KIND.md, and KIND is {', '.join(HEADINGS)}"
            raise ValueError(msg)
        fragments[name[2]].append((int(name[1]), path))
    return {kind: [path for _, path in sorted(numbered)] for kind, numbered in fragments.items()}


def changes_of(text: str) -> Iterator[str]:
    """Yield each paragraph of a fragment as a line of a list, with links from the folder of CHANGELOG.md."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.strip():
            yield "- " + paragraph.strip().replace("](../", "](").replace("\n", "\n  ")


def with_changes(changelog: str, version: str, changes: Mapping[str, list[str]], *, date: str | None) -> str:
    """Return the changelog with changes by kind in the section of a version, made if it is missing.

    ``date`` of None keeps the date of the section.
    """
    section = _SECTION.search(changelog)
    if section is None or section["version"] != version:
        at = section.start() if section else len(changelog)
        changelog = f"{changelog[:at].rstrip()}\n\n## {version} ({UNRELEASED})\n\n{changelog[at:]}"
        section = _SECTION.search(changelog)
        assert section is not None
    date = date or section["date"]
    following = _SECTION.search(changelog, section.end())
    end = following.start() if following else len(changelog)
    body = changelog[section.end() : end].strip()
    for kind, heading in HEADINGS.items():
        if lines := changes.get(kind):
            body = _with_lines(body, heading, lines)
    return f"{changelog[: section.start()]}## {version} ({date})\n\n{body}\n" + (
        f"\n{changelog[end:]}" if following else ""
    )


def _with_lines(body: str, heading: str, lines: list[str]) -> str:
    parts = re.split(rf"^(### {heading}\n)", body, maxsplit=1, flags=re.MULTILINE)
    if len(parts) == 1:
        return f"{body}\n\n### {heading}\n\n".lstrip() + "\n".join(lines)
    before, title, rest = parts
    own, border, others = rest.partition("\n### ")
    return f"{before}{title}{own.rstrip()}\n" + "\n".join(lines) + (f"\n{border}{others}" if border else "")


def missing_from(changelog: str, version: str, directory: Path) -> list[str]:
    """Return what a release of this version would lack, one sentence each."""
    problems = [
        f"{path.name} is not in CHANGELOG.md yet: make changelog"
        for paths in fragments_in(directory).values()
        for path in paths
    ]
    section = _SECTION.search(changelog)
    if section is None or section["version"] != version:
        problems.append(f"CHANGELOG.md begins with {section['version'] if section else 'nothing'}, not with {version}")
    elif section["date"] == UNRELEASED:
        problems.append(f"{version} has no date in CHANGELOG.md: make changelog DATE=today")
    return problems


def version_of(root: Path) -> str:
    """Return the version in pyproject.toml, the one place that has it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def assemble(root: Path, *, date: str | None) -> int:
    """Move the fragments into CHANGELOG.md; return the number of changes."""
    path, version = root / "CHANGELOG.md", version_of(root)
    fragments = fragments_in(root / "changes")
    changes = {
        kind: [line for each in paths for line in changes_of(each.read_text(encoding="utf-8"))]
        for kind, paths in fragments.items()
    }
    path.write_text(with_changes(path.read_text(encoding="utf-8"), version, changes, date=date), encoding="utf-8")
    for paths in fragments.values():
        for each in paths:
            each.unlink()
    return sum(map(len, changes.values()))


def main() -> int:
    """Assemble the changelog, or check it."""
    parser = argparse.ArgumentParser(description="Move the fragments of changes/ into CHANGELOG.md.")
    parser.add_argument("--date", help="date of the release, or today (default: keep the date)")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; end with 1 if a release would lack a line"
    )
    arguments = parser.parse_args()
    if arguments.check:
        problems = missing_from((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version_of(ROOT), ROOT / "changes")
        print("\n".join(problems) or "CHANGELOG.md is complete")
        return int(bool(problems))
    today = dt.datetime.now(dt.UTC).date().isoformat()
    num_changes = assemble(ROOT, date=today if arguments.date == "today" else arguments.date)
    print(f"{num_changes} changes joined CHANGELOG.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
