"""Through how many functions of shoal a batch goes, counted while it streams; the answer to "how much must I read?".

``python bench/hops.py`` streams a small dataset of tars in batches, without stages, from local files and from
`shoal.testing`'s HTTP server. It profiles a third epoch (`sys.setprofile`, also in the threads that read), since
opening files and checking shards is on the way of the first only, and cutting the chunks of a growing order on the way
of its second. It prints two chains of functions:

(a) bytes to batch: from the read of a chunk's bytes in a local file to the batch in the user's hand;
(b) order to request: from ``iter(dataset)`` through the order to the store's first request for bytes over HTTP.

A hop is a distinct function of shoal's source (methods, nested functions, generators and properties; a comprehension
belongs to the function around it) that hands on what travels: it returns or yields it. In (a) that is a value with a
payload in it, be it bytes, records, a sample or a batch. In (b) it is the iterator or its description, then ids, chunks
or units (arrays of int64), shares, reads and requests; and in (b) whoever is on the call stack when the iterator is
made, when the thread of the first request is started, and when that thread asks the store, is a hop, too.

A function that takes what travels and returns nothing of the kind is work beside the way: a check, a count, a sum. What
the order (`shoal.order`) and the HTTP store do within themselves is one hop each, their function that is called.
`shoal.order.arrays` has numpy idioms, which are no more hops than numpy's own; and the columns of
`shoal.index.chunk_table` are no more hops than the arrays of a table.

``--wing mixture`` (or another wing, or ``all``) streams a dataset of that kind. Nothing is timed: the counts are exact.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import shoal
from shoal.errors import ShuffleWarning
from shoal.testing import RangeServer

PAYLOAD = b"hops-payload:"
NUM_SHARDS, SAMPLES_PER_SHARD, PAYLOAD_BYTES, BATCH = 4, 512, 2048, 8
SOURCE = str(Path(shoal.__file__).parent) + "/"


NO_HOPS = ("order/arrays/", "index/chunk_table", "stream/states/")
WINDOW: dict[str, Any] = {"seed": 0, "window": "512KiB", "chunk": "64KiB"}


def plain(source: Any) -> Any:
    """Return batches of a dataset in a window."""
    return shoal.open(source).shuffle(**WINDOW).batch(BATCH)


def mixture(source: Any) -> Any:
    """Return batches of two sources."""
    half = len(source) // 2
    sources = {"a": shoal.open(source[:half]), "b": shoal.open(source[half:])}
    return shoal.mix(sources, weights={"a": 1, "b": 2}, epoch_size=1024).shuffle(**WINDOW).batch(BATCH)


def sampled(source: Any) -> Any:
    """Return batches in which some samples come twice."""
    return shoal.open(source).sample(num_samples=3072).shuffle(**WINDOW).batch(BATCH)


def refilled(source: Any) -> Any:
    """Return batches that are filled with what a filter keeps."""
    return shoal.open(source).shuffle(**WINDOW).filter(_is_kept, refill=True).batch(BATCH)


def growing(source: Any) -> Any:
    """Return batches of an order that can begin before all is indexed."""
    return shoal.open(source, index="grow").shuffle(**WINDOW).batch(BATCH)


def _sequences(source: Any, lengths: str | None, **index: Any) -> Any:
    documents = shoal.open(source, **index).shuffle(**WINDOW).map(_tokens)
    return documents.pack_sequences(PAYLOAD_BYTES, lengths=lengths).batch(BATCH)


def sequences(source: Any) -> Any:
    """Return batches of sequences packed by lengths in the index."""
    return _sequences(source, "bin:len", index_columns=["bin:len"])


def packed_as_they_come(source: Any) -> Any:
    """Return batches of sequences packed as documents are read."""
    return _sequences(source, None)


def _is_kept(_: Any) -> bool:
    return True


def _tokens(sample: Any) -> Any:
    return {"tokens": np.frombuffer(sample["bin"], dtype=np.uint8)}


WINGS = (plain, mixture, sampled, refilled, growing, sequences, packed_as_they_come)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, nargs=2, metavar=("A", "B"), help="fail if a chain has more hops")
    parser.add_argument("--wing", choices=["all", *(wing.__name__ for wing in WINGS)], default="plain")
    arguments = parser.parse_args()
    most = arguments.most
    with tempfile.TemporaryDirectory() as directory:
        make_tars(Path(directory))
        paths = sorted(Path(directory).glob("*.tar"))
        with RangeServer(directory) as server:
            urls = [server.url_of(path.name) for path in paths]
            worst = [0, 0]
            for wing in WINGS:
                if arguments.wing in ("all", wing.__name__):
                    chains = (("bytes to batch, local tar", list(map(str, paths)), BytesToBatch()),
                              ("order to request, HTTP", urls, OrderToRequest()))  # fmt: skip
                    found = [show(f"{wing.__name__}, {what}", profiled(wing, *chain)) for what, *chain in chains]
                    worst = list(map(max, worst, found))
    found = worst
    if most is not None and any(number > limit for number, limit in zip(found, most, strict=True)):
        sys.exit(f"{found} hops; at most {most} are wanted")


def make_tars(directory: Path) -> None:
    """Write tars of one member a sample, with the payload that is looked for."""
    for shard in range(NUM_SHARDS):
        with tarfile.open(directory / f"{shard:03d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(SAMPLES_PER_SHARD):
                info = tarfile.TarInfo(f"{shard * SAMPLES_PER_SHARD + number:06d}.bin")
                info.size = PAYLOAD_BYTES
                tar.addfile(info, io.BytesIO(PAYLOAD.ljust(PAYLOAD_BYTES, b".")))


class BytesToBatch:
    """Profile function that collects the hops of chain (a), in the order in which they were first seen."""

    def __init__(self) -> None:
        self.hops: dict[CodeType, None] = {}

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Record the function of a frame if it returns or yields a payload."""
        if event == "return" and frame.f_code.co_filename.startswith(SOURCE) and has_payload(value):
            add(self.hops, frame)


class OrderToRequest:
    """Profile function that collects the hops of chain (b): of the consumer, then of the first thread that reads."""

    def __init__(self) -> None:
        self.hops: dict[CodeType, None] = {}
        self._consumer, self._reader = threading.get_ident(), 0
        self._is_queued = self._is_over = False

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Record the function of a frame, or the whole stack, if the docstring of this module says so."""
        thread = threading.get_ident()
        if self._is_over or (self._is_queued and thread == self._consumer):
            return
        code = frame.f_code
        if event == "call" and thread == self._consumer and code is threading.Thread.start.__code__:
            self._add_stack(frame)
            self._is_queued = True
        room = room_of(frame)
        if not code.co_filename.startswith(SOURCE) or (thread != self._consumer and self._reader not in (0, thread)):
            return
        if event == "call" and room.startswith("storage/http/"):
            self._add_stack(frame)
            self._is_over = True
        elif event == "call" and room.startswith("stream/iterating/") and code.co_name == "__init__":
            self._add_stack(frame)
        elif (event == "return" and has_ids(value) and not room.startswith(NO_HOPS)) or (
            event == "return" and has_share(value)
        ):
            self._add(frame)
        if thread != self._consumer:
            self._reader = thread

    def _add_stack(self, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(SOURCE):
                stack.append(frame)
            frame = frame.f_back
        for caller in reversed(stack):
            self._add(caller)

    def _add(self, frame: FrameType) -> None:
        room, caller = room_of(frame), frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(SOURCE):  # as of a cached property
            caller = caller.f_back
        within = next((name for name in ("order/", "storage/http/") if room.startswith(name)), None)
        if within is None or caller is None or not room_of(caller).startswith(within):
            add(self.hops, frame)


def add(hops: dict[CodeType, None], frame: FrameType) -> None:
    if frame.f_code.co_name not in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"):
        hops.setdefault(frame.f_code)


def room_of(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(SOURCE)


def has_payload(value: Any, depth: int = 4) -> bool:
    """Return True if the payload is in a value: in its bytes, in a part of it, or in the records that it reads from."""
    if isinstance(value, bytes | bytearray | memoryview | np.ndarray):
        return PAYLOAD in bytes(value)
    if depth and isinstance(value, dict):
        return any(has_payload(item, depth - 1) for item in value.values())
    if depth and isinstance(value, list | tuple):
        return any(has_payload(item, depth - 1) for item in value)
    return hasattr(value, "layout_crcs") and hasattr(value, "sample")


def has_ids(value: Any, depth: int = 3) -> bool:
    """Return True if a value is the iterator or its description, or holds ids or what was made of them."""
    if isinstance(value, np.ndarray):
        return value.dtype == np.int64 and value.ndim == 1 and value.size > 0
    if type(value).__module__.startswith("shoal.stream.iterating") or has_share(value):
        return True
    # A read or a request, or the promise of one.
    if hasattr(value, "end_byte") or hasattr(getattr(value, "request", None), "end_byte"):
        return True
    return bool(depth) and isinstance(value, list | tuple) and any(has_ids(item, depth - 1) for item in value)


def has_share(value: Any) -> bool:
    """Return True if a value is a `Share` of the order, alone or in a tuple."""
    return hasattr(value, "batch_first") or (isinstance(value, tuple) and any(map(has_share, value)))


def profiled(wing: Callable[[Any], Any], source: Any, profile: BytesToBatch | OrderToRequest) -> list[CodeType]:
    """Stream three epochs of a dataset, profile the third, and return its hops."""
    warnings.simplefilter("ignore", ShuffleWarning)
    dataset = wing(source)
    for _ in range(2):
        for _ in dataset:
            pass
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        for _ in dataset:
            pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(profile.hops)


def show(what: str, hops: list[CodeType]) -> int:
    files = {code.co_filename for code in hops}
    print(f"{what}: {len(hops)} functions in {len(files)} files")
    for code in hops:
        print(f"  {code.co_qualname:44} {code.co_filename.removeprefix(SOURCE)}:{code.co_firstlineno}")
    return len(hops)


if __name__ == "__main__":
    main()
