"""The scripts of the supported shells."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType

from shoal.cli.completion.bash_script import bash_script
from shoal.cli.completion.fish_script import fish_script
from shoal.cli.completion.offered_words import offered_verb
from shoal.cli.completion.zsh_script import zsh_script

_SCRIPTS = MappingProxyType({"bash": bash_script, "zsh": zsh_script, "fish": fish_script})


def completion_script(shell: str, parser: argparse.ArgumentParser, verbs: Mapping[str, argparse.ArgumentParser]) -> str:
    """Return the script that completes ``shoal`` in a shell, from its parser and the parsers of its verbs."""
    offered = [offered_verb(name, verbs[name]) for name in sorted(verbs)]
    return _SCRIPTS[shell](offered, offered_verb("", parser).options)
