"""The command `shoal`: finds the verb, runs it, and turns errors into messages and exit codes.

Exit codes: 0 done; 1 damage found (reported by the verb, or a shard does not hold what it should); 2 the request
cannot be carried out; 130 interrupted; 141 the reader of our output went away.
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
from shoal.plugins.doors import broken, found, names, package_of

_EXIT_DAMAGE = 1
_EXIT_REFUSED = 2
_EXIT_INTERRUPTED = 128 + 2
_EXIT_BROKEN_PIPE = 128 + 13


_OF_PACKAGES = "shoal.commands"
_MEMBERS = ("add_arguments", "run")


class Verb(NamedTuple):
    """A verb, described without importing it: the name of its module and its line in ``shoal --help``.

    The module has ``add_arguments(parser)``, and ``run(arguments)``, which returns the exit code; "" if an installed
    package brings it.
    """

    module: str
    summary: str

    def imported(self, name: str) -> Any:
        """Import the module; raises `UsageError` if a package brings it and it cannot be used."""
        if self.module:
            return importlib.import_module(self.module)
        module = found(_OF_PACKAGES, name)
        if missing := [each for each in _MEMBERS if not hasattr(module, each)]:
            raise broken(_OF_PACKAGES, name, f"it has no {', '.join(missing)}")
        return module


# A table and not a search of the folder: `shoal --help` must not import what a verb needs.
VERBS: Mapping[str, Verb] = {
    "demo": Verb("shoal.cli.demo.demo", "shuffle real files, measure and draw the mixing, stop and resume elsewhere"),
    "pack": Verb("shoal.cli.shards.pack", "pack many files, or rows, into shards with their index"),
    "index": Verb("shoal.cli.shards.index", "find every sample of some shards, and record where it is"),
    "repack": Verb("shoal.cli.shards.repack", "convert shards to another format or size, or mix them once"),
    "verify": Verb("shoal.cli.shards.verify", "check shards against their index, and list all damage"),
    "info": Verb("shoal.cli.info", "show what a dataset holds, and how a shuffle of it would be"),
    "head": Verb("shoal.cli.head", "show the first samples, or some samples by id"),
    "trace": Verb("shoal.cli.trace.trace", "show which samples are in a step, and in which step a sample is"),
    "audit": Verb("shoal.cli.audit", "grade a shuffle: of shoal, or of any loader by the ids it emits"),
    "mix": Verb("shoal.cli.mix", "show what a mixture file gives: counts, repeats, ends, and a picture of the run"),
    "plan": Verb("shoal.cli.plan.plan", "plan what a cluster should read at a time, how well that mixes, and its cost"),
    "bench": Verb("shoal.cli.bench", "stream for a while, and show how fast that is and what limits it"),
    "cache": Verb("shoal.cli.cache", "show or remove what this machine keeps of datasets"),
}


def main(argv: Sequence[str] | None = None, *, verbs: Mapping[str, Verb] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process) and return the exit code.

    Only the module of the requested verb is imported.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with contextlib.suppress(AttributeError):  # a stream that cannot encode a character shows its code
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    options: set[str] = set()  # of the verb, once it is known
    with _warnings_as_messages(options):
        try:
            code = _run(words, VERBS if verbs is None else verbs, options)
            # Now, and not when Python exits, where a reader that went away could no longer be handled.
            output.flush()
        except BrokenPipeError:
            _discard_output()
            return _EXIT_BROKEN_PIPE
        except KeyboardInterrupt:
            output.complain("interrupted")
            return _EXIT_INTERRUPTED
        except ShoalError as error:
            output.complain(f"error: {_in_shell(error, options)}")
            return _EXIT_DAMAGE if isinstance(error, ShardError) else _EXIT_REFUSED
        except OSError as error:
            # A file that the user named; any other OSError is a bug of ours and keeps its traceback.
            if error.filename is not None:
                output.complain(f"error: {error.filename}: {error.strerror}")
            elif _working_directory_exists():
                raise
            else:
                output.complain("error: the working directory was removed\n  hint: go to another one")
            return _EXIT_REFUSED
    return code


def _in_shell(error: ShoalError, options: set[str]) -> str:
    """Return an error whose hint names the options of the verb; messages may quote what is stored, and stay."""
    hint = in_shell(error.hint, options)
    message = in_shell(error.message, options) if isinstance(error, UsageError) else error.message
    return f"{message}\n  hint: {hint}" if hint else message


def _run(words: list[str], verbs: Mapping[str, Verb], options: set[str]) -> int:
    parser = _Parser(
        prog="shoal",
        description="Stream shuffled training data, and know at any moment exactly which sample comes next.",
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(metavar="VERB", title="verbs", dest="verb")
    asked = next((word for word in words if not word.startswith("-")), None)
    modules: dict[str, Any] = {}
    if asked not in verbs:
        of_packages = {name: Verb("", f"a verb of {package_of(_OF_PACKAGES, name)}") for name in names(_OF_PACKAGES)}
        verbs = {**of_packages, **verbs}
    for name, verb in verbs.items():
        subparser = subparsers.add_parser(name, help=verb.summary, description=verb.summary)
        if name == asked:
            modules[name] = verb.imported(name)
            modules[name].add_arguments(subparser)
            options |= subparser.options
    if asked in modules:
        subparsers.choices[asked].refuse_unknown_options(words[words.index(asked) + 1 :])
    # A page shows how it was made.
    arguments, unknown = parser.parse_known_args(words, argparse.Namespace(words=words))
    if unknown:  # parse_args() would show the usage of `shoal`, and not that of the verb
        (subparsers.choices.get(arguments.verb) or parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if arguments.verb is None:
        parser.print_help()
        return _EXIT_REFUSED
    code: int = modules[arguments.verb].run(arguments)
    return code


class _Parser(argparse.ArgumentParser):
    """The parser of argparse with suggestions for verbs, options and values (built in from Python 3.14 on)."""

    @property
    def options(self) -> set[str]:
        """Long names of the options."""
        return {option for option in self._option_string_actions if option.startswith("--")}

    def refuse_unknown_options(self, words: Sequence[str]) -> None:
        """End the program if a word is not an option, before argparse complains about one that is missing instead."""
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


def _suggestion(given: object, known: Iterable[object]) -> str:
    question = did_you_mean(given, known).rstrip()
    return f"; {question}" if question else ""


class _PrintVersion(argparse.Action):
    """The action for ``--version``, which reads the version only on request: argparse's own needs it beforehand."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # noqa: PLC0415  # slower than the rest of `shoal --help`

        output.say(f"shoal {version('shoal')}")
        parser.exit()


@contextlib.contextmanager
def _warnings_as_messages(options: set[str]) -> Iterator[None]:
    """Show warnings as one line for people, without their location in our source, with the options of the verb."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        output.complain(f"warning: {in_shell(str(message), options)}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _working_directory_exists() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  # the result is not used
    except FileNotFoundError:
        return False
    return True


def _discard_output() -> None:
    """Discard what is still buffered for stdout, or Python would complain about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
