"""Tar shards against Python's tarfile and WebDataset's grouping."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.tar_reference import parse_all, reference_groups, scan

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def archive(members: list[tuple[str, bytes]], *, kind: str = "pax", mtime: float = 0) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[kind]) as tar:
        for name, payload in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(payload), mtime
            tar.addfile(info, io.BytesIO(payload))
    return out.getvalue()


SIMPLE = [
    ("./a/0001.jpg", b"x" * 700),
    ("./a/0001.cls", b"7"),
    ("./a/0002.JPG", b""),
    ("./a/0002.seg.PNG", b"y" * 512),
    ("readme", b"no extension"),
    ("./a/0002.json", b"{}"),
    ("b.v2/" + "c" * 90 + "/\u00e9\u4e2d.txt", b"z" * 3000),
    ("__meta__", b"skipped"),
    ("0003.bin", b"q" * 100_000),
    ("./a/0001.jpg", b"again"),
]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mtime", [0, 1.5])
@pytest.mark.parametrize("with_starts", [True, False])
def test_samples_are_those_of_webdataset(kind: str, mtime: float, with_starts: bool) -> None:
    data = archive(SIMPLE, kind=kind, mtime=int(mtime) if kind != "pax" else mtime)
    found = scan(data)
    assert parse_all(data, found, with_starts=with_starts) == reference_groups(data)
    assert found.notes == {"members_without_extension": 1, "meta_members": 1}


def test_gnu_tar_itself(tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("GNU tar is not on the path")
    for name, payload in [("d/1.jpg", b"a" * 5000), ("d/1.cls", b"3"), ("d/" + "n" * 180 + ".bin", b"b")]:
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(payload)
    for kind in ("v7", "oldgnu", "gnu", "ustar", "posix"):
        names = ["d/1.jpg", "d/1.cls"] if kind in ("v7", "ustar") else ["d"]
        out = tmp_path / f"{kind}.tar"
        subprocess.run(["tar", f"--format={kind}", "-cf", out, "-C", tmp_path, *names], check=True)
        data = out.read_bytes()
        assert parse_all(data, scan(data)) == reference_groups(data)


NAMES = st.text(
    st.one_of(st.sampled_from("ab./._-\n"), st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    min_size=1,
    max_size=12,
)
LONG = st.builds(lambda part, times: part * times, st.sampled_from(["abc/", "d\u00e9", "x."]), st.integers(30, 150))
MEMBERS = st.lists(
    st.tuples(
        st.one_of(NAMES, st.builds("".join, st.tuples(LONG, NAMES)), st.sampled_from(["k.a", "k.b", "l.a", "__x__"])),
        st.binary(max_size=1200),
        st.sampled_from([tarfile.REGTYPE] * 6 + [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.AREGTYPE]),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=120)
@given(members=MEMBERS, kind=st.sampled_from(["gnu", "pax"]), mtime=st.sampled_from([0, 1.25]))
def test_any_members(members: list[tuple[str, bytes, bytes]], kind: str, mtime: float) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[kind]) as tar:
        for number, (name, payload, member_type) in enumerate(members):
            info = tarfile.TarInfo(name if name == "__x__" else f"{name}{number}")
            info.type, info.mtime = member_type, mtime if kind == "pax" else int(mtime)
            if member_type == tarfile.AREGTYPE and len(name) > 40:
                # tarfile takes such a member for a directory where the first 100 bytes of its long name end in "/".
                info.type = tarfile.REGTYPE
            info.size = len(payload) if member_type in (tarfile.REGTYPE, tarfile.AREGTYPE) else 0
            tar.addfile(info, io.BytesIO(payload))
    data = out.getvalue()
    assert parse_all(data, scan(data)) == reference_groups(data)
    assert parse_all(data, scan(data, window_bytes=512, skip_bytes=600), with_starts=False) == reference_groups(data)
