"""The `shoal watch` command: show a run in progress by the address of its page, a saved state, or its metrics."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import webbrowser
from collections.abc import Callable
from typing import Any

from shoal.cli import output
from shoal.cli.options.argument_types import at_least_one
from shoal.cli.options.source_options import add_json_argument
from shoal.cli.watch.watch_text import age_of, text_of
from shoal.cli.watch.watched_file import WatchedFile
from shoal.storage.urls import scheme_of
from shoal.watch.run_address import numbers_at

_EVERY_SECONDS = 1.0
_sleep = time.sleep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        'A run with reading(progress="page") writes the address of its page on stderr. Its machine alone can open it: '
        "for another machine, make a tunnel, ssh -L PORT:127.0.0.1:PORT MACHINE. End with Ctrl-C."
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        help="the address of a page, a JSON file with a state, or a file of shoal.prometheus.write",
    )
    parser.add_argument("--once", action="store_true", help="print the numbers once")
    parser.add_argument("--open", action="store_true", help="open the page in the browser of this machine")
    parser.add_argument(
        "--num-samples", type=at_least_one, metavar="N", help="samples of an epoch, for the share of a saved state"
    )
    add_json_argument(parser, "print one JSON object with all numbers, once")


def run(arguments: argparse.Namespace) -> int:
    """Show the numbers, once or until Ctrl-C."""
    numbers = _numbers_of(arguments)
    first = numbers()
    if arguments.open and scheme_of(arguments.run):
        webbrowser.open(arguments.run)
    if arguments.json:
        output.emit(first, as_json=True)
    elif arguments.once:
        output.say(text_of(first))
    else:
        _follow(numbers, first)
    return 0


def _numbers_of(arguments: argparse.Namespace) -> Callable[[], dict[str, Any]]:
    if scheme_of(arguments.run):
        return lambda: numbers_at(arguments.run)
    return WatchedFile(arguments.run, num_samples=arguments.num_samples).numbers


def _follow(numbers: Callable[[], dict[str, Any]], first: dict[str, Any]) -> None:
    """Show the numbers whenever they change: in place on a terminal, else one text after the other."""
    is_terminal, num_lines, shown = sys.stdout.isatty(), 0, ""
    latest = first
    try:
        while True:
            text = text_of(latest)
            if is_terminal:
                columns = shutil.get_terminal_size().columns - 1  # a wrapped line would be two lines to go up
                text = "\n".join(line[:columns] for line in [*text.splitlines(), f"updated   {age_of(latest)}"])
                output.say((f"\x1b[{num_lines}A\x1b[J" if num_lines else "") + text)
                num_lines = text.count("\n") + 1
            elif text != shown:
                output.say(text + "\n")
                output.flush()
            shown = text
            _sleep(_EVERY_SECONDS)
            latest = numbers()
    except KeyboardInterrupt:
        return
