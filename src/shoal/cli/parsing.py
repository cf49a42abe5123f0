"""A command-line parser that suggests what was probably meant by an unknown word."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from shoal.hints import did_you_mean


class Parser(argparse.ArgumentParser):
    """The parser of argparse with suggestions for verbs, options and values (built in from Python 3.14 on)."""

    def refuse_unknown_options(self, words: Sequence[str]) -> None:
        """End the program if a word is not an option, before argparse complains about one that is missing instead."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        for word in words:
            name = word.partition("=")[0]
            if word == "--":
                return
            if word.startswith("--") and " " not in name and not any(option.startswith(name) for option in known):
                self.error(f"unrecognized arguments: {name}{_meant(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += _meant(value, action.choices or ())
            raise


def _meant(given: object, known: Iterable[object]) -> str:
    question = did_you_mean(given, known).rstrip()
    return f"; {question}" if question else ""
