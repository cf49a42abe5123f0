"""The compiled module finds the samples of a tar that its twins in Python find, and leaves every doubt to them."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.tar_reference import scan
from tests.formats.test_compiled_cutting import pytestmark as needs_compiler
from tests.formats.test_tar import FORMATS, MEMBERS, SIMPLE, archive

from shoal.errors import ShardError
from shoal.formats.compiled_cutting import tar_borders
from shoal.formats.rows.tar import names

pytestmark = needs_compiler
NOTHING_YET = (None, b"", 0, 0, 0, 0, False)
PLAIN = [(f"{number // 2:03d}.{'jpg' if number % 2 else 'CLS'}", bytes(number * 37)) for number in range(40)]


def found_or_refused(data: bytes, *, is_pure: bool, **options: int) -> Any:
    with mock.patch.object(names, "tar_borders", None if is_pure else tar_borders):
        try:
            found = scan(data, **options)
        except ShardError as error:
            return error.byte, str(error)
    return found.sample_starts.tolist(), found.layout_crcs.tolist(), found.head, found.notes


def assert_alike(data: bytes, **options: int) -> None:
    assert found_or_refused(data, is_pure=False, **options) == found_or_refused(data, is_pure=True, **options)


@given(
    members=MEMBERS,
    kind=st.sampled_from(["ustar", "gnu", "pax"]),
    mtime=st.sampled_from([0, 1.25]),
    numbered=st.booleans(),
    window=st.sampled_from([512, 2048, 1 << 20]),
)
def test_any_members(
    members: list[tuple[str, bytes, bytes]], kind: str, mtime: float, numbered: bool, window: int
) -> None:
    """Also where a suffix comes twice, and where the headers of a member are cut by the end of a window."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[kind]) as tar:
        for number, (name, payload, member_type) in enumerate(members):
            info = tarfile.TarInfo(f"{name}{number}" if numbered else name)
            info.type, info.mtime = member_type, mtime if kind == "pax" else int(mtime)
            info.size = len(payload) if member_type in (tarfile.REGTYPE, tarfile.AREGTYPE) else 0
            try:
                tar.addfile(info, io.BytesIO(payload))
            except ValueError:  # a name that ustar cannot hold
                continue
    assert_alike(out.getvalue(), window_bytes=window)


@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    cut_bytes=st.integers(0, 2000),
    members=st.sampled_from([SIMPLE, PLAIN, PLAIN[:3] + SIMPLE + PLAIN[3:]]),
    kind=st.sampled_from(["gnu", "pax"]),
)
def test_damaged_archives(
    changes: list[tuple[int, int]], cut_bytes: int, members: list[tuple[str, bytes]], kind: str
) -> None:
    data = bytearray(archive(members, kind=kind, mtime=1.5 if kind == "pax" else 1))
    headers = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    for place, value in changes:
        data[headers[place % len(headers)] + place // len(headers) % 512] = value
    assert_alike(bytes(data[: len(data) - cut_bytes]), window_bytes=4096)


@pytest.mark.parametrize("field", [b"ustar\0", b"ustar ", b"ustarx", b"other "])
def test_a_prefix_counts_where_it_does_for_python(field: bytes) -> None:
    data = bytearray(archive(PLAIN[:2], kind="ustar"))
    for at in (0, 512):
        header = data[at : at + 512]
        header[257:263], header[345:352] = field, b"a/b.c/d"
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        data[at : at + 512] = header
    assert_alike(bytes(data))


def test_most_members_are_passed_at_once() -> None:
    """Else every test above would pass if the module did nothing."""
    data = archive(PLAIN, kind="pax", mtime=1.5)
    position, num_members, *_ = tar_borders(data, 0, len(data), NOTHING_YET)
    assert num_members == len(PLAIN)
    assert len(data) - position < 10240  # tarfile fills a record of zeros


def test_threads_may_follow_at_once() -> None:
    data = archive(PLAIN, kind="gnu")
    wanted = tar_borders(data, 0, len(data), NOTHING_YET)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(tar_borders, data, 0, len(data), NOTHING_YET) for _ in range(400)]
    assert [future.result() for future in found] == [wanted] * 400


def test_wrong_arguments_are_errors_and_not_crashes() -> None:
    for arguments in [(), (b"", 0, 0), ("", 0, 0, NOTHING_YET), (b"", "0", 0, NOTHING_YET), (b"", 0, 0, (None,))]:
        with pytest.raises(TypeError):
            tar_borders(*arguments)
    data = archive(PLAIN, kind="gnu")
    assert tar_borders(data, 0, 100, NOTHING_YET) is None  # the first member does not end there
    assert tar_borders(data, 0, -1, NOTHING_YET) is None
    assert tar_borders(data[:511], 0, len(data), NOTHING_YET) is None
    for seen in (b"x" * 100 + b"\0", b"a\0" * 100, b"without an end"):
        assert tar_borders(data, 0, len(data), (b"key", seen, 0, 0, 0, 0, True)) is None


def test_nothing_is_kept() -> None:
    data = archive(PLAIN, kind="pax", mtime=1.5)

    def follow() -> None:
        for _ in range(500):
            tar_borders(data, 0, len(data), NOTHING_YET)
            tar_borders(data, 0, 100, NOTHING_YET)
            tar_borders(data[512:], 0, len(data), (b"k" * 300, b"jpg\0", 5, 1, 2, 3, True))

    follow()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    follow()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 10_000
