"""zsh and fish read the script of their completion, and offer what it says; tests/cli has bash."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_completion import type_keys

pytestmark = pytest.mark.integration


def need(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")


def script_of(shell: str, directory: Path) -> Path:
    command = [sys.executable, "-m", "shoal", "--print-completion", shell]
    path = directory / f"completion.{shell}"
    path.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return path


def test_zsh_in_a_terminal(tmp_path: Path) -> None:
    need("zsh")
    (tmp_path / "two words.tar").touch()
    program = tmp_path / "bin" / "shoal"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nopen('words.json', 'w').write(json.dumps(sys.argv[1:]))\n"
    )
    program.chmod(0o755)
    path = f"{program.parent}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(tmp_path), "TERM": "xterm", "ZDOTDIR": str(tmp_path)}
    opening = f"autoload -Uz compinit && compinit -u\nsource {script_of('zsh', tmp_path)}\n"
    keys = f"{opening}shoal inf\ttwo\t--ind\ttwo\t\nexit\n"
    shown = type_keys(["zsh", "-f", "-i"], keys, cwd=tmp_path, environment=environment)
    assert (tmp_path / "words.json").exists(), shown
    assert json.loads((tmp_path / "words.json").read_text()) == ["info", "two words.tar", "--index=two words.tar"]


def test_fish_offers(tmp_path: Path) -> None:
    need("fish")
    (tmp_path / "data").mkdir()
    (tmp_path / "file.tar").touch()
    script = script_of("fish", tmp_path)

    def offered(line: str) -> set[str]:
        command = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return {text.partition("\t")[0] for text in done.stdout.splitlines()}

    assert offered("shoal pa") == {"pack"}
    assert offered("shoal pack --dedup ") == {"key", "content"}
    assert offered("shoal pack --dedup=c") == {"--dedup=content"}
    assert offered("shoal info --order py1") == {"py1br", "py1e", "py1s"}
    assert {"data/", "file.tar"} <= offered("shoal info ")
    assert offered("shoal cache d") == {"data/"}
