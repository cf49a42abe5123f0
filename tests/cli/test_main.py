"""The command line finds its verbs, and says what went wrong."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.cli.main import VERBS, Verb, main
from shoal.errors import ShardError, ShoalError, ShuffleWarning, StorageError, UsageError

FAKE = {
    "greet": Verb("fake_greet_verb", "says hello"),
    "absent": Verb("no_such_module_anywhere", "its module must not be imported for another verb"),
}


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Sets what the fake verb does."""
    module = types.ModuleType("fake_greet_verb")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--loud", action="store_true")

    def say_hello(arguments: argparse.Namespace) -> int:
        print(f"hello {arguments.name}{'!' if arguments.loud else ''}")
        return 0

    module.add_arguments = add_arguments  # type: ignore[attr-defined]
    module.run = say_hello  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_greet_verb", module)

    def replace(action: Callable[[], int]) -> None:
        module.run = lambda _: action()  # type: ignore[attr-defined]

    return replace


def raising(error: BaseException) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


@pytest.mark.usefixtures("act")
def test_a_verb_gets_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["greet", "you", "--loud"], verbs=FAKE) == 0
    assert capsys.readouterr().out == "hello you!\n"


@pytest.mark.usefixtures("act")
def test_help_lists_the_verbs_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"], verbs=FAKE)
    out = capsys.readouterr().out
    assert "says hello" in out
    assert "absent" in out


@pytest.mark.usefixtures("act")
def test_a_verb_has_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["greet", "--help"], verbs=FAKE)
    assert "--loud" in capsys.readouterr().out


def test_an_unknown_option_shows_the_usage_of_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["info", "data", "--nothing"])
    said = capsys.readouterr().err
    assert said.startswith("usage: shoal info ")
    assert said.endswith("shoal info: error: unrecognized arguments: --nothing\n")


def test_an_unknown_verb_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["gret"], verbs=FAKE)
    assert "greet" in capsys.readouterr().err


def test_no_verb_shows_the_help_and_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], verbs=FAKE) == 2
    assert "usage: shoal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("window is 0", hint="give a size"), 2, "shoal: error: window is 0\n  hint: give a size\n"),
        (StorageError("no such object: a.tar"), 2, "shoal: error: no such object: a.tar\n"),
        (ShoalError("something else"), 2, "shoal: error: something else\n"),
        (ShardError("bad header", shard="a.tar", byte=512), 1, "shoal: error: a.tar, byte 512: bad header\n"),
        (FileNotFoundError(2, "No such file or directory", "out/x.svg"), 2, "shoal: error: out/x.svg: No such file"),
        (KeyboardInterrupt(), 130, "shoal: interrupted\n"),
    ],
)
def test_errors_become_messages_and_exit_codes(
    error: BaseException,
    code: int,
    message: str,
    act: Callable[[Callable[[], int]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    act(raising(error))
    assert main(["greet", "you"], verbs=FAKE) == code
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("error", [RuntimeError("ours"), OSError("no file in it")])
def test_a_fault_of_ours_keeps_its_traceback(error: Exception, act: Callable[[Callable[[], int]], None]) -> None:
    act(raising(error))
    with pytest.raises(type(error), match=str(error)):
        main(["greet", "you"], verbs=FAKE)


def test_the_exit_code_of_a_verb_is_passed_on(act: Callable[[Callable[[], int]], None]) -> None:
    act(lambda: 1)
    assert main(["greet", "you"], verbs=FAKE) == 1


def test_a_warning_is_one_line_for_people(
    act: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def warn() -> int:
        warnings.simplefilter("always")
        warnings.warn("the window is small", ShuffleWarning, stacklevel=1)
        return 0

    act(warn)
    assert main(["greet", "you"], verbs=FAKE) == 0
    assert capsys.readouterr().err == "shoal: warning: the window is small\n"


def test_every_verb_of_the_table_has_both_functions_and_a_summary() -> None:
    import importlib

    for name, verb in VERBS.items():
        module = importlib.import_module(verb.module)
        assert callable(module.add_arguments), name
        assert callable(module.run), name
        assert verb.summary[0].islower() or verb.summary[0].isdigit(), name
        assert not verb.summary.endswith("."), name


def test_the_installed_command_says_its_version() -> None:
    command = Path(sys.executable).parent / "shoal"
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("shoal 0.")


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    script = (
        "import sys, types\n"
        "verb = types.ModuleType('flood')\n"
        "verb.add_arguments = lambda parser: None\n"
        "verb.run = lambda arguments: [print('x' * 1000) for _ in range(10000)] and 0\n"
        "sys.modules['flood'] = verb\n"
        "from shoal.cli.main import Verb, main\n"
        "sys.exit(main(['flood'], verbs={'flood': Verb('flood', 'prints a lot')}))\n"
    )
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        os.read(reading, 10)
        os.close(reading)
        _, complaints = process.communicate(timeout=60)
    assert complaints == ""
    assert process.returncode == 141
