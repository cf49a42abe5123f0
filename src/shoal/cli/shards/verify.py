"""The `shoal verify` command: list all damage by shard, byte and sample, or check the deliveries of a run."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from shoal.cli import output
from shoal.cli.display.progress_bar import Progress
from shoal.cli.options.engine_options import Engine, add_engine_arguments, engine_of
from shoal.cli.options.index_output import index_output
from shoal.cli.options.source_options import (
    add_json_argument,
    add_source_arguments,
    names_mixture,
    open_with_samples,
    source_of,
    storage_options_of,
)
from shoal.cli.options.stream_options import open_mixture, read_saved
from shoal.errors import StateError, UsageError
from shoal.order.state_dict import PACKED
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.storage.sources.source import printed
from shoal.storage.store_protocol import Store
from shoal.stream.sequences.saved_sequences import of_documents, packed_as_saved
from shoal.stream.states.certificate import Certificate, covered, differences, merge_certificates
from shoal.stream.verbs.dataset_requests import request_of_state
from shoal.tools.samples.preview import clipped, printable
from shoal.verify.index_repair import repair_index
from shoal.verify.open_to_verify import Verification, open_to_verify, verify
from shoal.verify.shard_checks import check_shards
from shoal.verify.verify_job import verify_job
from shoal.verify.verify_report import Damage, VerifyReport

_MOST_SHOWN = 50
_MOST_KEYS = 3
_MOST_CERTIFICATE_BYTES = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Exit code 0: all shards match their index; 1: some do not; 2: the check was impossible. Extents are compared "
        "with their checksums in the index; extents without a checksum are parsed (`shoal index --checksum` adds "
        "checksums). --certificate reads no shard, and compares the delivered samples of a run with the index."
    )
    add_source_arguments(parser)
    text = "also decode all fields, images included, and list samples with decoding errors"
    parser.add_argument("--decode", action="store_true", help=text)
    text = "decoder such as audio, video or pilraw; may be repeated; implies --decode"
    parser.add_argument("--decoder", metavar="NAME", action="append", default=[], help=text)
    text = "JSON of ds.certificate(), the deliveries of a run; may be repeated for other ranks"
    parser.add_argument("--certificate", metavar="FILE", action="append", default=[], help=text)
    parser.add_argument("--repair-index", action="store_true", help="write a new index if only the index is wrong")
    parser.add_argument("--output", metavar="FILE", help="file or URL of the repaired index (default: the old index)")
    text = "column of the index with the tokens of each document, for --certificate (default: num_tokens)"
    parser.add_argument("--lengths", metavar="COLUMN", default="num_tokens", help=text)
    add_engine_arguments(parser, planned="this machine reads the index and lists the damage")
    text = "directory or URL for partial reports of a cluster (default: beside the shards)"
    parser.add_argument("--parts", metavar="DIRECTORY", help=text)
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Verify, and show the damage; return 1 if damage remains."""
    if arguments.certificate:
        return _run_certificate(arguments)
    if names_mixture(arguments):
        return _run_mixture(arguments)
    engine = engine_of(arguments, label="verifying", unit="units")
    if engine is None and arguments.parts is not None:
        msg = "--parts is for the partial reports of a cluster, but --engine local writes none"
        raise UsageError(msg, hint="--engine spark or --engine ray")
    began_seconds = time.monotonic()
    opening = open_to_verify(
        source_of(arguments),
        split=arguments.split,
        index=arguments.index,
        format=arguments.format,
        storage_options=storage_options_of(arguments),
    )
    decodes = arguments.decode or bool(arguments.decoder)
    opening = opening.decoding(arguments.decoder if decodes else None)
    target = _repaired_index(arguments, opening)
    report, facts = _verified(arguments, opening, engine)
    record = _record(opening, report) | facts
    if decodes:
        num_bad = sum(damage.kind == "undecodable" for damage in report.damages)
        record |= {"num_decoded_samples": report.num_decoded, "num_undecodable_samples": num_bad}
    damages = report.damages
    if arguments.repair_index and (damages or report.num_touched):
        with Progress(label="repairing", unit="bytes") as progress:
            mended, left = repair_index(opening, report, output=target, progress=progress.show_bytes)
        record |= {"index_repaired": not left, "fingerprint": mended.fingerprint, "num_samples": mended.num_samples}
        if target is not None and not left:
            record["index"] = printable(target[0])
        damages = left
    record["elapsed_seconds"] = time.monotonic() - began_seconds
    if arguments.json:
        output.emit(record | {"damages": [asdict(damage) for damage in report.damages]}, as_json=True)
    else:
        _show(record, report.damages)
    return 1 if damages else 0


def _run_mixture(arguments: argparse.Namespace) -> int:
    """Verify each dataset of a mixture file; return 1 if a dataset is damaged."""
    options = {
        "--engine": arguments.engine != "local",
        "--parts": arguments.parts is not None,
        "--repair-index": arguments.repair_index,
        "--output": arguments.output is not None,
        "--index": arguments.index is not None,
    }
    if wrong := [option for option, is_given in options.items() if is_given]:
        msg = f"{printed(source_of(arguments))} is a mixture file, but {wrong[0]} is for one dataset"
        raise UsageError(msg, hint=f"leave it out, or call `shoal verify {wrong[0]}` for each source")
    began_seconds = time.monotonic()
    opened = open_mixture(arguments).stream.spec.opened
    reports: list[tuple[dict[str, Any], list[Damage]]] = []
    for name, part in zip(getattr(opened, "names", ()), opened.parts, strict=True):
        with Progress(label=f"verifying {printable(name)}", unit="bytes") as progress:
            report = check_shards(part, progress=progress.show_bytes)
        counts = {"num_shards": part.index.num_shards, "num_samples": part.index.num_samples}
        record = {"source": name, **counts, **_checked(report), **_damaged(report)}
        reports.append((record, report.damages))
    _show_sources(reports, time.monotonic() - began_seconds, as_json=arguments.json)
    return 1 if any(damages for _, damages in reports) else 0


def _show_sources(reports: list[tuple[dict[str, Any], list[Damage]]], seconds: float, *, as_json: bool) -> None:
    """Print a line for each source of a mixture, and its damages."""
    if as_json:
        sources = [record | {"damages": [asdict(damage) for damage in damages]} for record, damages in reports]
        output.emit({"sources": sources, "elapsed_seconds": seconds}, as_json=True)
        return
    output.say(output.format_table([record for record, _ in reports]))
    for record, damages in reports:
        for damage in damages[:_MOST_SHOWN]:
            output.say(f"{printable(record['source'])}: {_line(damage)}")
        if len(damages) > _MOST_SHOWN:
            output.say(f"{printable(record['source'])}: {len(damages) - _MOST_SHOWN:,} more; --json lists all")


def _verified(
    arguments: argparse.Namespace, opening: Verification, engine: Engine | None
) -> tuple[VerifyReport, dict[str, Any]]:
    """Verify on this machine or on a cluster; return the report, and facts about the cluster."""
    if engine is None:
        with Progress(label="verifying", unit="bytes") as progress:
            return verify(opening, progress=progress.show_bytes), {}
    job = verify_job(opening, to=arguments.parts, storage_options=storage_options_of(arguments))
    num_missing = len(job.missing())
    return engine.run(job), {
        **engine.record(),
        "num_units_done_before": job.num_units - num_missing,
        "num_units_run": num_missing,
    }


def _repaired_index(arguments: argparse.Namespace, opening: Verification) -> tuple[str, Store] | None:
    """Return the path and store of the repaired index, None for the old path; raise errors before the work."""
    if arguments.output is None:
        if arguments.repair_index and opening.opened is None and arguments.index is None:
            index_output(arguments, opening.source, opening.format, opening.store)  # refuses a partial index
        return None
    if not arguments.repair_index:
        msg = "--output names the file of --repair-index, and --repair-index is not given"
        raise UsageError(msg, hint="leave out --output, or add --repair-index")
    target = index_output(arguments, opening.source, opening.format, opening.store)
    return target.path, target.store


def _run_certificate(arguments: argparse.Namespace) -> int:
    """Compare certificates with the index."""
    if arguments.engine != "local" or arguments.parts is not None:
        msg = "--certificate reads no shard, so --engine has no work"
        raise UsageError(msg, hint="leave out --engine and --parts")
    decodes = arguments.decode or arguments.decoder
    if option := "--decode" if decodes else "--repair-index" if arguments.repair_index else None:
        raise UsageError(f"{option} reads the shards, but --certificate reads none", hint="run one after the other")
    certificate = Certificate.from_dict(
        merge_certificates(
            read_saved(path, "certificate", "ds.certificate()", most_bytes=_MOST_CERTIFICATE_BYTES)
            for path in arguments.certificate
        )
    )
    if chosen := [name for name in ("stored", "delivered") if name in certificate.order]:
        msg = f"the certificate covers chosen samples ({', '.join(chosen)}), but only its script knows the choice"
        raise StateError(msg, hint="ds.check_certificate(certificate), with the same select(), take() and skip()")
    resolved = _due(arguments, certificate)
    wrong = differences(certificate, resolved)
    record = {
        "num_samples": resolved.sample_index.num_samples,
        "num_delivered": sum(part.proof.num_samples for part in certificate.epochs.values()),
        "checksums": certificate.checksums,
        "epochs": [{"epoch": epoch, **part.to_dict()} for epoch, part in sorted(certificate.epochs.items())],
        "covered": covered(certificate, resolved),
        "as_due": not wrong,
        "differences": wrong,
    }
    output.emit(record if arguments.json else output.without_usual(record, differences=[]), as_json=arguments.json)
    return 1 if wrong else 0


def _due(arguments: argparse.Namespace, certificate: Certificate) -> Resolved:
    """Return the order of the run with this certificate."""
    state = certificate.at(0)
    documents: ResolvedOrder | ResolvedMixture
    if names_mixture(arguments):
        documents = open_mixture(arguments).resolved
    else:
        documents = ResolvedOrder(open_with_samples(arguments).index, request_of_state(of_documents(state)))
    return packed_as_saved(documents, state, arguments.lengths) if PACKED in state.order else documents


def _record(opening: Verification, report: VerifyReport) -> dict[str, Any]:
    index = None if opening.opened is None else opening.opened.index
    return {
        "index": None if opening.index_path is None else printable(opening.index_path),
        "format": opening.format.name,
        "num_shards": len(opening.source.names) if index is None or opening.index_path is None else index.num_shards,
        "num_samples": 0 if index is None else index.num_samples,
        "fingerprint": None if index is None else index.fingerprint,
        **_checked(report),
        "num_touched_shards": report.num_touched,
        **_damaged(report),
        "index_is_wrong": bool(report.damages) and all(damage.is_of_index for damage in report.damages),
        "index_repaired": False,
    }


def _checked(report: VerifyReport) -> dict[str, int]:
    return {
        "num_bytes": report.num_bytes,
        "num_extents_by_checksum": report.num_by_checksum,
        "num_extents_by_parsing": report.num_by_parsing,
    }


def _damaged(report: VerifyReport) -> dict[str, int]:
    return {"num_damages": len(report.damages), "num_damaged_samples": report.num_damaged_samples}


def _show(record: dict[str, Any], damages: list[Damage]) -> None:
    output.emit(output.without_usual(record, num_touched_shards=0, index_is_wrong=False, index_repaired=False))
    if damages:
        output.say()
    for damage in damages[:_MOST_SHOWN]:
        output.say(_line(damage))
    if len(damages) > _MOST_SHOWN:
        output.say(f"and {len(damages) - _MOST_SHOWN:,} more; --json lists all")


def _line(damage: Damage) -> str:
    """Return damage as a line of text."""
    where = printable(damage.shard) or "the index"
    if damage.first_byte is not None:
        where += f", byte {damage.first_byte}"
    text = f"{where}: {damage.kind}: {printable(damage.what)}"
    if not damage.samples:
        return text
    ids = f"sample {damage.samples[0]}"
    if len(damage.samples) > 1:
        ids = f"{len(damage.samples)} samples from {damage.samples[0]} to {damage.samples[-1]}"
    keys = [clipped(printable(key), 40) for key in damage.keys if key is not None]
    names = f" ({', '.join(keys[:_MOST_KEYS])}{', ...' * (len(keys) > _MOST_KEYS)})" if keys else ""
    return f"{text}; {ids}{names}"
