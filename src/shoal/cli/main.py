"""The command `shoal`: find the verb, run it, and turn errors into messages and exit codes.

Exit codes: 0 done; 1 damaged shards; 2 the request is impossible; 130 interrupted; 141 the reader of the output closed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.cli import output
from shoal.cli.display.shell_hints import in_shell
from shoal.errors import ShardError, ShoalError, UsageError
from shoal.hints import did_you_mean
from shoal.plugins.doors import broken, loaded_entry, names, package_of

_EXIT_DAMAGE = 1
_EXIT_REFUSED = 2
_EXIT_INTERRUPTED = 128 + 2
_EXIT_BROKEN_PIPE = 128 + 13


_COMMANDS = "shoal.commands"  # entry points of packages with a verb
_MEMBERS = ("add_arguments", "run")
_SHELLS = ("bash", "zsh", "fish")


class Verb(NamedTuple):
    """The module of a verb, and its line in ``shoal --help``.

    The module has ``add_arguments(parser)``, and ``run(arguments)``, which returns the exit code. It is "" if an
    installed package registers the verb.
    """

    module: str
    summary: str

    def imported(self, name: str) -> Any:
        """Import the module; raise `UsageError` if the module of a package is broken."""
        if self.module:
            return importlib.import_module(self.module)
        module = loaded_entry(_COMMANDS, name)
        if missing := [member for member in _MEMBERS if not hasattr(module, member)]:
            raise broken(_COMMANDS, name, f"it has no {', '.join(missing)}")
        return module


# A table, because `shoal --help` must not import the modules of the verbs.
VERBS: Mapping[str, Verb] = {
    "demo": Verb("shoal.cli.demo.demo", "shuffle real files, measure and draw the mixing, stop and resume"),
    "pack": Verb("shoal.cli.shards.pack", "pack files, rows or tokens into shards with their index"),
    "index": Verb("shoal.cli.shards.index", "find every sample of shards, and record its position"),
    "repack": Verb("shoal.cli.shards.repack", "convert shards to another format or size, or mix them once"),
    "verify": Verb("shoal.cli.shards.verify", "check shards against their index, and list all damage"),
    "info": Verb("shoal.cli.info", "show the content of a dataset, and its shuffle"),
    "head": Verb("shoal.cli.head", "show the first samples, or samples by id"),
    "trace": Verb("shoal.cli.trace.trace", "show the samples of a step, or the step of a sample"),
    "audit": Verb("shoal.cli.audit", "grade the shuffle of a dataset, or of any loader by its ids"),
    "mix": Verb("shoal.cli.mix", "show counts, repeats and ends of a mixture, and draw its run"),
    "plan": Verb("shoal.cli.plan.plan", "plan the chunks and window of a cluster, its mixing and cost"),
    "watch": Verb("shoal.cli.watch.watch", "show a run in progress, and whether training waits for data"),
    "bench": Verb("shoal.cli.bench", "measure the speed of a stream, and find its bottleneck"),
    "cache": Verb("shoal.cli.cache", "show or remove the caches of this machine"),
}


def main(argv: Sequence[str] | None = None, *, verbs: Mapping[str, Verb] | None = None) -> int:
    """Run the command line ``argv`` (default: ``sys.argv``) and return the exit code.

    Imports only the module of the requested verb.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with contextlib.suppress(AttributeError):  # show the code of a character that stdout cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    options: set[str] = set()  # options of the verb, once known
    with _warnings_as_messages(options):
        try:
            code = _run(words, VERBS if verbs is None else verbs, options)
            # Flush now: at the exit of Python, the error of a closed reader can no longer be handled.
            output.flush()
        except BrokenPipeError:
            _discard_output()
            return _EXIT_BROKEN_PIPE
        except KeyboardInterrupt:
            output.complain("interrupted")
            return _EXIT_INTERRUPTED
        except ShoalError as error:
            output.complain(f"error: {_error_text(error, options)}")
            return _EXIT_DAMAGE if isinstance(error, ShardError) else _EXIT_REFUSED
        except OSError as error:
            # An OSError without a file name is a bug, and keeps its traceback.
            if error.filename is not None:
                output.complain(f"error: {error.filename}: {error.strerror}")
            elif _working_directory_exists():
                raise
            else:
                output.complain("error: the working directory was removed\n  hint: go to another directory")
            return _EXIT_REFUSED
    return code


def _error_text(error: ShoalError, options: set[str]) -> str:
    """Return an error with the options of the verb in its hint; the message stays, because it may quote stored text."""
    hint = in_shell(error.hint, options)
    message = in_shell(error.message, options) if isinstance(error, UsageError) else error.message
    return f"{message}\n  hint: {hint}" if hint else message


def _run(words: list[str], verbs: Mapping[str, Verb], options: set[str]) -> int:
    parser = _Parser(
        prog="shoal",
        description="Stream shuffled training data, and know at any moment exactly which sample comes next.",
    )
    text = "print the version, the build and the installed libraries (with --json: as one JSON object), and exit"
    parser.add_argument("--version", action=_PrintVersion, nargs=0, const="--json" in words, help=text)
    text = "print a script that completes verbs, options and files in a shell: bash, zsh or fish"
    parser.add_argument("--print-completion", metavar="SHELL", choices=_SHELLS, help=text)
    subparsers = parser.add_subparsers(metavar="VERB", title="verbs", dest="verb")
    requested = next((word for word in words if not word.startswith("-")), None)
    modules: dict[str, Any] = {}
    if requested not in verbs:
        others = {name: Verb("", f"a verb of {package_of(_COMMANDS, name)}") for name in names(_COMMANDS)}
        verbs = {**others, **verbs}
    for name, verb in verbs.items():
        subparser = subparsers.add_parser(name, help=verb.summary, description=verb.summary)
        if name == requested:
            modules[name] = verb.imported(name)
            modules[name].add_arguments(subparser)
            options |= subparser.options
    if requested in modules:
        subparsers.choices[requested].refuse_unknown_options(words[words.index(requested) + 1 :])
    # A page shows the command.
    arguments, unknown = parser.parse_known_args(words, argparse.Namespace(words=words))
    if unknown:  # parse_args() would show the usage of `shoal` instead of the verb
        (subparsers.choices.get(arguments.verb) or parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if arguments.print_completion is not None:
        _print_completion(arguments.print_completion, parser, subparsers.choices, verbs)
        return 0
    if arguments.verb is None:
        parser.print_help()
        return _EXIT_REFUSED
    code: int = modules[arguments.verb].run(arguments)
    return code


def _print_completion(
    shell: str, parser: _Parser, subparsers: Mapping[str, _Parser], verbs: Mapping[str, Verb]
) -> None:
    """Print the script of a shell; without the verbs of broken packages, which stderr names."""
    complete: dict[str, _Parser] = {}
    for name, verb in verbs.items():
        try:
            module = verb.imported(name)
        except UsageError as error:
            output.complain(f"warning: {error.message}")
            continue
        complete[name] = _Parser(description=subparsers[name].description)
        module.add_arguments(complete[name])
    shells = importlib.import_module("shoal.cli.completion.shells")
    output.say(shells.completion_script(shell, parser, complete).rstrip())


class _Parser(argparse.ArgumentParser):
    """A parser that suggests verbs, options and values, like argparse from Python 3.14 on."""

    @property
    def options(self) -> set[str]:
        """Long names of the options."""
        return {option for option in self._option_string_actions if option.startswith("--")}

    def refuse_unknown_options(self, words: Sequence[str]) -> None:
        """End the program at an unknown option, before argparse complains about a missing option."""
        known = self.options
        for word in words:
            name = word.partition("=")[0]
            if word == "--":
                return
            if word.startswith("--") and " " not in name and not any(option.startswith(name) for option in known):
                self.error(f"unrecognized arguments: {name}{_suggestion(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _suggestion(value, action.choices or ())
            raise


def _suggestion(word: object, known: Iterable[object]) -> str:
    question = did_you_mean(word, known).rstrip()
    return f"; {question}" if question else ""


class _PrintVersion(argparse.Action):
    """The action of ``--version``: imports the report on request, because it is slower than `shoal --help`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        importlib.import_module("shoal.cli.installation.version_report").say_version(as_json=self.const)
        parser.exit()


@contextlib.contextmanager
def _warnings_as_messages(options: set[str]) -> Iterator[None]:
    """Print warnings as one line, with the options of the verb, without a source location."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        output.complain(f"warning: {in_shell(str(message), options)}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _working_directory_exists() -> bool:
    try:
        return bool(os.getcwd())  # noqa: PTH109  # pathlib raises the same error
    except FileNotFoundError:
        return False


def _discard_output() -> None:
    """Discard the buffer of stdout, or Python would complain about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


if __name__ == "__main__":
    sys.exit(main())
