"""The origin of the installed shoal: a release, an archive, a commit of a repository, or a checkout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_SHOWN_DIGITS = 12
_RELEASE = "release"


def build_origin(direct_url: str | None) -> str:
    """Describe the origin of an installation, from the record that pip leaves of it (PEP 610).

    ``direct_url`` is the text of ``direct_url.json``, or None for an installation from a package index.

    >>> build_origin(None)
    'release'
    >>> build_origin('{"url": "https://x.org/shoal.git", "vcs_info": {"vcs": "git", "commit_id": "8e1f2a3b4c5d6e7f"}}')
    'git 8e1f2a3b4c5d of https://x.org/shoal.git'
    >>> build_origin('{"url": "file:///tmp/shoal-0.1.0-py3-none-any.whl", "archive_info": {}}')
    'archive shoal-0.1.0-py3-none-any.whl'
    """
    record = _parsed(direct_url)
    url = str(record.get("url", ""))
    if commit := record.get("vcs_info", {}).get("commit_id"):
        return f"git {str(commit)[:_SHOWN_DIGITS]} of {_without_user(url)}"
    path = Path(unquote(urlsplit(url).path))
    if "dir_info" in record:
        commit = checkout_commit(path)
        return f"checkout{f' {commit[:_SHOWN_DIGITS]}' if commit else ''} in {path}"
    return f"archive {path.name}" if "archive_info" in record else _RELEASE


def checkout_commit(directory: Path) -> str | None:
    """Return the commit of a working tree of git, without the program git; None for any other directory."""
    try:
        git = directory / ".git"
        if git.is_file():  # a further working tree of the repository
            git = directory / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text(encoding="ascii").strip()
        if not head.startswith("ref:"):
            return head
        branch = head.removeprefix("ref:").strip()
        common = git / "commondir"
        homes = [git, git / common.read_text(encoding="utf-8").strip()] if common.is_file() else [git]
        for home in homes:
            if (home / branch).is_file():
                return (home / branch).read_text(encoding="ascii").strip()
        packed = (homes[-1] / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), None)
    except (OSError, ValueError):  # no repository, or a kind of repository that this function does not know
        return None


def _parsed(direct_url: str | None) -> Mapping[str, Any]:
    try:
        record = json.loads(direct_url or "{}")
    except ValueError:
        return {}
    return record if isinstance(record, Mapping) else {}


def _without_user(url: str) -> str:
    """Remove a user and a password from a URL."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}" if separator else url
