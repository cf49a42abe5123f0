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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from shoal.cli import output
from shoal.cli.parsing import Parser
from shoal.errors import ShardError, ShoalError

_EXIT_DAMAGE = 1
_EXIT_REFUSED = 2
_EXIT_INTERRUPTED = 128 + 2
_EXIT_BROKEN_PIPE = 128 + 13


class VerbModule(Protocol):
    """The interface of a verb's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the verb's arguments."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the verb, and return the exit code."""
        ...


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb, described without importing it: the name of its module and its line in ``shoal --help``."""

    module: str
    summary: str


# A table and not a search of the folder: `shoal --help` must not import what a verb needs.
VERBS: Mapping[str, Verb] = {
    "demo": Verb("shoal.cli.demo.demo", "shuffle real files, measure and draw how well, stop and resume elsewhere"),
    "pack": Verb("shoal.cli.pack", "many files, or rows, into shards with their index"),
    "index": Verb("shoal.cli.index.index", "find every sample of some shards, and write down where they lie"),
    "repack": Verb("shoal.cli.repack", "convert shards, cut them anew, mix them once"),
    "verify": Verb("shoal.cli.verify", "check shards against their index, and list every damage"),
    "info": Verb("shoal.cli.info", "what a dataset holds, and what a shuffle of it would be"),
    "head": Verb("shoal.cli.head", "the first samples, or some samples by id, as people want to see them"),
    "trace": Verb("shoal.cli.trace.trace", "which samples are in a step, and in which step a sample is"),
    "audit": Verb("shoal.cli.audit.audit", "how good is a shuffle: of shoal, or of any loader by the ids it emits"),
    "plan": Verb("shoal.cli.plan.plan", "what a cluster should read at once, how well that mixes, and what it costs"),
    "bench": Verb("shoal.cli.bench", "stream for a while: how fast that is, and what holds it up"),
    "cache": Verb("shoal.cli.cache", "what this machine keeps of datasets, and removing it"),
}


def main(argv: Sequence[str] | None = None, *, verbs: Mapping[str, Verb] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process) and return the exit code.

    Only the module of the requested verb is imported.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with contextlib.suppress(AttributeError):  # a stream that cannot encode a character shows its code
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with _warnings_as_messages():
        try:
            code = _run(words, VERBS if verbs is None else verbs)
            # Now, and not when Python exits, where a reader that went away could no longer be handled.
            output.flush()
        except BrokenPipeError:
            _discard_output()
            return _EXIT_BROKEN_PIPE
        except KeyboardInterrupt:
            output.complain("interrupted")
            return _EXIT_INTERRUPTED
        except ShoalError as error:
            output.complain(f"error: {error}")
            return _EXIT_DAMAGE if isinstance(error, ShardError) else _EXIT_REFUSED
        except OSError as error:
            # A file that the user named; any other OSError is a bug of ours and keeps its traceback.
            if error.filename is None and not _is_somewhere():
                output.complain("error: the working directory was removed\n  hint: go to another one")
                return _EXIT_REFUSED
            if error.filename is None:
                raise
            output.complain(f"error: {error.filename}: {error.strerror}")
            return _EXIT_REFUSED
    return code


def _run(words: list[str], verbs: Mapping[str, Verb]) -> int:
    parser = Parser(
        prog="shoal",
        description="Streams shuffled training data, and can say at any moment exactly which sample comes next.",
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(metavar="VERB", title="verbs", dest="verb")
    asked = next((word for word in words if not word.startswith("-")), None)
    modules: dict[str, VerbModule] = {}
    for name, verb in verbs.items():
        subparser = subparsers.add_parser(name, help=verb.summary, description=verb.summary)
        if name == asked:
            modules[name] = cast("VerbModule", importlib.import_module(verb.module))
            modules[name].add_arguments(subparser)
    if asked in modules:
        subparsers.choices[asked].refuse_unknown_options(words[words.index(asked) + 1 :])
    # A page shows how it was made.
    arguments, unknown = parser.parse_known_args(words, argparse.Namespace(words=words))
    if unknown:  # parse_args() would show the usage of `shoal`, and not that of the verb
        (subparsers.choices.get(arguments.verb) or parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if arguments.verb is None:
        parser.print_help()
        return _EXIT_REFUSED
    return modules[arguments.verb].run(arguments)


class _PrintVersion(argparse.Action):
    """The action for ``--version``, which reads the version only on request: argparse's own needs it beforehand."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # noqa: PLC0415  # slower than the rest of `shoal --help`

        output.say(f"shoal {version('shoal')}")
        parser.exit()


@contextlib.contextmanager
def _warnings_as_messages() -> Iterator[None]:
    """Show warnings as one line for people, without their location in our source."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        output.complain(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _is_somewhere() -> bool:
    """Return True if the working directory exists, so that relative paths mean something."""
    try:
        os.getcwd()  # noqa: PTH109  # the result is not used
    except FileNotFoundError:
        return False
    return True


def _discard_output() -> None:
    """Redirect what is still buffered for stdout to nowhere, or Python would complain about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
