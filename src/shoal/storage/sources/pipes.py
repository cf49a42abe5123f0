"""Shell commands as sources, in the notation of other tools, that only read a URL.

An example is ``pipe:aws s3 cp s3://bucket/shard.tar -``.
"""

from __future__ import annotations

import shlex

from shoal.errors import SourceError
from shoal.storage.urls import scheme_of

# Each command, with its options that do not change the bytes read.
_COMMANDS = {
    ("aws", "s3", "cp"): {"--quiet", "--no-progress", "--only-show-errors"},
    ("gsutil", "cat"): set[str](),
    ("gsutil", "-q", "cat"): set[str](),
    ("gcloud", "storage", "cat"): set[str](),
    ("curl",): {"-s", "-L", "-f", "-S", "-sL", "-Ls", "-fsSL", "-sfL", "-sSL", "--silent", "--location", "--fail"},
}


def url_of_pipe(text: str) -> str:
    """Return the URL that a ``pipe:`` reads; any other text unchanged.

    Raises
    ------
    SourceError
        It does more than read one URL: shoal runs no commands.

    >>> url_of_pipe("pipe:aws s3 cp s3://bucket/train-{000..127}.tar -")
    's3://bucket/train-{000..127}.tar'
    """
    if not text.startswith("pipe:"):
        return text
    try:
        words = shlex.split(text[len("pipe:") :])
    except ValueError:
        words = []
    for command, harmless in _COMMANDS.items():
        if tuple(words[: len(command)]) == command:
            rest = [word for word in words[len(command) :] if word not in harmless]
            if command[0] == "aws" and rest[-1:] == ["-"]:
                del rest[-1]
            if len(rest) == 1 and scheme_of(rest[0]):
                return rest[0]
    # The command itself may hold a secret.
    msg = f"pipe:{words[0] if words else ''} ...: shoal runs no commands, and this one does not just read a URL"
    raise SourceError(msg, hint="name the URL itself; headers and credentials go into storage_options")
