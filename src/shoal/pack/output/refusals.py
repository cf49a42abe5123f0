"""Refusals: reasons why a packing may not write into an output, or not continue there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.format_registry import suffixes_in_directories
from shoal.formats.metadata.manifests import MANIFEST_NAME
from shoal.storage.sources.shard_selection import PACKING
from shoal.storage.urls import without_secrets

OUTSIDE = "it lies outside of the directories that are classes"
"""Reason to leave out a file beside the classes, which needs no permission."""

_DIGEST = re.compile(r"[0-9a-f]{16,}")  # shows that values differ, and means nothing to people


def refuse_shards(url: str, paths: Iterable[str], *, suffix: str) -> None:
    """Raise `UsageError` if there are shards among the paths below ``url``, or a manifest of them."""
    present = [path.rpartition("/")[2] for path in paths if f"/{PACKING}/" not in path]
    suffixes = (suffix, *suffixes_in_directories())
    shard = next((name for name in present if name.lower().endswith(suffixes)), None)
    if shard is not None:
        msg = f"{without_secrets(url)}: there are shards already, such as {shard}"
        raise UsageError(msg, hint="pack into a new directory: the new index would hide the existing shards")


def manifest_there(url: str) -> UsageError:
    """Return the error for a manifest, which MDS shards would overwrite, and which would hide other shards."""
    msg = f"{without_secrets(url)}: there is an {MANIFEST_NAME}, as beside shards of MDS or LitData"
    return UsageError(msg, hint="pack into a new directory, or move that file")


def other_plan(url: str, recorded: object, settings: Mapping[str, Any]) -> UsageError:
    """Return the error for an unfinished packing whose ``recorded`` settings differ from the requested settings."""
    before: dict[str, Any] = recorded if isinstance(recorded, dict) else dict(settings)
    differing = []
    for name in sorted({*before, *settings}):
        was, now = before.get(name), settings.get(name)
        if was != now:
            is_digest = any(isinstance(value, str) and _DIGEST.fullmatch(value) for value in (was, now))
            texts = ["not given" if value is None else f"{value!r:.80}" for value in (was, now)]
            differing.append(f"{name}: not the same" if is_digest else f"{name} was {texts[0]}, is {texts[1]}")
    msg = f"{without_secrets(url)}: another packing was begun here and not finished: "
    msg += "; ".join(differing) or "its inputs were different"
    hint = f"give the same arguments to finish it; `shoal pack --clean {without_secrets(url)} --grace 0` removes it"
    return UsageError(msg, hint=hint)


def unprotected(url: str, reason: str) -> UsageError:
    """Return the error for a store that cannot refuse to overwrite objects."""
    msg = f"{without_secrets(url)}: {reason}; so attempts of one unit on two machines could replace each "
    msg += "other's shards, and two jobs each other's index"
    hint = "with an engine, pack into S3, GCS, Azure or a file system with hard links; here, use `shoal pack` without "
    return UsageError(msg, hint=hint + "an engine, or `shoal.pack.pack`, on one machine")


def taken(url: str) -> UsageError:
    """Return the error of a job that has lost its destination to another job."""
    msg = f"{without_secrets(url)}: another job has taken this destination, or this job was removed"
    return UsageError(msg, hint="plan the job again; a replaced job cannot write here")


def failures_in(skipped: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return name and reason of each input that only ``on_error="skip"`` leaves out."""
    return [pair for pair in skipped if pair[1] != OUTSIDE]


def lacking(path: str, skipped: Sequence[Sequence[str]]) -> UsageError:
    """Return the error of a run that may not skip inputs, for a shard that another run made with skipped inputs."""
    msg = f"{without_secrets(path)}: another run has made this shard without {counted(len(skipped), 'input')}; "
    msg += f"the first is {skipped[0][0]}"
    hint = "on_error='skip' accepts this shard; `shoal pack --clean` removes an unfinished packing"
    return UsageError(msg, hint=hint)
