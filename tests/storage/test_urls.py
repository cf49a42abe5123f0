"""The name of a file below a directory, which has a short way and a long one."""

from __future__ import annotations

import os
from urllib.parse import quote_from_bytes

from hypothesis import given
from hypothesis import strategies as st

from shoal.storage.urls import join, relative

PARTS = st.sampled_from(["a", "b", ".", "..", "", "x y", "n\n", "..a", "...", "ä"])
PATHS = st.builds("/".join, st.lists(PARTS, min_size=1, max_size=4))


@given(lead=st.sampled_from(["", "/", "//", "./"]), root=PATHS, middle=st.sampled_from(["", "/", "//"]), name=PATHS)
def test_a_name_is_what_the_standard_library_says(lead: str, root: str, middle: str, name: str) -> None:
    root = lead + root
    path = root.rstrip("/") + middle + name
    if not path or not root:
        return  # neither is a path
    assert relative(path, root) == os.path.relpath(path, root)


@given(name=st.binary(min_size=1, max_size=8).filter(lambda name: b"/" not in name))
def test_the_name_of_a_url_leads_back_to_it(name: bytes) -> None:
    """Also where servers hold names of other encodings than UTF-8."""
    root = "http://h.example/d"
    assert join(root, relative(f"{root}/{quote_from_bytes(name)}", root)) == f"{root}/{quote_from_bytes(name)}"


def test_a_name_below_all_hosts_begins_with_its_host() -> None:
    for url in ("s3://bucket/a/b.tar", "memory://a/b.tar", "http://127.0.0.1:81/b%20c.tar", "http://[::1]:8/a.tar"):
        root = f"{url.partition('://')[0]}://"
        assert not relative(url, root).startswith("/")
        assert join(root, relative(url, root)) == url
