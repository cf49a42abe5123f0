"""The hooks of pre-commit are the commands of `make check`, with the tools of the Makefile."""

from __future__ import annotations

import pytest
from tests.project.makefile import ROOT, targets

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")


def test_the_hooks_are_the_commands_of_make_check() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert [hook["entry"] for hook in hooks] == targets()["check"]
    # Whole commands, as in the Makefile: no list of changed files, and no tool of another environment.
    assert {(hook["language"], hook["pass_filenames"], hook["always_run"]) for hook in hooks} == {
        ("system", False, True)
    }
    assert [repo["repo"] for repo in config["repos"]] == ["local"]


def test_commands_of_the_makefile_are_read_whole() -> None:
    check = targets()["check"]
    assert check[0] == ".venv/bin/ruff check"
    assert "tests/plugins/test_guides.py" in check[-1]
    assert not [command for command in check if "$" in command]
