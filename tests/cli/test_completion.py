"""A shell offers verbs, options and their values, and files where files are meant."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shoal.cli.completion.offered_words import (
    ANYTHING,
    DIRECTORIES,
    FILES,
    WORDS,
    OfferedOption,
    OfferedValue,
    offered_verb,
    summary_of,
)
from shoal.cli.main import VERBS, main

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "shoal", "--print-completion", shell]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=directory)
        (directory / shell).write_text(done.stdout)
    return directory


def offered_by_bash(script: Path, *words: str, cwd: Path) -> list[str]:
    """Return the answers of the function in the script to Tab after these words."""
    quoted = " ".join(f"'{word}'" for word in words)
    lines = f"""
source {script}
COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
_shoal
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "--norc", "-c", lines], cwd=cwd, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


@needs_bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["shoal", ""], sorted(VERBS)),
        (["shoal", "pa"], ["pack"]),
        (["shoal", "--ver"], ["--version"]),
        (["shoal", "--print-completion", ""], ["bash", "zsh", "fish"]),
        (["shoal", "--print-completion", "=", "f"], ["fish"]),
        (["shoal", "pack", "--dedup", ""], ["key", "content"]),
        (["shoal", "pack", "--dedup", "="], ["key", "content"]),
        (["shoal", "pack", "--dedup", "=", "c"], ["content"]),
        (["shoal", "pack", "--format", "pa"], ["parquet"]),
        (["shoal", "info", "--order", "py1"], ["py1br", "py1e", "py1s"]),
        (["shoal", "pack", "--workers", ""], []),
        (["shoal", "pack", "a", "b", "--oversample-"], ["--oversample-key"]),
        (["shoal", "cache", ""], ["a folder", "data"]),
        (["shoal", "info", "d"], []),  # bash completes names of files itself
        (["shoal", "no-such-verb", ""], []),
    ],
)
def test_bash_offers(words: list[str], offered: list[str], scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a folder").mkdir()
    (tmp_path / "file.tar").touch()
    assert sorted(offered_by_bash(scripts / "bash", *words, cwd=tmp_path)) == sorted(offered)


@needs_bash
def test_bash_in_a_terminal_completes_files_with_its_quoting(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "two words.tar").touch()
    program = tmp_path / "bin" / "shoal"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nopen('words.json', 'w').write(json.dumps(sys.argv[1:]))\n"
    )
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}
    keys = f"source {scripts / 'bash'}\nshoal inf\ttwo\t--ind\ttwo\t\nexit\n"
    type_keys(["bash", "--norc", "--noprofile", "-i"], keys, cwd=tmp_path, environment=environment)
    assert json.loads((tmp_path / "words.json").read_text()) == ["info", "two words.tar", "--index", "two words.tar"]


def type_keys(command: list[str], keys: str, *, cwd: Path, environment: dict[str, str]) -> str:
    """Run a shell in a terminal, and type keys into it; return what the terminal shows."""
    controlling, terminal = pty.openpty()
    shell = subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    shown: list[bytes] = []
    reader = threading.Thread(target=read_terminal, args=(controlling, shown))  # a shell waits while nobody reads
    reader.start()
    try:
        time.sleep(0.5)
        for key in keys:
            os.write(controlling, key.encode())
            if key in "\t\n":
                time.sleep(0.3)  # the shell reads the directory before the next key
        shell.wait(timeout=20)
    finally:
        shell.kill()
        shell.wait()
        reader.join(timeout=5)
        os.close(controlling)
    return b"".join(shown).decode(errors="replace")


def read_terminal(descriptor: int, shown: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # the shell has ended
        while data := os.read(descriptor, 4096):
            shown.append(data)


def test_options_and_values_are_those_of_the_parser() -> None:
    parser = argparse.ArgumentParser(prog="shoal x", description="do a thing (now)", add_help=False)
    parser.add_argument("source", metavar="SOURCE", nargs="+")
    parser.add_argument("--to", "-t", metavar="NAME", help="a format; more")
    parser.add_argument("--like", metavar="ORDER")
    parser.add_argument("--out", metavar="DIRECTORY", help="100%% of it")
    parser.add_argument("--times", metavar="N")
    parser.add_argument("--loud", action="store_true", help='it\'s "loud" [really]')
    parser.add_argument("--way", choices=["a", "b"])
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    verb = offered_verb("x", parser)
    assert (verb.name, verb.summary, verb.value) == ("x", "do a thing", OfferedValue(FILES))
    by_name = {option.names[0]: option for option in verb.options}
    assert by_name["--out"] == OfferedOption(("--out",), "100% of it", OfferedValue(DIRECTORIES))
    assert by_name["--times"].value == OfferedValue(ANYTHING)
    assert by_name["--loud"] == OfferedOption(("--loud",), "its loud really", None)
    assert by_name["--way"].value == OfferedValue(WORDS, ("a", "b"))
    assert by_name["--to"].names == ("--to", "-t")
    assert by_name["--to"].value is not None
    assert "tar" in by_name["--to"].value.words
    assert by_name["--like"].value is not None
    assert "window" in by_name["--like"].value.words
    assert "--hidden" not in by_name


def test_a_long_help_ends_at_a_word() -> None:
    summary = summary_of("word " * 40)
    assert len(summary) <= 70
    assert summary.endswith("word")


def test_an_unknown_shell_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--print-completion", "tcsh"])
    said = capsys.readouterr().err
    assert all(shell in said for shell in ("bash", "zsh", "fish"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_has_every_verb(shell: str, scripts: Path) -> None:
    text = (scripts / shell).read_text()
    for verb in VERBS:
        assert f"{verb}" in text
    assert "storage-option" in text
