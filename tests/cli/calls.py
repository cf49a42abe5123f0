"""Calls of the command line in this process."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.samples import write_tar_shards

from shoal.cli.main import main


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """That it is one."""
        return True


class Calls:
    """Calls `shoal` with words and gives what it printed; what it complained about is in ``complaints``."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.complaints = ""

    def text(self, *words: object, code: int = 0) -> str:
        """What is printed for people."""
        self._capsys.readouterr()
        assert main([str(word) for word in words]) == code
        said = self._capsys.readouterr()
        self.complaints = said.err
        return said.out

    def json(self, *words: object) -> dict[str, Any]:
        """The one object that is printed for machines."""
        (result,) = self.json_lines(*words)
        return result

    def json_lines(self, *words: object) -> list[dict[str, Any]]:
        """The objects that are printed for machines, one a line."""
        return [json.loads(line) for line in self.text(*words, "--json").splitlines()]

    def refused(self, *words: object) -> str:
        """The complaint of a call that cannot be carried out."""
        assert self.text(*words, code=2) == ""
        assert self.complaints.startswith("shoal: error: ")
        return self.complaints


def make_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **sizes: int) -> Path:
    """A directory of tar shards, and a cache of its own."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    write_tar_shards(tmp_path / "data", **sizes)
    return tmp_path / "data"
