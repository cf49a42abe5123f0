"""`shoal verify`: every damage of a dataset, with shard, byte and sample."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from shoal.cli import output
from shoal.cli.preview import clipped, printable
from shoal.cli.progress import Progress
from shoal.cli.source_options import (
    ShowBytes,
    add_json_argument,
    add_source_arguments,
    source_of,
    storage_options_of,
)
from shoal.stream.soundness import Damage, Soundness
from shoal.stream.verification import Verification, mend_index, open_to_verify, verify

__all__ = ["add_arguments", "run"]

_MOST_SHOWN = 50
_MOST_KEYS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Exit code 0: all shards are as their index says; 1: some are not; 2: nobody could find out. Extents with "
        "a checksum in the index are compared with it, others are parsed (`shoal index --checksum` adds checksums)."
    )
    add_source_arguments(parser)
    repair = "write the index anew if all shards are sound and only the index is wrong"
    parser.add_argument("--repair-index", action="store_true", help=repair)
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Verify, and say what is wrong; 1 if anything is and stays so."""
    began_seconds = time.monotonic()
    asked = open_to_verify(
        source_of(arguments),
        index=arguments.index,
        format=arguments.format,
        storage_options=storage_options_of(arguments),
    )
    with Progress(total=None, label="verifying", unit="bytes") as progress:
        found = verify(asked, progress=ShowBytes(progress))
    record = _record(asked, found)
    damages = found.damages
    if arguments.repair_index and (damages or found.num_touched):
        with Progress(total=None, label="repairing", unit="bytes") as progress:
            mended, left = mend_index(asked, found, progress=ShowBytes(progress))
        record |= {"index_repaired": not left, "fingerprint": mended.fingerprint, "num_samples": mended.num_samples}
        damages = left
    record["elapsed_seconds"] = time.monotonic() - began_seconds
    if arguments.json:
        output.emit(record | {"damages": [asdict(damage) for damage in found.damages]}, as_json=True)
    else:
        _show(record, found.damages)
    return 1 if damages else 0


def _record(asked: Verification, found: Soundness) -> dict[str, Any]:
    index = None if asked.opened is None else asked.opened.index
    return {
        "index": None if asked.index_path is None else printable(asked.index_path),
        "format": asked.format.name,
        "num_shards": len(asked.found.names) if index is None else index.num_shards,
        "num_samples": 0 if index is None else index.num_samples,
        "fingerprint": None if index is None else index.fingerprint,
        "num_bytes": found.num_bytes,
        "num_extents_by_checksum": found.num_by_checksum,
        "num_extents_by_parsing": found.num_by_parsing,
        "num_touched_shards": found.num_touched,
        "num_damages": len(found.damages),
        "num_damaged_samples": found.num_damaged_samples,
        "index_is_wrong": bool(found.damages) and all(damage.is_of_index for damage in found.damages),
        "index_repaired": False,
    }


def _show(record: dict[str, Any], damages: list[Damage]) -> None:
    usual = {"num_touched_shards": 0, "index_is_wrong": False, "index_repaired": False}
    facts = {name: value for name, value in record.items() if name not in usual or value != usual[name]}
    output.emit({name: value for name, value in facts.items() if value is not None})
    if damages:
        output.say()
    for damage in damages[:_MOST_SHOWN]:
        output.say(_line(damage))
    if len(damages) > _MOST_SHOWN:
        output.say(f"and {len(damages) - _MOST_SHOWN:,} more, which --json lists")


def _line(damage: Damage) -> str:
    """One damage as people read it."""
    place = printable(damage.shard) or "the index"
    if damage.first_byte is not None:
        place += f", byte {damage.first_byte}"
    text = f"{place}: {damage.kind}: {printable(damage.what)}"
    if not damage.samples:
        return text
    ids = f"sample {damage.samples[0]}"
    if len(damage.samples) > 1:
        ids = f"{len(damage.samples)} samples from {damage.samples[0]} to {damage.samples[-1]}"
    keys = [clipped(printable(key), 40) for key in damage.keys if key is not None]
    names = f" ({', '.join(keys[:_MOST_KEYS])}{', ...' * (len(keys) > _MOST_KEYS)})" if keys else ""
    return f"{text}; {ids}{names}"
