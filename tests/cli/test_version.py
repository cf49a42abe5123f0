"""`shoal --version` says which build runs, on which Python, beside which libraries."""

from __future__ import annotations

import json
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

from shoal.cli.installation import version_report
from shoal.cli.installation.build_origin import build_origin, checkout_commit
from shoal.cli.main import main
from shoal.hints import LIBRARIES_OF_EXTRA

COMMIT = "8e1f2a3b4c5d6e7f8e1f2a3b4c5d6e7f8e1f2a3b"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit, match="0"):
        main([*words])
    return capsys.readouterr().out


def test_the_first_line_is_the_version_and_each_extra_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "--version").splitlines()
    assert lines[0] == f"shoal {version('shoal')}"
    facts = dict(re.split(r"\s+", line, maxsplit=1) for line in lines[1:])
    assert facts["python"] == platform.python_version()
    assert facts["numpy"] == np.__version__
    assert facts["compiled"] in {"yes", "no"}
    assert facts["build"].startswith("checkout")
    assert set(LIBRARIES_OF_EXTRA) <= set(facts)


@pytest.mark.parametrize("words", [("--version", "--json"), ("--json", "--version")])
def test_it_is_one_object_of_json(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(said(capsys, *words))
    assert report["version"] == version("shoal")
    assert isinstance(report["is_compiled"], bool)
    assert {extra: " ".join(libraries) for extra, libraries in report["libraries"].items()} == LIBRARIES_OF_EXTRA


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def installed(name: str) -> str:
        if name in {"numpy", "pillow"}:
            return "9.9"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(version_report, "version", installed)
    text = said(capsys, "--version")
    assert re.search(r"^images +pillow 9\.9; missing: simplejpeg$", text, re.MULTILINE)
    assert re.search(r"^tables +missing: pyarrow$", text, re.MULTILINE)
    assert re.search(r"^beside it +no framework$", text, re.MULTILINE)


def test_help_reads_no_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "shoal.cli.installation.version_report", raising=False)
    said(capsys, "--help")
    assert "shoal.cli.installation.version_report" not in sys.modules


@pytest.mark.parametrize(
    ("record", "origin"),
    [
        (None, "release"),
        ("no json", "release"),
        ("[]", "release"),
        (json.dumps({"url": "file:///tmp/a%20b/shoal-1.tar.gz", "archive_info": {}}), "archive shoal-1.tar.gz"),
        (
            json.dumps({"url": "https://me:secret@x.org/s.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}),
            f"git {COMMIT[:12]} of https://x.org/s.git",
        ),
        (json.dumps({"url": "file:///no/such/a%20b", "dir_info": {}}), "checkout in /no/such/a b"),
    ],
)
def test_the_origin_of_a_build(record: str | None, origin: str) -> None:
    assert build_origin(record) == origin


def test_the_commit_of_a_checkout_is_read_without_git(tmp_path: Path) -> None:
    git = tmp_path / "repository" / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    assert checkout_commit(git.parent) is None
    (git / "HEAD").write_text(f"{COMMIT}\n")
    assert checkout_commit(git.parent) == COMMIT
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert checkout_commit(git.parent) == COMMIT
    (git / "refs" / "heads" / "main").write_text(f"{'1' * 40}\n")
    assert checkout_commit(git.parent) == "1" * 40
    further = tmp_path / "further"
    further.mkdir()
    (git / "worktrees" / "further").mkdir(parents=True)
    (git / "worktrees" / "further" / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "worktrees" / "further" / "commondir").write_text("../..\n")
    (further / ".git").write_text(f"gitdir: {git / 'worktrees' / 'further'}\n")
    assert checkout_commit(further) == "1" * 40
    record = json.dumps({"url": further.as_uri(), "dir_info": {"editable": True}})
    assert build_origin(record) == f"checkout {'1' * 12} in {further}"
