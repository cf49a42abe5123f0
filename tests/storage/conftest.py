"""What the tests of stores share."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.servers import KINDS, Place, moto, place_of_kind

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _no_credentials_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with moto() as endpoint:
        yield endpoint


def place_named(kind: str, endpoint: str) -> Iterator[Place]:
    with place_of_kind(kind, f"place-{next(_numbers)}", endpoint) as place:
        yield place


@pytest.fixture(params=(*KINDS, "plain http"))
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """An empty place of each kind."""
    endpoint = request.getfixturevalue("s3_endpoint") if request.param == "s3" else ""
    if request.param == "plain http":
        monkeypatch.setitem(sys.modules, "pycurl", None)
    yield from place_named(request.param.removeprefix("plain "), endpoint)


@pytest.fixture
def s3(s3_endpoint: str) -> Iterator[Place]:
    yield from place_named("s3", s3_endpoint)
