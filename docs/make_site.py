"""Builds the documentation site: ``python docs/make_site.py`` writes ``site/``, with a folder for each version.

The tree of the site is the tree of the repository with ``docs/`` at its root: pages of ``design/`` and ``bench/`` stay
beside them, and links between the pages are rewritten. Zensical makes HTML of this tree. Every warning ends the build:
a link without a target, a reference without an object, a page without a description or a place in the navigation.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import http.server
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import nbconvert

from shoal.cli.main import VERBS, main
from shoal.stats import prometheus_text
from shoal.stats.counters import Counters
from shoal.version import __version__

ROOT = Path(__file__).resolve().parent.parent
DOCS, SOURCE, BUILT = ROOT / "docs", ROOT / ".site" / "source", ROOT / ".site" / "built"  # as in zensical.toml
LOG = ROOT / "bench" / "LOG.md"
BESIDE = [LOG, *(ROOT / name / "README.md" for name in ("changes", "tests/kept")), *ROOT.glob("[C-S]*.md")]
_LINK = re.compile(r"(\]\()([^)\s]+)")
_FENCE = re.compile(r"\s*(```+)")
_COMPLAINT = re.compile(r"^(?:griffe|ERROR|WARNING|Warning|Error)\b.*", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_DESCRIPTION_CHARACTERS = 300


def pages() -> dict[str, Path]:
    """The page files of the repository, by their place on the site."""
    files = {*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"), *(ROOT / "design").glob("*.md"), *BESIDE}
    return {place_of(file): file for file in sorted(files - {ROOT / "README.md"})}


def place_of(file: Path) -> str:
    """The place of a file on the site: its place in the repository, with ``docs/`` as the root."""
    if file == ROOT / "README.md":
        return "index.md"
    place = (file.relative_to(DOCS) if file.is_relative_to(DOCS) else file.relative_to(ROOT)).as_posix()
    return place.removesuffix(".ipynb") + ".md" if place.endswith(".ipynb") else place


def assemble(source: Path) -> None:
    """Write the tree that Zensical reads.

    Raises
    ------
    ValueError
        If a page lacks a description or a place in the navigation.
    """
    shutil.rmtree(source, ignore_errors=True)
    files = {DOCS / "images" / "fish.svg", *DOCS.glob("stylesheets/*"), *DOCS.glob("javascripts/*")}
    for place, file in pages().items():
        text = notebook(file) if file.suffix == ".ipynb" else file.read_text(encoding="utf-8")
        text, linked_files = relinked(text, file)
        files |= linked_files
        target = source / place
        target.parent.mkdir(parents=True, exist_ok=True)
        for mark, generated in GENERATED.items():
            if mark in text:
                text = text.replace(mark, generated())
        target.write_text(front_matter(text, file) + text, encoding="utf-8")
    for file in files:
        target = source / place_of(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    if unlisted := sorted(set(pages()) ^ set(places_in(navigation))):
        msg = f"the navigation in zensical.toml and the pages differ: {', '.join(unlisted)}"
        raise ValueError(msg)


def places_in(navigation: object) -> Iterator[str]:
    """The pages of a navigation, in order."""
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, dict):
        yield from places_in(list(navigation.values()))
    elif isinstance(navigation, list):
        for entry in navigation:
            yield from places_in(entry)


def relinked(text: str, file: Path) -> tuple[str, set[Path]]:
    """The text with links that lead to the same files on the site, and the linked files that are no pages."""
    linked_files = set()
    here = (Path("/") / place_of(file)).parent

    def rewrite(link: re.Match[str]) -> str:
        path, mark, anchor = link[2].partition("#")
        if not path or re.match(r"[a-z][a-z0-9+.-]*:", path):
            return link[0]
        goal = (file.parent / path).resolve()
        if goal.suffix not in {".md", ".ipynb"}:
            linked_files.add(goal)
        return link[1] + os.path.relpath(Path("/") / place_of(goal), here) + mark + anchor

    lines, fence = [], ""
    for line in text.splitlines():
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        lines.append(line if fence else _LINK.sub(rewrite, line))
    return "\n".join(lines) + "\n", linked_files


def front_matter(text: str, file: Path) -> str:
    """The description of a page, which is its first paragraph; search leaves the log of measurements out."""
    paragraphs = (part.strip() for part in text.split("\n\n"))
    prose = next((part for part in paragraphs if re.match(r"[\w\[*`(]", part)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", " ".join(prose.split()))
    cut = len(plain) if len(plain) <= _DESCRIPTION_CHARACTERS else plain.rfind(". ", 0, _DESCRIPTION_CHARACTERS) + 1
    if not plain[:cut]:
        msg = f"{file}: the page needs a first paragraph with a sentence, which is its description"
        raise ValueError(msg)
    more = {LOG: "search:\n  exclude: true\n", DOCS / "index.md": "hide:\n  - navigation\n  - toc\n"}.get(file, "")
    # Zensical puts the description into an attribute as it is.
    return f"---\ndescription: {json.dumps(html.escape(plain[:cut]))}\n{more}---\n\n"


def notebook(file: Path) -> str:
    """A notebook as Markdown, with the outputs that are stored in it."""
    text: str = nbconvert.MarkdownExporter().from_filename(str(file))[0]
    return text


def verb_help() -> str:
    """What ``--help`` prints for the command and for each verb."""
    return "\n".join(
        [f"```text\n{help_of()}```\n", *(f"## shoal {verb}\n\n```text\n{help_of(verb)}```\n" for verb in VERBS)]
    )


def help_of(*verb: str) -> str:
    """What ``--help`` prints."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="88", NO_COLOR="1"),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main([*verb, "--help"])
    return printed.getvalue()


def counter_table() -> str:
    """The counters of `Dataset.stats` with the metrics of Prometheus."""
    rows = ["| `stats()` | Prometheus | meaning |", "| --- | --- | --- |"]
    for name, value in Counters().as_dict().items():
        if metric := prometheus_text.text({name: value}).splitlines():
            _, _, metric_name, meaning = metric[0].split(" ", 3)
            rows.append(f"| `{name}` | `{metric_name}` | {meaning.replace('__pad__', '`__pad__`')} |")
    return "\n".join(rows)


GENERATED = {"<!-- the help of each verb -->": verb_help, "<!-- the counters -->": counter_table}


def build(into: Path) -> None:
    """Build the site of this version into a folder of ``into``, beside the versions that are there.

    Raises
    ------
    ValueError
        If Zensical or mkdocstrings complain.
    """
    assemble(SOURCE)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    printed = _COLOUR.sub("", done.stdout + done.stderr)
    # --strict knows nothing of what mkdocstrings complains about.
    if done.returncode or _COMPLAINT.search(printed):
        msg = f"the site has faults:\n{printed}"
        raise ValueError(msg)
    version = ".".join(__version__.split(".")[:2])
    shutil.rmtree(into / version, ignore_errors=True)
    shutil.copytree(BUILT, into / version)
    write_versions(into)


def write_versions(into: Path) -> None:
    """Write what the menu of versions reads, and a page that leads to the newest version."""
    versions = sorted(
        (each.name for each in into.iterdir() if (each / "index.html").exists()),
        key=lambda name: [int(part) for part in name.split(".")],
        reverse=True,
    )
    entries = [{"version": name, "title": name, "aliases": []} for name in versions]
    (into / "versions.json").write_text(json.dumps(entries) + "\n", encoding="utf-8")
    (into / "index.html").write_text(
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>shoal</title>'
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/"><a href="{versions[0]}/">shoal {versions[0]}</a>',
        encoding="utf-8",
    )


def serve(folder: Path, port: int) -> None:
    """Show a folder on loopback until interrupted."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        sys.stdout.write(f"http://127.0.0.1:{server.server_port}/\n")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=ROOT / "site", help="folder of all versions (default: site)")
    parser.add_argument("--serve", action="store_true", help="show the site on loopback after the build")
    parser.add_argument("--port", type=int, default=8000, help="port for --serve; 0 chooses a free one (default: 8000)")
    arguments = parser.parse_args()
    try:
        arguments.into.mkdir(parents=True, exist_ok=True)
        build(arguments.into)
    except ValueError as error:
        sys.exit(str(error))
    if arguments.serve:
        serve(arguments.into, arguments.port)
